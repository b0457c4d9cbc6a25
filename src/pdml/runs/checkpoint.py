"""Save and load the whole state: safetensors for arrays, one JSON text for the rest, no pickle."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pdml.training.loop import BlockLog, Parts, TrainState, init
from pdml.runs.tensor_file import read_arrays, write_arrays
from pdml.config.schema import Config, get, leaves
from pdml.envs.gym import Episode, begin, reproduce
from pdml.core.errors import UserError
from pdml.config.validate import from_json, to_json
from pdml.core.transition import Layout
from pdml.core.pytree import flatten, unflatten

KEPT = 2
"""Checkpoints of a run that are kept: the second stands in where the first turns out to be damaged."""


def saved(run: Path) -> list[Path]:
    """Return the checkpoints of a run, newest first."""
    return sorted((run / "checkpoints").glob("step_*.safetensors"), reverse=True)


def keep_last(run: Path) -> None:
    """Remove all checkpoints but the newest."""
    for path in saved(run)[KEPT:]:
        path.unlink()


def save(state: TrainState, config: Config, path: Path, files: dict[str, Any] | None = None) -> None:
    """Write the whole state of a run.

    Args:
        files: What the run's other files need to go on from here; see `pdml.runs.directory.offsets`.
    """
    arrays = flatten(state.agent, "agent") | flatten(state.model, "model") | flatten(state.imagined, "imagined")
    if state.imagined is not None:
        arrays["imagined.rows"] = arrays["imagined.rows"][: int(state.imagined.capacity)]
    arrays |= {f"replay.{name}": array for name, array in state.replay.arrays().items()}
    arrays |= {f"history.{name}": array for name, array in state.history.arrays().items()}
    arrays |= {f"mixing.{name}": array for name, array in state.mixing.arrays().items()}
    arrays |= {f"probes.{name}": array for name, array in state.probes.arrays().items()}
    actions = state.episode.actions
    width = state.replay.layout.action_size
    arrays |= {"episode.obs": state.episode.obs, "episode.actions": np.array(actions, np.float32).reshape(-1, width)}
    note = {
        "config": to_json(config),
        "step": state.step,
        "evaluation_steps": state.evaluation_steps,
        "epoch_updates": state.epoch_updates,
        "prior": state.prior,
        "opened": state.opened,
        "episode": {"number": state.episode.number, "total": state.episode.total, "foreign": state.episode.foreign},
        "log": asdict(state.log),
        "recent": state.recent,
        "files": files or {},
    }
    write_arrays(path, arrays, note)


class Loaded(NamedTuple):
    """A state that was read, and what was kept beside it."""

    state: TrainState
    files: dict[str, Any]
    reproduced: bool
    """Whether the environment came to where it was; otherwise the state begins a new episode."""


def load(path: Path, config: Config, layout: Layout, parts: Parts, env: gymnasium.Env | None) -> Loaded:
    """Read a whole state and bring the environment, if there is one, to where it was."""
    arrays, note = read_arrays(path)
    _require_same(path, note.get("config"), config)
    state = init(config, layout, parts, Episode())
    if state.imagined is not None and "imagined.rows" in arrays:
        rows = np.zeros(state.imagined.rows.shape, np.float32)  # its size follows from the steps to come
        if len(arrays["imagined.rows"]) <= len(rows):
            rows[: len(arrays["imagined.rows"])] = arrays["imagined.rows"]
            arrays["imagined.rows"] = rows
    try:
        state.agent = unflatten(state.agent, arrays, "agent")
        state.model = unflatten(state.model, arrays, "model")
        state.imagined = unflatten(state.imagined, arrays, "imagined")
        _restore(state, arrays, note)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"'{path}' does not belong to this configuration: {error}") from None
    count = min(len(state.episode.actions), state.replay.size)
    reproduced = True
    if env is not None and state.episode.foreign:
        state.episode = begin(env, config.seed, state.episode.number + 1)
    elif env is not None:
        seen = state.replay.stored().rows[state.replay.size - count :, : layout.obs_size]
        state.episode, reproduced = reproduce(env, config.seed, state.episode, seen)
    return Loaded(state, note["files"], reproduced)


def _require_same(path: Path, kept: Any, config: Config) -> None:
    """Raise if a state was saved by a run of another configuration; it may have been meant to be shorter."""
    was = from_json(kept, str(path)) if isinstance(kept, str) else None
    for leaf in leaves():
        if was is None or (leaf.name != "steps" and get(was, leaf.name) != get(config, leaf.name)):
            raise UserError(f"'{path}' is of another run: its {leaf.name} is not this run's")


def _restore(state: TrainState, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> None:
    """Take over all but the trees."""
    state.step, state.evaluation_steps = note["step"], note["evaluation_steps"]
    state.epoch_updates, state.prior, state.opened = note["epoch_updates"], note["prior"], note["opened"]
    state.replay.restore(section(arrays, "replay."))
    state.history.restore(section(arrays, "history."))
    state.mixing.restore(section(arrays, "mixing."))
    state.probes.restore(section(arrays, "probes."))
    state.log = BlockLog(**{**note["log"], "finished": _episodes(note["log"]["finished"])})
    state.recent = _episodes(note["recent"])
    state.episode = Episode(
        obs=arrays["episode.obs"].copy(), actions=list(arrays["episode.actions"].copy()), **note["episode"]
    )


def _episodes(pairs: list[list[Any]]) -> list[tuple[float, int]]:
    return [(total, length) for total, length in pairs]


def section(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
