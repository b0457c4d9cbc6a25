"""How the rows of an agent's minibatches are chosen among real and imagined ones."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from pdml.config.schema import Config
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, generator
from pdml.data.replay import Replay
from pdml.data.sampling import draw_changing
from pdml.models.rollouts import Imagined


class Minibatches(NamedTuple):
    """Which rows the updates of a real step learn from; the real ones come first in each minibatch."""

    real: Int[np.ndarray, "updates real"]
    """Slots of the replay."""
    imagined: Int[np.ndarray, "updates imagined"] | None
    """Slots of the ring; None: uniform, drawn on the device."""
    importance: Float32[np.ndarray, "updates b"] | None
    """By how much each row counts; None: all alike."""


class RingPlace(NamedTuple):
    """Where the rows of a ring stand, on the host."""

    capacity: int
    position: int
    size: int

    def slots(self, newest: int) -> Int[np.ndarray, " newest"]:
        """Return the slots of the newest rows, oldest of them first."""
        return (self.position - newest + np.arange(newest)) % max(self.capacity, 1)


@runtime_checkable
class Mixing(Protocol):
    """The seam: chooses minibatches, and may learn from what the agent says of each row."""

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose the rows of all updates after a real step."""
        ...

    def learn(self, chosen: Minibatches, priorities: Float32[np.ndarray, "updates b"] | None) -> None:
        """Take over the priorities of the rows that were chosen."""
        ...

    def imagined(self, ring: Imagined, appended: int) -> None:
        """Take notice of new imagined rows."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `restore` needs."""
        ...

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        ...


class Uniform:
    """Rows alike: real ones by the host, imagined ones by the device."""

    def __init__(self, config: Config, real_rows: int):
        self._config, self._real_rows = config, real_rows

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose real rows uniformly."""
        drawn = generator(self._config.seed, Purpose.REAL_ROWS, step)
        shape = (self._config.updates_per_step, self._real_rows)
        return Minibatches(drawn.integers(replay.size, size=shape), None, None)

    def learn(self, chosen: Minibatches, priorities: np.ndarray | None) -> None:
        """Learn nothing."""

    def imagined(self, ring: Imagined, appended: int) -> None:
        """Need not know."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return nothing: there is no state."""
        return {}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over nothing."""


class Prioritised:
    r"""Rows in proportion to $(p + \epsilon)^a$, with importance $(N P)^{-1}$ over the largest of its minibatch.

    [Schaul et al. 2016; Oh et al. 2022]: real and imagined rows by themselves, each new row with the largest weight
    of its kind so far. Departs from the authors' code in one thing: priorities are read before and written after the
    updates of a real step, not between them.
    """

    def __init__(self, config: Config, real_rows: int):
        self._config, self._real_rows = config, real_rows
        self._real = np.zeros(config.replay_capacity)
        """The weight of each slot, priority plus floor to the power; of the ring likewise."""
        self._real_count = 0
        self._imagined = np.zeros(0)
        self._place = RingPlace(0, 0, 0)
        self._largest_real = self._largest_imagined = 1.0

    def choose(self, replay: Replay, step: int) -> Minibatches:
        """Choose rows of both kinds by priority."""
        new = np.arange(self._real_count, replay.count) % replay.capacity
        self._real[new] = self._largest_real
        self._real_count = replay.count
        updates, real_rows = self._config.updates_per_step, self._real_rows
        drawn = generator(self._config.seed, Purpose.REAL_ROWS, step)
        real, real_importance = prioritised(self._real[: replay.size], (updates, real_rows), drawn)
        drawn = generator(self._config.seed, Purpose.IMAGINED_ROWS, step)
        rest = (updates, self._config.batch_size - real_rows)
        imagined, importance = prioritised(self._imagined[: self._place.size], rest, drawn)
        return Minibatches(real, imagined, np.concatenate([real_importance, importance], axis=1))

    def learn(self, chosen: Minibatches, priorities: np.ndarray | None) -> None:
        """Write the priorities of the chosen rows; of a row that was chosen twice, the later one."""
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

    def imagined(self, ring: Imagined, appended: int) -> None:
        """Follow the ring: old rows keep their priorities wherever they stand now, new rows take the largest."""
        old, place = self._place, RingPlace(int(ring.capacity), int(ring.position), int(ring.size))
        kept = max(place.size - appended, 0)
        weights = np.concatenate([self._imagined[old.slots(kept)], np.full(place.size - kept, self._largest_imagined)])
        self._imagined = np.zeros(place.capacity)
        self._imagined[place.slots(place.size)] = weights
        self._place = place

    def arrays(self) -> dict[str, np.ndarray]:
        """Return priorities and places."""
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
        self._place = RingPlace(*place)


def prioritised(
    weights: Float64[np.ndarray, " n"], shape: tuple[int, int], drawn: np.random.Generator
) -> tuple[Int[np.ndarray, "updates b"], Float32[np.ndarray, "updates b"]]:
    """Draw rows in proportion to their weights; return them and their importance."""
    rows = draw_changing(weights, shape, drawn)
    importance = 1.0 / weights[rows]
    largest: Float[np.ndarray, "updates 1"] = importance.max(axis=1, keepdims=True, initial=0.0)
    return rows, (importance / np.maximum(largest, 1e-300)).astype(np.float32)
