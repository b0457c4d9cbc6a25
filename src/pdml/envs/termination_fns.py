"""Termination rules of the benchmark environments: which imagined steps end an episode.

Time limits are not among them: they truncate episodes of the real environment only, and are never stored as terminal.
"""

from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pdml.core.types import KnownParts

Obs = Float[Array, "b obs"]
Ended = Bool[Array, " b"]


def _between(x: Array, low: float, high: float) -> Array:
    return (x > low) & (x < high)


def hopper(next_obs: Obs) -> Ended:
    """Fallen, tilted, or any coordinate beyond 100 on either side (reference codes check one side only)."""
    healthy = jnp.isfinite(next_obs).all(axis=-1) & (jnp.abs(next_obs[:, 1:]) < 100.0).all(axis=-1)
    return ~(healthy & (next_obs[:, 0] > 0.7) & (jnp.abs(next_obs[:, 1]) < 0.2))


def walker2d(next_obs: Obs) -> Ended:
    """Fallen or tilted."""
    return ~(_between(next_obs[:, 0], 0.8, 2.0) & _between(next_obs[:, 1], -1.0, 1.0))


def ant(next_obs: Obs) -> Ended:
    """Too low, too high or not finite; the limits themselves are healthy."""
    height = next_obs[:, 0]
    return ~(jnp.isfinite(next_obs).all(axis=-1) & (height >= 0.2) & (height <= 1.0))


def humanoid(next_obs: Obs) -> Ended:
    """Too low or too high."""
    return ~_between(next_obs[:, 0], 1.0, 2.0)


def inverted_pendulum(next_obs: Obs) -> Ended:
    """Pole beyond 0.2 rad, or not finite."""
    return ~(jnp.isfinite(next_obs).all(axis=-1) & (jnp.abs(next_obs[:, 1]) <= 0.2))


def never(next_obs: Obs) -> Ended:
    """No state ends the episode."""
    return jnp.zeros(next_obs.shape[0], bool)


RULES: dict[str, Callable[[Obs], Ended]] = {
    "Hopper": hopper,
    "Walker2d": walker2d,
    "HalfCheetah": never,
    "Ant": ant,
    "Humanoid": humanoid,
    "Pusher": never,
    "InvertedPendulum": inverted_pendulum,
}
"""The rule of each family in `pdml.config.tasks.TASKS`."""


@lru_cache
def by_rule(rule: Callable[[Obs], Ended]) -> KnownParts:
    """Return the known parts where a rule decides termination from the next observation; the reward is learned."""
    return KnownParts(lambda obs, action, next_obs: rule(next_obs))
