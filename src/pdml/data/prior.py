"""Transitions from other people's files, in the form that `pdml.Agent(prior=...)` takes."""

from typing import Any

import numpy as np

from pdml.core.errors import UserError


def from_minari(dataset: Any) -> dict[str, np.ndarray]:
    """Return the transitions of a Minari dataset as arrays by name, for `pdml.Agent(prior=...)`.

    Args:
        dataset: A dataset of Minari, or the id of one that is on this machine.
    """
    if isinstance(dataset, str):
        dataset = _load(dataset)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("obs", "action", "reward", "next_obs", "terminated")}
    for episode in dataset.iterate_episodes():
        obs = _numbers(episode.observations, "observations")
        parts = (obs[:-1], _numbers(episode.actions, "actions"), episode.rewards, obs[1:], episode.terminations)
        for column, part in zip(columns.values(), parts, strict=True):
            column.append(np.asarray(part))
    if not columns["obs"]:
        raise UserError(f"minari dataset '{dataset.id}': has no episodes")
    return {name: np.concatenate(column) for name, column in columns.items()}


def _load(name: str) -> Any:
    try:
        import minari
    except ImportError:
        raise UserError("from_minari needs Minari: pip install 'pdml[minari]' (in a checkout, '.[minari]')") from None
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError):
        raise UserError(f"minari dataset '{name}': not on this machine; get it with: minari download {name}") from None


def _numbers(values: Any, what: str) -> np.ndarray:
    """Return one row of numbers per step; dictionaries, words and single numbers are refused."""
    found = None if isinstance(values, dict | tuple) else np.asarray(values)
    if found is None or found.ndim != 2 or found.dtype.kind not in "fiu":
        raise UserError(f"minari dataset: {what} must be one vector of numbers per step")
    return found
