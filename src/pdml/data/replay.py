"""The replay buffer: real transitions on the host, in the order of collection, each with the block it belongs to."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Int32

from pdml.core.transition import Layout


class RealRows(NamedTuple):
    """The stored transitions, oldest first. Weights are computed from `block`, so they stay with their rows."""

    rows: Float32[np.ndarray, "n width"]
    block: Int32[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]
    """How many transitions were collected before each of these: its permanent number."""
    block_sizes: Int[np.ndarray, " blocks"]
    """Size of each block when it was collected, whether or not its rows are still stored."""


class Replay:
    """A ring of real transitions, each of which knows the block (policy) that collected it."""

    def __init__(self, layout: Layout, capacity: int):
        self.layout = layout
        self.capacity = capacity
        self.count = 0
        """Rows ever added."""
        self._rows = np.zeros((capacity, layout.width), np.float32)
        self._block = np.zeros(capacity, np.int32)
        self._block_sizes: list[int] = []

    @property
    def size(self) -> int:
        """Rows stored."""
        return min(self.count, self.capacity)

    def add(
        self,
        obs: Float32[np.ndarray, " obs"],
        action: Float32[np.ndarray, " action"],
        reward: float,
        next_obs: Float32[np.ndarray, " obs"],
        terminated: bool,
        block: int,
    ) -> None:
        """Append one transition; block numbers start at 0 and never decrease."""
        slot = self.count % self.capacity
        row, start = self._rows[slot], self.layout.obs_size + self.layout.action_size
        row[: self.layout.obs_size] = obs
        row[self.layout.obs_size : start] = action
        row[start] = reward
        row[start + 1 : -1] = next_obs
        row[-1] = terminated
        self._block[slot] = block
        while len(self._block_sizes) <= block:
            self._block_sizes.append(0)
        self._block_sizes[block] += 1
        self.count += 1

    def extend(self, rows: Float32[np.ndarray, "n width"]) -> None:
        """Start with transitions that were collected before, as block 0; they must fit."""
        if self.count or len(rows) > self.capacity:
            raise ValueError(f"{len(rows)} rows do not fit before {self.count} of {self.capacity}")
        self._rows[: len(rows)] = rows
        self._block_sizes, self.count = [len(rows)], len(rows)

    def stored(self) -> RealRows:
        """Return copies of all stored rows, oldest first."""
        number = np.arange(self.count - self.size, self.count)
        slot = number % self.capacity
        return RealRows(self._rows[slot], self._block[slot], number, np.array(self._block_sizes))

    def take(self, slots: Int[np.ndarray, "..."]) -> Float32[np.ndarray, "... width"]:
        """Return copies of the rows in some slots, all below `size`."""
        return self._rows[slots]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `restore` needs."""
        stored = self.stored()
        count = np.array([self.count])
        return {"rows": stored.rows, "block": stored.block, "block_sizes": stored.block_sizes, "count": count}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        self.count = int(arrays["count"][0])
        self._block_sizes = [int(size) for size in arrays["block_sizes"]]
        slot = np.arange(self.count - self.size, self.count) % self.capacity
        self._rows[slot] = arrays["rows"]
        self._block[slot] = arrays["block"]
