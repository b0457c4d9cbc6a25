r"""The historical policies: a snapshot of the actor per block, and the shift of each from the current policy.

Line 4 of Algorithm 2 [Wang et al. 2023, Sec. 4.1]. `pdml.weighting.policy_distance` has the estimates of the shift.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from pdml.core.batching import padded
from pdml.core.reservoir import reservoir_slots
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout
from pdml.core.types import PolicyHead
from pdml.weighting.policy_distance import Estimator

EVALUATED_ROWS = 64
"""States per call of the actor. One compiled shape for all, so that recomputed outputs have the same bits."""

COMPARED_POLICIES = 16
"""Snapshots per call of the divergence."""


class ActorShape(NamedTuple):
    """How an actor's parameters are laid out in one vector."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]


def actor_shape(actor: Any) -> ActorShape:
    """Return the layout of actors like this one."""
    leaves, structure = jax.tree.flatten(actor)
    return ActorShape(structure, tuple(leaf.shape for leaf in leaves))


def flat_actor(actor: Any) -> Float32[np.ndarray, " parameters"]:
    """Return an actor's parameters as one vector."""
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(actor)])


def actor_from_flat(shape: ActorShape, flat: Float[Array | np.ndarray, " parameters"]) -> Any:
    """Return the actor whose parameters `flat_actor` returned."""
    parts = jnp.split(flat, np.cumsum([math.prod(size) for size in shape.shapes])[:-1].tolist())
    return jax.tree.unflatten(
        shape.structure, [part.reshape(size) for part, size in zip(parts, shape.shapes, strict=True)]
    )


@lru_cache(maxsize=4)
def _evaluator(head: PolicyHead, shape: ActorShape) -> Callable[[np.ndarray, np.ndarray], Array]:
    """Return the compiled function from a flat actor and states to mean and log standard deviation side by side."""

    def evaluate(flat: Float[Array, " parameters"], obs: Float[Array, "rows obs"]) -> Float[Array, "rows two_a"]:
        return jnp.concatenate(head(actor_from_flat(shape, flat), obs), axis=-1)

    return jax.jit(evaluate)


class PolicyHistory:
    r"""Snapshots $p_0, p_1, \dots$ of the actor, where $p_j$ is the policy at the end of block j.

    Shifts are estimated on a uniform reservoir of all states collected. Neither old snapshots nor old states change,
    so their outputs are kept. A block then costs the new snapshot on the whole reservoir, and the old snapshots on
    the few states that were replaced.
    """

    def __init__(self, head: PolicyHead, actor: Any, layout: Layout, reservoir: int, seed: int, estimate: Estimator):
        self._evaluate = _evaluator(head, actor_shape(actor))
        self._shift = jax.jit(estimate)
        self._seed = seed
        self.count = 0
        """Snapshots taken."""
        self._snapshots = np.zeros((1, len(flat_actor(actor))), np.float32)
        self._states = np.zeros((reservoir, layout.obs_size), np.float32)
        self._offered = 0
        """States offered to the reservoir."""
        self._collected = 0
        """States collected at the last offer; more than offered if a small replay buffer lost some before."""
        self._outputs = np.zeros((1, reservoir, 2 * layout.action_size), np.float32)
        """Kept outputs, [snapshot, state, mean and log standard deviation]."""
        self._num_outputs = 0
        """Snapshots whose outputs are kept."""

    def push(self, actor: Any) -> None:
        """Append a copy of the current actor (line 4)."""
        self._snapshots = _grown(self._snapshots, self.count + 1)
        self._snapshots[self.count] = flat_actor(actor)
        self.count += 1

    def snapshot(self, index: int) -> Float32[np.ndarray, " parameters"]:
        """Return the flat parameters of a snapshot."""
        return self._snapshots[index].copy()

    def shifts(self, obs: Float32[np.ndarray, "n obs"], total: int) -> Float32[np.ndarray, " snapshots"]:
        r"""Return $\xi$ of every snapshot against the newest one.

        Args:
            obs: States collected, newest last; new ones are offered to the reservoir.
            total: How many states have been collected in all.
        """
        replaced = self._offer(obs, total)
        size = min(self._offered, len(self._states))
        self._update_outputs(replaced, size)
        current = self._outputs[self.count - 1].copy()
        result = np.zeros(self.count, np.float32)
        for first in range(0, self.count, COMPARED_POLICIES):
            last = min(first + COMPARED_POLICIES, self.count)
            others = padded(self._outputs[first:last], COMPARED_POLICIES)
            result[first:last] = np.asarray(self._shift(current, others, np.int32(size)))[: last - first]
        return result

    def _offer(self, obs: Float32[np.ndarray, "n obs"], total: int) -> Int[np.ndarray, " replaced"]:
        """Offer the new states to the reservoir; return the slots that changed."""
        new = min(total - self._collected, len(obs))
        draws = generator(self._seed, Purpose.RESERVOIR, total).random(new)
        slot = reservoir_slots(self._offered, draws, len(self._states))
        taken = slot < len(self._states)
        # A later state replaces an earlier one in the same slot: numpy assigns in order.
        self._states[slot[taken]] = obs[len(obs) - new :][taken]
        self._offered += new
        self._collected = total
        return np.unique(slot[taken])

    def _update_outputs(self, replaced: Int[np.ndarray, " replaced"], size: int) -> None:
        """Evaluate old snapshots on the replaced states, and new snapshots on all."""
        self._outputs = _grown(self._outputs, self.count)
        old = self._num_outputs
        for index in range(self.count):
            slots = replaced if index < old else np.arange(size)
            flat = self._snapshots[index]
            for first in range(0, len(slots), EVALUATED_ROWS):
                part = slots[first : first + EVALUATED_ROWS]
                states = padded(self._states[part], EVALUATED_ROWS)
                self._outputs[index, part] = np.asarray(self._evaluate(flat, states))[: len(part)]
        self._num_outputs = self.count

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `restore` needs; outputs are included, so that nothing is recomputed."""
        return {
            "snapshots": self._snapshots[: self.count].copy(),
            "states": self._states.copy(),
            "outputs": self._outputs[: self._num_outputs].copy(),
            "counts": np.array([self._offered, self._collected]),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        self.count, self._num_outputs = len(arrays["snapshots"]), len(arrays["outputs"])
        self._snapshots = _grown(self._snapshots, self.count)
        self._snapshots[: self.count] = arrays["snapshots"]
        self._outputs = _grown(self._outputs, self._num_outputs)
        self._outputs[: self._num_outputs] = arrays["outputs"]
        self._states = arrays["states"].copy()
        self._offered, self._collected = (int(count) for count in arrays["counts"])


def _grown(array: np.ndarray, count: int) -> np.ndarray:
    """Return the array with room for `count` entries, doubling when it must grow."""
    if count <= len(array):
        return array
    grown = np.zeros((max(count, 2 * len(array)), *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
