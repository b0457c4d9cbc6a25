"""Branched rollouts: h steps of the current policy in the model, from real states. Lines 9-12 of Algorithm 2."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core.nets import Mlp, choose
from pdml.core.transition import Layout, Transition, pack
from pdml.core.types import SampleAction, StepFunction, TerminationProbability
from pdml.data.model_buffer import ModelBuffer, append, compact, group_rows
from pdml.models.ensemble import ModelState, predict, reward_variance


class RolloutStats(NamedTuple):
    """Counts of one call."""

    steps: Int[Array, ""]
    terminated: Int[Array, ""]
    dropped: Int[Array, ""]
    """Transitions that were not finite and were not stored."""


@runtime_checkable
class BranchedRollouts(Protocol):
    """Rolls out the policy in the model and stores the transitions."""

    def __call__(
        self,
        model: ModelState,
        actor: Mlp,
        buffer: ModelBuffer,
        starts: Float[Array | np.ndarray, "most obs"],
        num_starts: Int[Array, ""] | np.int32,
        length: Int[Array, ""] | np.int32,
        key: PRNGKeyArray,
        /,
    ) -> tuple[ModelBuffer, RolloutStats]:
        """Return the buffer with the new transitions, and counts."""
        ...


ModelStep = Callable[[ModelState, tuple[Mlp, ...], Mlp, Float[Array, "b obs"], PRNGKeyArray], Transition]
"""From the model, its elites, the actor and observations: one imagined step each."""


def make_model_step(
    config: Config, sample: SampleAction, terminates: TerminationProbability, reward_of: StepFunction | None
) -> ModelStep:
    """Build one step of the policy in the model."""
    penalty = config.rollouts.reward_penalty

    def step(
        model: ModelState, elites: tuple[Mlp, ...], actor: Mlp, obs: Float[Array, "b obs"], key: PRNGKeyArray
    ) -> Transition:
        act_key, predict_key = jax.random.split(key)
        action = sample(actor, obs, act_key)
        reward, next_obs = predict(model, elites, obs, action, predict_key, config.rollouts.deterministic)
        if penalty > 0:
            reward = reward - penalty * reward_variance(model, obs, action)
        if reward_of is not None:
            reward = reward_of(obs, action, next_obs)
        draw = jax.random.uniform(jax.random.fold_in(key, 2), reward.shape)
        terminated = draw < terminates(model, obs, action, next_obs)
        return Transition(obs, action, reward, next_obs, terminated.astype(jnp.float32))

    return step


class _Depth(NamedTuple):
    """The loop over the chunks of one depth."""

    obs: Float[Array, "room obs"]
    alive: Int[Array, ""] | np.int32
    survivors: Int[Array, ""]
    buffer: ModelBuffer
    stats: RolloutStats
    key: PRNGKeyArray


class _Rollout(NamedTuple):
    """The loop over depths."""

    obs: Float[Array, "room obs"]
    alive: Int[Array, ""] | np.int32
    buffer: ModelBuffer
    stats: RolloutStats


def _store_chunk(depth: _Depth, transition: Transition, valid: Bool[Array, " chunk"]) -> _Depth:
    """Append the transitions of a chunk to the buffer; move the states of surviving branches up."""
    rows = pack(transition)
    keep = valid & jnp.isfinite(rows).all(axis=-1)
    buffer = append(depth.buffer, compact(rows, keep), keep.sum(dtype=jnp.int32))
    ended = keep & (transition.terminated > 0.5)
    going = keep & ~ended
    moved = compact(transition.next_obs, going)
    obs = jax.lax.dynamic_update_slice_in_dim(depth.obs, moved, depth.survivors, 0)
    stats = RolloutStats(
        depth.stats.steps + keep.sum(dtype=jnp.int32),
        depth.stats.terminated + ended.sum(dtype=jnp.int32),
        depth.stats.dropped + (valid & ~keep).sum(dtype=jnp.int32),
    )
    return depth._replace(obs=obs, survivors=depth.survivors + going.sum(dtype=jnp.int32), buffer=buffer, stats=stats)


def branched(
    config: Config,
    layout: Layout,
    sample: SampleAction,
    terminates: TerminationProbability,
    reward_of: StepFunction | None = None,
) -> BranchedRollouts:
    """Build MBPO's rollouts: stochastic branches, each step by a randomly chosen elite.

    Rows are dealt to the elites again at every depth: each row's network is uniform, and each row costs one network.
    A branch that terminates or is not finite is dropped and the others move up, so dead branches cost nothing.

    Args:
        terminates: How likely each step terminates; whether it does is drawn.
        reward_of: The reward of each step, where it is known.
    """
    chunk = config.dynamics.num_elites * group_rows(config)
    step = make_model_step(config, sample, terminates, reward_of)

    def rollouts(
        model: ModelState,
        actor: Mlp,
        buffer: ModelBuffer,
        starts: Float[Array | np.ndarray, "most obs"],
        num_starts: Int[Array, ""] | np.int32,
        length: Int[Array, ""] | np.int32,
        key: PRNGKeyArray,
        /,
    ) -> tuple[ModelBuffer, RolloutStats]:
        elites = choose(model.network.members, model.elites)

        def advance(i: Array, depth: _Depth) -> _Depth:
            """Step chunk i; survivors move up over rows that have been read."""
            begin = i * chunk
            valid = begin + jnp.arange(chunk, dtype=jnp.int32) < depth.alive
            now = jax.lax.dynamic_slice_in_dim(depth.obs, begin, chunk)
            transition = step(model, elites, actor, now, jax.random.fold_in(depth.key, i))
            return _store_chunk(depth, transition, valid)

        def deepen(number: Array, carry: _Rollout) -> _Rollout:
            chunks = (carry.alive + chunk - 1) // chunk
            none, depth_key = jnp.zeros((), jnp.int32), jax.random.fold_in(key, number)
            depth = _Depth(carry.obs, carry.alive, none, carry.buffer, carry.stats, depth_key)
            depth = jax.lax.fori_loop(0, chunks, advance, depth)
            return _Rollout(depth.obs, depth.survivors, depth.buffer, depth.stats)

        room = -(-len(starts) // chunk) * chunk + chunk
        obs = jnp.zeros((room, layout.obs_size)).at[: len(starts)].set(starts)
        zero = jnp.zeros((), jnp.int32)
        carry = _Rollout(obs, num_starts, buffer, RolloutStats(zero, zero, zero))
        carry = jax.lax.fori_loop(0, length, deepen, carry)
        return carry.buffer, carry.stats

    return rollouts
