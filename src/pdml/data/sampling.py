"""The weighted sampler: draws rows with replacement in proportion to their weights."""

import numpy as np
from jaxtyping import Float, Float64, Int


class Sampler:
    """Draws rows ∝ weight, exact to float64. The cost depends on the number of runs of equal weights.

    Neighbouring rows of equal weight form a run (a block of one policy, or all rows when weights are uniform).
    A draw picks the run by its total weight and, with the remainder of the same number, the row inside it.

    Args:
        rows: Row numbers that may be drawn.
        weights: Weight of each of them, not negative, not all zero.
    """

    def __init__(self, rows: Int[np.ndarray, " n"], weights: Float[np.ndarray, " n"]):
        if not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
            raise ValueError("weights must be finite, not negative and not all zero")
        first = np.flatnonzero(np.concatenate([[True], weights[1:] != weights[:-1]]))
        length = np.diff(np.append(first, len(weights)))
        keep = weights[first] > 0
        self._rows = rows
        self._first, self._length = first[keep], length[keep]
        self._weight = weights[self._first].astype(np.float64)
        self._end = np.cumsum(self._weight * self._length)

    def draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Int[np.ndarray, "..."]:
        """Draw row numbers."""
        return self.rows_at(generator.random(shape))

    def rows_at(self, unit: Float64[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
        """Return the rows whose share of [0, 1) contains the given numbers."""
        u = unit * self._end[-1]
        run = np.minimum(np.searchsorted(self._end, u, side="right"), len(self._end) - 1)
        begin = self._end[run] - self._weight[run] * self._length[run]
        inside = ((u - begin) / self._weight[run]).astype(np.int64)
        return self._rows[self._first[run] + np.clip(inside, 0, self._length[run] - 1)]


GROUP = 64
"""Rows per group of `draw_changing`."""


def draw_changing(
    weights: Float64[np.ndarray, " n"], shape: tuple[int, int], generator: np.random.Generator
) -> Int[np.ndarray, "updates b"]:
    """Sample row numbers by positive weights that change on every call.

    First a group of rows by its sum, then a row inside it: only the groups' sums are computed over all rows.
    """
    whole = np.zeros(-(-len(weights) // GROUP) * GROUP)
    whole[: len(weights)] = weights
    groups = whole.reshape(-1, GROUP)
    end = np.cumsum(groups.sum(axis=1))
    u = generator.random(shape).ravel() * end[-1]
    group = np.minimum(np.searchsorted(end, u, side="right"), len(end) - 1)
    inside = np.cumsum(groups[group], axis=1)
    rest = np.minimum(u - (end[group] - inside[:, -1]), inside[:, -1] * (1.0 - 1e-12))
    return (group * GROUP + (inside <= rest[:, None]).sum(axis=1)).reshape(shape)
