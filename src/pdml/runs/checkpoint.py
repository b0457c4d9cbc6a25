"""Checkpoints: the whole state of a run in one file, arrays as safetensors, the rest as one JSON text, no pickle."""

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pdml.config.fields import different
from pdml.config.files import from_json, to_json
from pdml.config.schema import Settings
from pdml.config.tasks import TaskSizes
from pdml.core.errors import UserError
from pdml.core.files import Replacing, replaced
from pdml.core.transition import Layout
from pdml.envs.episode import Episode
from pdml.runs.lease import Lease
from pdml.runs.ledger import Ledger, restored_ledger, saved_ledger
from pdml.runs.tensor_file import read_arrays, write_arrays
from pdml.training.diagnostics import FreshReservoir
from pdml.training.recipe import Recipe
from pdml.training.state import TrainState, initial_state, restored_state, resume_episode, saved_state

KEPT = 2
"""Checkpoints of a run that are kept: the second is used where the first is damaged."""


def saved_checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    return sorted((run / "checkpoints").glob("step_*.safetensors"), reverse=True)


def newest_checkpoint(run: Path, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any], tuple[str, ...]]:
    """Return the arrays and the note of the newest checkpoint that is not damaged, and a line for each that is.

    Args:
        name: What an error calls the run.
    """
    found, unread = saved_checkpoints(run), []
    for file in found:
        try:
            return (*read_arrays(file), tuple(unread))
        except UserError as error:
            unread.append(f"{error}; the one before it is taken")
    what = f"none of its {len(found)} checkpoints is readable" if found else "it has no checkpoint yet"
    raise UserError(f"{name} = '{run}': {what}")


def delete_old_checkpoints(lease: Lease) -> None:
    """Delete all checkpoints but the newest `KEPT`."""
    for path in saved_checkpoints(lease.run)[KEPT:]:
        lease.remove(path)


def save_checkpoint(
    state: TrainState,
    ledger: Ledger,
    settings: Settings,
    path: Path,
    files: dict[str, Any] | None = None,
    replacing: Replacing = replaced,
) -> None:
    """Write the whole state of a run.

    Args:
        files: What the run's other files need to be resumed from here; see `pdml.runs.directory.offsets`.
    """
    arrays, note = saved_state(state)
    more, counts = saved_ledger(ledger)
    note = {"config": to_json(settings), **note, **counts, "files": files or {}}
    write_arrays(path, arrays | more, note, replacing)


class LoadedCheckpoint(NamedTuple):
    """A state that was read, and what was kept beside it."""

    state: TrainState
    ledger: Ledger
    files: dict[str, Any]
    reproduced: bool
    """Whether the environment reached the saved episode again; otherwise the state begins a new episode."""


def load_checkpoint(
    path: Path, settings: Settings, layout: Layout, recipe: Recipe, env: gymnasium.Env | None
) -> LoadedCheckpoint:
    """Read a whole state and bring the environment, if there is one, to where it was."""
    arrays, note = read_arrays(path)
    config = settings.learning
    _require_same(path, note.get("config"), settings, TaskSizes(*layout, time_limited=True))
    blank = initial_state(config, layout, recipe, Episode(), settings.run.steps)
    try:
        state = restored_state(blank, arrays, note)
        ledger = restored_ledger(Ledger(FreshReservoir(layout.width)), arrays, note, config.schedule)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"'{path}' does not belong to this configuration: {error}") from None
    reproduced = env is None or resume_episode(state, env, config.seed, layout)
    return LoadedCheckpoint(state, ledger, note["files"], reproduced)


def _require_same(path: Path, kept: Any, settings: Settings, sizes: TaskSizes) -> None:
    """Raise if a state was saved by a run of other settings; it may have been meant to be shorter."""
    if not isinstance(kept, str):
        raise UserError(f"'{path}' is of another run: it has no configuration")
    for name in different(from_json(kept, str(path), sizes), settings):
        if name != "steps":
            raise UserError(f"'{path}' is of another run: its {name} is not this run's")
