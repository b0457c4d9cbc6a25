"""Save and load the whole state: safetensors for arrays, one JSON text for the rest, no pickle."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pdml.algorithm import BlockLog, Parts, TrainState, init
from pdml.config import Config
from pdml.envs import Episode, reproduce
from pdml.errors import UserError
from pdml.settings import FORMAT, from_json, to_json
from pdml.transition import Layout
from pdml.tree import flatten, unflatten


def write_arrays(path: Path, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> None:
    """Write arrays and a JSON note to one file; a reader never sees half of it."""
    partial = path.with_name(path.name + ".partial")
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    save_file(contiguous, partial, {"json": json.dumps({"format": FORMAT, **note})})
    partial.replace(path)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_arrays` wrote."""
    try:
        with safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})["json"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError):
        raise UserError(f"'{path}' cannot be read as a file of this package") from None
    if note.get("format") != FORMAT:
        raise UserError(f"'{path}': format {note.get('format')}, this version reads format {FORMAT}")
    return arrays, note


def save(state: TrainState, config: Config, path: Path) -> None:
    """Write the whole state of a run."""
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
        "episode": {"number": state.episode.number, "total": state.episode.total},
        "log": asdict(state.log),
        "recent": state.recent,
    }
    write_arrays(path, arrays, note)


def saved_config(path: Path) -> Config:
    """Return the configuration of a saved state."""
    return from_json(read_arrays(path)[1]["config"], str(path))


def load(path: Path, config: Config, layout: Layout, parts: Parts, env: gymnasium.Env) -> TrainState:
    """Read a whole state and bring the environment to where it was."""
    arrays, note = read_arrays(path)
    state = init(config, layout, parts, env)
    if state.imagined is not None and "imagined.rows" in arrays:
        rows = np.zeros(state.imagined.rows.shape, np.float32)  # its size follows from the steps to come
        if len(arrays["imagined.rows"]) <= len(rows):
            rows[: len(arrays["imagined.rows"])] = arrays["imagined.rows"]
            arrays["imagined.rows"] = rows
    state.step, state.evaluation_steps = note["step"], note["evaluation_steps"]
    state.epoch_updates = note["epoch_updates"]
    try:
        state.agent = unflatten(state.agent, arrays, "agent")
        state.model = unflatten(state.model, arrays, "model")
        state.imagined = unflatten(state.imagined, arrays, "imagined")
    except ValueError as error:
        raise UserError(f"'{path}' does not belong to this configuration: {error}") from None
    state.replay.restore(section(arrays, "replay."))
    state.history.restore(section(arrays, "history."))
    state.mixing.restore(section(arrays, "mixing."))
    if "probes.rows" in arrays:  # older states have none
        state.probes.restore(section(arrays, "probes."))
    state.log = BlockLog(**{**note["log"], "finished": _episodes(note["log"]["finished"])})
    state.recent = _episodes(note["recent"])
    state.episode = Episode(
        obs=arrays["episode.obs"].copy(), actions=list(arrays["episode.actions"].copy()), **note["episode"]
    )
    reproduce(env, config.seed, state.episode)
    return state


def _episodes(pairs: list[list[Any]]) -> list[tuple[float, int]]:
    return [(total, length) for total, length in pairs]


def section(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
