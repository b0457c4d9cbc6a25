"""The model buffer: a ring of imagined transitions, or states, that stays on the device."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pdml.config.schema import Config, RolloutConfig
from pdml.core.pytree import pytree
from pdml.core.transition import Layout


@pytree
class ModelBuffer:
    """A ring. The array has its final size from the start; `capacity` is how much of it is in use."""

    rows: Float[Array, "physical width"]
    capacity: Int[Array, ""]
    position: Int[Array, ""]
    """Slot of the next row."""
    size: Int[Array, ""]


def blank_buffer(rows: int, width: int, capacity: int) -> ModelBuffer:
    """Return an empty buffer. Each number is an array of its own, since buffers are donated."""
    return ModelBuffer(jnp.zeros((rows, width)), *(jnp.array(value, jnp.int32) for value in (capacity, 0, 0)))


def empty_buffer(config: Config, layout: Layout, steps: int) -> ModelBuffer:
    """Return an empty buffer with room for all that branched rollouts keep in a run of so many steps."""
    return blank_buffer(buffer_rows(config, steps), layout.width, capacity=0)


def branch_length(config: RolloutConfig, epoch: int) -> int:
    """Return the length of branches in an epoch, h in the paper."""
    share = (epoch - config.first_epoch) / (config.last_epoch - config.first_epoch)
    length = config.shortest + share * (config.longest - config.shortest)
    return int(min(max(length, config.shortest), config.longest))


def branch_sizes(config: Config, length: int) -> tuple[int, int]:
    """Return the buffer's capacity and the branches per fit, for branches of a length.

    The buffer holds `retain_epochs` of fits; above `max_rows` fewer branches are started, so that what is kept still
    covers the same time and every depth.
    """
    fits = config.rollouts.retain_epochs * max(1, config.epoch_steps // config.model_every)
    capacity = min(fits * length * config.rollouts.batch, config.rollouts.max_rows)
    branches = max(1, min(config.rollouts.batch, capacity // (fits * length)))
    return max(capacity, branches), branches


def group_rows(config: Config) -> int:
    """Return how many rows each elite steps at once."""
    return min(512, -(-config.rollouts.batch // config.dynamics.num_elites))


def buffer_rows(config: Config, steps: int) -> int:
    """Return how many rows the buffer needs, for every branch length that a run of so many steps reaches."""
    epochs = min(config.schedule.epoch(steps), config.rollouts.last_epoch)
    lengths = {branch_length(config.rollouts, epoch) for epoch in range(epochs + 1)}
    chunk = group_rows(config) * config.dynamics.num_elites
    return max([chunk, *(branch_sizes(config, length)[0] for length in lengths)])


def resize(buffer: ModelBuffer, capacity: Int[Array, ""]) -> ModelBuffer:
    """Change how much of the buffer is in use; the newest rows are kept, the oldest of them moves to slot 0."""
    kept = jnp.minimum(buffer.size, capacity)
    oldest = buffer.position - kept
    slot = (oldest + jnp.arange(len(buffer.rows), dtype=jnp.int32)) % jnp.maximum(buffer.capacity, 1)
    return ModelBuffer(buffer.rows[slot], capacity, kept % jnp.maximum(capacity, 1), kept)


def append(buffer: ModelBuffer, rows: Float[Array, "n width"], count: Int[Array, ""]) -> ModelBuffer:
    """Write the first `count` rows after the newest, over the oldest.

    Every slot near the seam asks which new row belongs to it, so nothing is clamped at the end of the ring and
    nothing is scattered row by row, which is slow on a CPU. Needs `n <= physical`.
    """
    n = len(rows)
    data = buffer.rows

    def write(data: Array, begin: Int[Array, ""]) -> Array:
        slots = begin + jnp.arange(n, dtype=jnp.int32)
        source = (slots - buffer.position) % buffer.capacity
        fresh = (source < count) & (slots < buffer.capacity)
        old = jax.lax.dynamic_slice_in_dim(data, begin, n)
        new = jnp.where(fresh[:, None], rows[jnp.minimum(source, n - 1)], old)
        return jax.lax.dynamic_update_slice_in_dim(data, new, begin, 0)

    data = write(data, jnp.minimum(buffer.position, len(data) - n))
    data = write(data, jnp.zeros((), jnp.int32))
    position = (buffer.position + count) % buffer.capacity
    return ModelBuffer(data, buffer.capacity, position, jnp.minimum(buffer.size + count, buffer.capacity))


def compact(rows: Float[Array, "n width"], keep: Bool[Array, " n"]) -> Float[Array, "n width"]:
    """Move the kept rows to the front, in order."""
    return rows[jnp.argsort(~keep, stable=True)]


def with_room(buffer: ModelBuffer, rows: int) -> ModelBuffer:
    """Return the buffer with room for at least so many rows; nothing in it moves."""
    more = max(rows - len(buffer.rows), 0)
    return replace(buffer, rows=jnp.pad(buffer.rows, ((0, more), (0, 0)))) if more else buffer
