"""A transition, and its packed form: a row of float32.

Real and imagined transitions have the same layout, so a minibatch is one gather.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


class Transition(NamedTuple):
    """Fields of one or many transitions; `terminated` is 1 where the environment terminated, never at a time limit."""

    obs: Float[Array, "*b obs"]
    action: Float[Array, "*b action"]
    reward: Float[Array, "*b"]
    next_obs: Float[Array, "*b obs"]
    terminated: Float[Array, "*b"]


class Layout(NamedTuple):
    """The order of the fields in a row: obs, action, reward, next_obs, terminated."""

    obs_size: int
    action_size: int

    @property
    def width(self) -> int:
        """Numbers per row."""
        return 2 * self.obs_size + self.action_size + 2

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """Return [obs, action], the model's inputs."""
        return rows[:, : self.obs_size + self.action_size]

    def targets(self, rows: np.ndarray, direct: bool = False) -> np.ndarray:
        """Return the model's targets: [reward, next_obs - obs] or, if direct, [reward, next_obs]."""
        start = self.obs_size + self.action_size
        if direct:
            return rows[:, start:-1]
        delta = rows[:, start + 1 : -1] - rows[:, : self.obs_size]
        return np.concatenate([rows[:, start : start + 1], delta], axis=1)

    def unpack(self, rows: Float[Array, "*b width"]) -> Transition:
        """Split rows into fields."""
        action = self.obs_size + self.action_size
        return Transition(
            obs=rows[..., : self.obs_size],
            action=rows[..., self.obs_size : action],
            reward=rows[..., action],
            next_obs=rows[..., action + 1 : -1],
            terminated=rows[..., -1],
        )


def pack(step: Transition) -> Float[Array, "*b width"]:
    """Join the fields of device arrays into rows."""
    return jnp.concatenate(
        [step.obs, step.action, step.reward[..., None], step.next_obs, step.terminated[..., None]], axis=-1
    )
