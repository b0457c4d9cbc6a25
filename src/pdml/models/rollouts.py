"""Imagination: h-step branches of the current policy in the model, and the ring that keeps them on the device.

Lines 9-12 of Algorithm 2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pdml.config.schema import Config, RolloutConfig
from pdml.core.nets import Mlp, choose
from pdml.core.pytree import pytree
from pdml.core.transition import Layout, Transition, pack
from pdml.envs.termination_fns import StepFunction
from pdml.models.ensemble import ModelState, predict, reward_variance

Policy = Callable[[Mlp, Float[Array, "b obs"], PRNGKeyArray], Float[Array, "b action"]]


Ending = Callable[[Any, Array, Array, Array], Float[Array, " b"]]
"""From the model, observations, actions and next observations: how likely each step ends an episode by itself."""


@pytree
class Imagined:
    """Ring of imagined rows. The array has its final size from the start; `capacity` is how much of it is in use."""

    rows: Float[Array, "physical width"]
    capacity: Int[Array, ""]
    position: Int[Array, ""]
    """Slot of the next row."""
    size: Int[Array, ""]


class ImagineStats(NamedTuple):
    """Counts of one call."""

    steps: Int[Array, ""]
    terminated: Int[Array, ""]
    dropped: Int[Array, ""]
    """Rows that were not finite and were not stored."""


def horizon(config: RolloutConfig, epoch: int) -> int:
    """Return the length of branches in an epoch (1000 steps after warm-up)."""
    share = (epoch - config.first_epoch) / (config.last_epoch - config.first_epoch)
    length = config.shortest + share * (config.longest - config.shortest)
    return int(min(max(length, config.shortest), config.longest))


def sizes(config: Config, length: int) -> tuple[int, int]:
    """Return the ring's capacity and the branches a call, for branches of a length.

    The ring holds `retain_epochs` of calls; above `max_rows` fewer branches are started, so that what is kept still
    covers the same time and every depth.
    """
    calls = config.rollouts.retain_epochs * max(1, config.epoch_steps // config.model_every)
    capacity = min(calls * length * config.rollouts.batch, config.rollouts.max_rows)
    branches = max(1, min(config.rollouts.batch, capacity // (calls * length)))
    return max(capacity, branches), branches


def group_rows(config: Config) -> int:
    """Return how many rows each elite steps at once."""
    return min(512, -(-config.rollouts.batch // config.dynamics.num_elites))


def empty(config: Config, layout: Layout) -> Imagined:
    """Return an empty ring, large enough for this configuration."""
    return blank_ring(physical(config), layout.width, capacity=0)


def blank_ring(rows: int, width: int, capacity: int) -> Imagined:
    """Return a ring without anything in it, each number an array of its own, since rings are donated."""
    return Imagined(jnp.zeros((rows, width)), *(jnp.array(value, jnp.int32) for value in (capacity, 0, 0)))


def physical(config: Config) -> int:
    """Return how many rows the ring must have room for, for every length that this configuration reaches."""
    epochs = min((config.steps - config.warmup_steps) // config.epoch_steps, config.rollouts.last_epoch)
    lengths = {horizon(config.rollouts, epoch) for epoch in range(epochs + 1)}
    chunk = group_rows(config) * config.dynamics.num_elites
    return max([chunk, *(sizes(config, length)[0] for length in lengths)])


def resize(ring: Imagined, capacity: Int[Array, ""]) -> Imagined:
    """Change how much of the ring is in use; the oldest kept row comes to slot 0, and the newest rows are kept."""
    kept = jnp.minimum(ring.size, capacity)
    oldest = ring.position - kept
    slot = (oldest + jnp.arange(len(ring.rows), dtype=jnp.int32)) % jnp.maximum(ring.capacity, 1)
    return Imagined(ring.rows[slot], capacity, kept % jnp.maximum(capacity, 1), kept)


def append(ring: Imagined, rows: Float[Array, "n width"], count: Int[Array, ""]) -> Imagined:
    """Write the first `count` rows behind the newest, over the oldest.

    Every slot near the seam asks which new row belongs to it, so nothing is clamped at the end of the ring and
    nothing is scattered row by row, which is slow on a CPU. Needs `n <= physical`.
    """
    n = len(rows)
    data = ring.rows

    def write(data: Array, begin: Int[Array, ""]) -> Array:
        slots = begin + jnp.arange(n, dtype=jnp.int32)
        source = (slots - ring.position) % ring.capacity
        fresh = (source < count) & (slots < ring.capacity)
        old = jax.lax.dynamic_slice_in_dim(data, begin, n)
        new = jnp.where(fresh[:, None], rows[jnp.minimum(source, n - 1)], old)
        return jax.lax.dynamic_update_slice_in_dim(data, new, begin, 0)

    data = write(data, jnp.minimum(ring.position, len(data) - n))
    data = write(data, jnp.zeros((), jnp.int32))
    position = (ring.position + count) % ring.capacity
    return Imagined(data, ring.capacity, position, jnp.minimum(ring.size + count, ring.capacity))


def compact(rows: Float[Array, "n width"], keep: Bool[Array, " n"]) -> Float[Array, "n width"]:
    """Bring the kept rows to the front, in order."""
    return rows[jnp.argsort(~keep, stable=True)]


def grown(ring: Imagined, physical: int) -> Imagined:
    """Return the ring with room for more rows; nothing in it moves."""
    more = max(physical - len(ring.rows), 0)
    return replace(ring, rows=jnp.pad(ring.rows, ((0, more), (0, 0)))) if more else ring


def branched(
    config: Config, layout: Layout, sample: Policy, ending: Ending, reward_of: StepFunction | None = None
) -> Callable[..., tuple]:
    """Build the imagination of MBPO: stochastic branches, each step by a randomly chosen elite.

    Groups are dealt anew at every depth: each row's member is uniform, and each row costs one network. A branch that
    terminates or leaves the finite numbers is dropped, the rest moves up, so dead branches cost nothing.

    Args:
        ending: How likely each step ends an episode; whether it does is drawn.
        reward_of: The reward of each step, where it is known.

    Returns:
        A function (model, actor, ring, starts, number of starts, length, key) -> (ring, stats).
    """
    chunk = config.dynamics.num_elites * group_rows(config)
    penalty = config.rollouts.reward_penalty

    def step(model: ModelState, elites: tuple[Mlp, ...], actor: Mlp, obs: Array, key: PRNGKeyArray) -> Transition:
        act_key, predict_key = jax.random.split(key)
        action = sample(actor, obs, act_key)
        reward, next_obs = predict(model, elites, obs, action, predict_key, config.rollouts.deterministic)
        if penalty > 0:
            reward = reward - penalty * reward_variance(model, obs, action)
        if reward_of is not None:
            reward = reward_of(obs, action, next_obs)
        drawn = jax.random.uniform(jax.random.fold_in(key, 2), reward.shape)
        ends = drawn < ending(model, obs, action, next_obs)
        return Transition(obs, action, reward, next_obs, ends.astype(jnp.float32))

    def imagine(
        model: ModelState,
        actor: Mlp,
        ring: Imagined,
        starts: Float[Array, "most obs"],
        num_starts: Int[Array, ""],
        length: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Imagined, ImagineStats]:
        most = len(starts)
        elites = choose(model.network.members, model.elites)

        def advance(i: Array, carry):
            """Step chunk i; survivors move up over rows that have been read."""
            obs, alive, survivors, ring, stats, depth_key = carry
            begin = i * chunk
            valid = begin + jnp.arange(chunk, dtype=jnp.int32) < alive
            now = jax.lax.dynamic_slice_in_dim(obs, begin, chunk)
            transition = step(model, elites, actor, now, jax.random.fold_in(depth_key, i))
            rows = pack(transition)
            keep = valid & jnp.isfinite(rows).all(axis=-1)
            ring = append(ring, compact(rows, keep), keep.sum(dtype=jnp.int32))
            ended = keep & (transition.terminated > 0.5)
            going = keep & ~ended
            obs = jax.lax.dynamic_update_slice_in_dim(obs, compact(transition.next_obs, going), survivors, 0)
            stats = ImagineStats(
                stats.steps + keep.sum(dtype=jnp.int32),
                stats.terminated + ended.sum(dtype=jnp.int32),
                stats.dropped + (valid & ~keep).sum(dtype=jnp.int32),
            )
            return obs, alive, survivors + going.sum(dtype=jnp.int32), ring, stats, depth_key

        def deepen(depth: Array, carry):
            obs, alive, ring, stats = carry
            chunks = (alive + chunk - 1) // chunk
            state = (obs, alive, jnp.zeros((), jnp.int32), ring, stats, jax.random.fold_in(key, depth))
            obs, _, survivors, ring, stats, _ = jax.lax.fori_loop(0, chunks, advance, state)
            return obs, survivors, ring, stats

        room = -(-most // chunk) * chunk + chunk
        obs = jnp.zeros((room, layout.obs_size)).at[:most].set(starts)
        zero = jnp.zeros((), jnp.int32)
        carry = (obs, num_starts, ring, ImagineStats(zero, zero, zero))
        _, _, ring, stats = jax.lax.fori_loop(0, length, deepen, carry)
        return ring, stats

    return imagine
