"""Starting a run from another one: its newest checkpoint is read, checked against the new run, and taken over.

Nothing of the other run is written, and its environment is neither made nor imported.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from pdml.config.files import read_metadata, read_run
from pdml.config.methods import METHODS
from pdml.config.schema import Config
from pdml.config.start_from import StartFrom, StartRecord
from pdml.core.errors import UserError
from pdml.envs.spaces import Spaces, other_bounds, spaces_from
from pdml.runs.checkpoint import newest_checkpoint
from pdml.training.state import TrainState
from pdml.training.transfer import skip_warmup_actions, take_agent, take_model, take_rows


class WarmStart(NamedTuple):
    """What was read of another run."""

    record: StartRecord
    arrays: dict[str, np.ndarray]
    """Of its agent and its model."""
    rows: Float32[np.ndarray, "n width"]
    """Its real transitions; none where they are left out."""
    stored: int
    """How many it has, left out or not."""
    notes: tuple[str, ...] = ()
    """What a person should know: checkpoints that could not be read."""

    @property
    def learned(self) -> int:
        """How many of the transitions the agent that is taken over has learned from."""
        return len(self.rows) if "agent" in self.record.parts else 0


def read_start(start: StartFrom, config: Config, spaces: Spaces, prior: int = 0) -> WarmStart:
    """Read what a new run starts from, or say in one line why it cannot.

    Args:
        config: Of the new run.
        spaces: Of the new run.
        prior: Other transitions that are prior to the new run.
    """
    if start.path.is_file():
        raise UserError(f"start-from = '{start.path}': is a file; give the directory of the run")
    if not (start.path / "config.json").is_file():
        raise UserError(f"start-from = '{start.path}': no run there (it has no config.json)")
    source = read_run(start.path)[0].learning
    _require_same_spaces(start.path, spaces)
    if "model" in start.parts:
        _require_same_model(start, source, config)
    arrays, note, unread = newest_checkpoint(start.path, "start-from")
    if note["opened"] < 0 and start.parts != ("rows",):
        raise UserError(
            f"start-from = '{start.path}': has not begun to learn, it is at step {note['step']} of its warm-up; take "
            "its rows alone: start-with rows"
        )
    rows = arrays["replay.rows"] if "rows" in start.parts else arrays["replay.rows"][:0]
    if "rows" in start.parts:
        _require_rows(start, len(rows), prior, config)
    digest = hashlib.sha256(note["config"].encode()).hexdigest()[:16]
    about = (str(start.path), note["step"], source.env, source.method, source.seed)
    record = StartRecord(*about, config=digest, parts=start.parts, rows=len(rows))
    kept = {name: array for name, array in arrays.items() if name.startswith(("agent.", "model."))}
    return WarmStart(record, kept, rows, len(arrays["replay.rows"]), unread)


def take_over(
    state: TrainState, start: WarmStart | None, prior: Float32[np.ndarray, "n width"] | None, config: Config
) -> None:
    """Put what was read, and other prior transitions, into a new state.

    Args:
        prior: They follow after those of the other run, in the same block.
    """
    found = [rows for rows in (None if start is None else start.rows, prior) if rows is not None and len(rows)]
    if found:
        take_rows(state, np.concatenate(found), 0 if start is None else start.learned)
    if start is None:
        return
    skip_warmup_actions(state, start.stored)
    for part in start.record.parts:
        try:
            if part == "agent":
                take_agent(state, start.arrays, config)
            elif part == "model":
                take_model(state, start.arrays)
        except ValueError as error:
            asked = StartFrom(Path(start.record.path), start.record.parts)
            remedy = _remedies(f"take its settings too: --config {asked.path / 'config.json'}", _without(asked, part))
            raise UserError(
                f"start-from = '{asked.path}': its {part} does not fit this run's ({error}){remedy}"
            ) from None


def describe_start(record: StartRecord) -> str:
    """Say in one line what a run starts from."""
    taken = ", ".join(f"{record.rows} rows" if part == "rows" else part for part in record.parts)
    return f"starts from '{record.path}', {record.method} on {record.env} at step {record.step}: {taken}"


def _require_same_spaces(path: Path, spaces: Spaces) -> None:
    """Raise unless observations and actions are as long as the other run's, and actions have the same bounds."""
    try:
        its = spaces_from(read_metadata(path)["spaces"])
        sizes = its.layout
    except (KeyError, TypeError, ValueError):
        raise UserError(f"start-from = '{path}': its metadata.json does not record the environment's spaces") from None
    own = spaces.layout
    if sizes != own:
        raise UserError(
            f"start-from = '{path}': its observations have size {sizes.obs_size} and its actions {sizes.action_size}, "
            f"this run's {own.obs_size} and {own.action_size}; the same spaces are needed"
        )
    other = other_bounds(its, spaces)
    if other is not None:
        theirs, ours = other
        raise UserError(
            f"start-from = '{path}': an action of its lies in {theirs}, in this run in {ours}; the same spaces are "
            "needed"
        )


def _require_same_model(start: StartFrom, source: Config, config: Config) -> None:
    """Raise unless the other run has a model whose networks predict the same quantities."""
    if not METHODS[source.method].has_model:
        raise UserError(
            f"start-from = '{start.path}': its method '{source.method}' has no model"
            f"{_remedies(_without(start, 'model'))}"
        )
    its, own = source.dynamics.target_norm, config.dynamics.target_norm
    if its != own:
        raise UserError(
            f"start-from = '{start.path}': its model has dynamics.target_norm = {its}, this run's {own}"
            f"{_remedies(_without(start, 'model'))}"
        )


def _require_rows(start: StartFrom, rows: int, prior: int, config: Config) -> None:
    """Raise unless there are transitions to take over, and room for them and two blocks."""
    if rows == 0:
        raise UserError(f"start-from = '{start.path}': it has no rows yet{_remedies(_without(start, 'rows'))}")
    if rows + prior > config.replay_capacity - 2 * config.model_every:
        more = f" and {prior} of prior" if prior else ""
        raise UserError(
            f"start-from = '{start.path}': its {rows} rows{more} do not fit into replay_capacity = "
            f"{config.replay_capacity}{_remedies('give a larger one', _without(start, 'rows'))}"
        )


def _without(start: StartFrom, part: str) -> str:
    """Say how to leave a part out, if another one is left."""
    rest = [other for other in start.parts if other != part]
    return f"start without its {part}: start-with {','.join(rest)}" if rest else ""


def _remedies(*texts: str) -> str:
    """Return what can be done about a mistake, as the end of a sentence."""
    found = ", or ".join(text for text in texts if text)
    return f"; {found}" if found else ""
