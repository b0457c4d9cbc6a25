"""The spaces of an environment: observations as flat vectors, bounded continuous actions; others are refused here."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from pdml.core.errors import UserError
from pdml.core.transition import Layout


class Spaces(NamedTuple):
    """The size of a flat observation, and the bounds of each action."""

    obs_size: int
    low: np.ndarray
    high: np.ndarray

    @property
    def layout(self) -> Layout:
        """Where the fields of a transition are in a row."""
        return Layout(self.obs_size, len(self.low))

    def to_env(self, action: Any) -> Any:
        """Scale actions from [-1, 1] to the environment's own range; works on arrays of numpy and of JAX."""
        low, high = self.low.astype(np.float32), self.high.astype(np.float32)
        scaled = low.reshape(1, -1) + (action + np.float32(1.0)) * ((high - low) / np.float32(2.0)).reshape(1, -1)
        return scaled.clip(low.reshape(1, -1), high.reshape(1, -1))  # rounding may exceed the bounds

    def from_env(self, action: np.ndarray) -> np.ndarray:
        """Scale actions from the environment's own range to [-1, 1]."""
        middle, half = (self.high + self.low) / 2.0, (self.high - self.low) / 2.0
        return np.clip((action - middle) / half, -1.0, 1.0).astype(np.float32)


def spaces_from(recorded: Mapping[str, Any]) -> Spaces:
    """Return the spaces that a run recorded in its metadata, under obs_size, low and high."""
    return Spaces(recorded["obs_size"], np.array(recorded["low"]), np.array(recorded["high"]))


def other_bounds(one: Spaces, other: Spaces) -> tuple[str, str] | None:
    """Return the bounds of the first action that differ between two spaces of the same size; None if none do."""
    for bounds in zip(one.low, one.high, other.low, other.high, strict=True):
        low, high, its_low, its_high = np.array(bounds, np.float32)
        if (low, high) != (its_low, its_high):
            return f"[{low:g}, {high:g}]", f"[{its_low:g}, {its_high:g}]"
    return None


def examine(observation: gymnasium.Space[Any], action: gymnasium.Space[Any], name: str) -> Spaces:
    """Return the spaces of an environment, or say in one line why they are not supported."""
    _require_vector(observation, f"env = '{name}'")
    if not isinstance(action, Box) or len(action.shape) != 1:
        raise UserError(
            f"env = '{name}': its action space is {describe_space(action)}; continuous actions are needed, a Box of "
            "one dimension"
        )
    if not np.issubdtype(action.dtype, np.floating):
        raise UserError(f"env = '{name}': its actions are of type {action.dtype}; floating point numbers are needed")
    low, high = action.low.astype(np.float64), action.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(
            f"env = '{name}': its action bounds are not finite ({low.min()} to {high.max()}); give it a Box with "
            "finite bounds, for example by gymnasium.wrappers.RescaleAction or ClipAction"
        )
    if not (low < high).all():
        raise UserError(f"env = '{name}': an action's lower bound is not below its upper bound")
    return Spaces(gymnasium.spaces.flatdim(observation), low, high)


def describe_space(space: gymnasium.Space[Any]) -> str:
    """Return the type of a space, with its shape where it has one."""
    return f"{type(space).__name__}{space.shape or ''}"


def _require_vector(space: gymnasium.Space[Any], what: str) -> None:
    """Raise unless an observation consists of numbers that are not pixels."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, gymnasium.spaces.Dict) else enumerate(space.spaces)
        for name, part in parts:
            _require_vector(part, f"{what}: part '{name}'")
        return
    if not isinstance(space, Box):
        raise UserError(
            f"{what}: its observation space is {describe_space(space)}; vectors of numbers are needed, a Box or a Dict "
            "of Boxes"
        )
    if space.dtype == np.uint8 and len(space.shape) >= 2:
        raise UserError(
            f"{what}: its observations are images {space.shape}, which this package does not learn from; give it an "
            "observation of numbers"
        )
    if 0 in space.shape:
        raise UserError(f"{what}: its observation is empty {space.shape}")
