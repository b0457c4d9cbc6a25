"""How the rows of an agent's minibatches are chosen from the replay buffer and the model buffer."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from pdml.config.schema import Config
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, generator
from pdml.data.model_buffer import ModelBuffer
from pdml.data.replay import Replay
from pdml.data.sampling import draw_changing


class Minibatches(NamedTuple):
    """Which rows the updates of a real step learn from; the real ones come first in each minibatch."""

    real: Int[np.ndarray, "updates real"]
    """Slots of the replay buffer."""
    imagined: Int[np.ndarray, "updates imagined"] | None
    """Slots of the model buffer; None: uniform, drawn on the device."""
    importance: Float32[np.ndarray, "updates b"] | None
    """The weight of each row in the losses; None: all rows have the same."""


class BufferPlace(NamedTuple):
    """Where the rows of a model buffer are, known on the host."""

    capacity: int
    position: int
    size: int

    def slots(self, newest: int) -> Int[np.ndarray, " newest"]:
        """Return the slots of the newest rows, the oldest of them first."""
        return (self.position - newest + np.arange(newest)) % max(self.capacity, 1)


@runtime_checkable
class MinibatchSampler(Protocol):
    """Chooses the rows of minibatches, and may use the priorities that the agent gives them."""

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose the rows of all updates that follow a real step."""
        ...

    def update_priorities(self, chosen: Minibatches, priorities: Float32[np.ndarray, "updates b"] | None) -> None:
        """Store the agent's priorities of the rows that were chosen."""
        ...

    def note_new_rows(self, buffer: ModelBuffer, appended: int) -> None:
        """Take note of rows that were appended to the model buffer."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `restore` needs."""
        ...

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        ...


class UniformMinibatches:
    """Draws rows uniformly: real ones on the host, imagined ones on the device."""

    def __init__(self, config: Config, real_rows: int):
        self._config, self._real_rows = config, real_rows

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose real rows uniformly."""
        rng = generator(self._config.seed, Purpose.REAL_ROWS, step)
        shape = (self._config.updates_per_step, self._real_rows)
        return Minibatches(rng.integers(replay.size, size=shape), None, None)

    def update_priorities(self, chosen: Minibatches, priorities: Float32[np.ndarray, "updates b"] | None) -> None:
        """Do nothing: there are no priorities."""

    def note_new_rows(self, buffer: ModelBuffer, appended: int) -> None:
        """Do nothing: the device draws imagined rows."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return nothing: there is no state."""
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Do nothing: there is no state."""


class PrioritisedMinibatches:
    r"""Draws rows in proportion to $(p + \epsilon)^a$, with importance $(N P)^{-1}$ over the minibatch's largest.

    [Schaul et al. 2016; Oh et al. 2022]. Real and imagined rows are drawn separately. A new row gets the largest
    weight of its kind so far. Departs from the authors' code in one thing: priorities are read before and written
    after the updates of a real step, not between them.
    """

    def __init__(self, config: Config, real_rows: int):
        self._config, self._real_rows = config, real_rows
        self._real = np.zeros(config.replay_capacity)
        """The weight of each slot of the replay buffer: (priority + floor) to the power."""
        self._real_count = 0
        self._imagined = np.zeros(0)
        """The weight of each slot of the model buffer."""
        self._place = BufferPlace(0, 0, 0)
        self._largest_real = self._largest_imagined = 1.0

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose real and imagined rows by priority."""
        new = np.arange(self._real_count, replay.count) % replay.capacity
        self._real[new] = self._largest_real
        self._real_count = replay.count
        updates, real_rows = self._config.updates_per_step, self._real_rows
        rng = generator(self._config.seed, Purpose.REAL_ROWS, step)
        real, real_importance = draw_prioritised(self._real[: replay.size], (updates, real_rows), rng)
        rng = generator(self._config.seed, Purpose.IMAGINED_ROWS, step)
        rest = (updates, self._config.batch_size - real_rows)
        imagined, importance = draw_prioritised(self._imagined[: self._place.size], rest, rng)
        return Minibatches(real, imagined, np.concatenate([real_importance, importance], axis=1))

    def update_priorities(self, chosen: Minibatches, priorities: Float32[np.ndarray, "updates b"] | None) -> None:
        """Store the priorities of the chosen rows. A row that was chosen twice keeps the later one."""
        assert priorities is not None
        assert chosen.imagined is not None
        if not np.isfinite(priorities).all():
            raise Diverged("the priority of a row is not finite: the critics have diverged")
        options, real_rows = self._config.priority, chosen.real.shape[1]
        weights = np.power(priorities.astype(np.float64) + options.floor, options.exponent)
        self._real[chosen.real] = weights[:, :real_rows]
        self._imagined[chosen.imagined] = weights[:, real_rows:]
        self._largest_real = max(self._largest_real, float(weights[:, :real_rows].max(initial=0.0)))
        self._largest_imagined = max(self._largest_imagined, float(weights[:, real_rows:].max(initial=0.0)))

    def note_new_rows(self, buffer: ModelBuffer, appended: int) -> None:
        """Follow the buffer: old rows keep their priorities wherever they are now, new rows get the largest."""
        old, place = self._place, BufferPlace(int(buffer.capacity), int(buffer.position), int(buffer.size))
        kept = max(place.size - appended, 0)
        weights = np.concatenate([self._imagined[old.slots(kept)], np.full(place.size - kept, self._largest_imagined)])
        self._imagined = np.zeros(place.capacity)
        self._imagined[place.slots(place.size)] = weights
        self._place = place

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the weights, and where their rows are."""
        counts = np.array([self._real_count, *self._place])
        filled = min(self._real_count, len(self._real))
        return {
            "real": self._real[:filled].copy(),
            "imagined": self._imagined.copy(),
            "largest": np.array([self._largest_real, self._largest_imagined]),
            "counts": counts,
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        self._real[: len(arrays["real"])] = arrays["real"]
        self._imagined = arrays["imagined"].copy()
        self._largest_real, self._largest_imagined = (float(weight) for weight in arrays["largest"])
        self._real_count, *place = (int(count) for count in arrays["counts"])
        self._place = BufferPlace(*place)


def draw_prioritised(
    weights: Float64[np.ndarray, " n"], shape: tuple[int, int], rng: np.random.Generator
) -> tuple[Int[np.ndarray, "updates b"], Float32[np.ndarray, "updates b"]]:
    """Draw rows in proportion to their weights; return them and their importance."""
    rows = draw_changing(weights, shape, rng)
    importance = 1.0 / weights[rows]
    largest: Float[np.ndarray, "updates 1"] = importance.max(axis=1, keepdims=True, initial=0.0)
    return rows, (importance / np.maximum(largest, 1e-300)).astype(np.float32)
