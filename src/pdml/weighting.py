"""Weightings: how much each real row counts when the model learns and when branches start.

A weighting is a function from `Context` to a probability over the stored rows. It is given the rows' own blocks, so a
weight cannot come apart from its row.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int, Int32

from pdml.config import MixtureConfig


class Context(NamedTuple):
    """All that a weighting may look at; what costs something is a function, called only by who needs it."""

    block: Int32[np.ndarray, " n"]
    block_sizes: Int[np.ndarray, " blocks"]
    shifts: Callable[[], Float[np.ndarray, " blocks"]]
    """Shift of each block's closing policy from the current one, the last entry's own being 0."""


class Weights(NamedTuple):
    """A probability over the stored rows, and what is worth logging about it."""

    rows: Float64[np.ndarray, " n"]
    metrics: dict[str, float]


Weighting = Callable[[Context], Weights]


def uniform() -> Weighting:
    """Weigh every row alike: MBPO [Janner et al. 2019]."""

    def weigh(context: Context) -> Weights:
        rows = np.full(len(context.block), 1.0 / len(context.block))
        return Weights(rows, _describe(rows, context))

    return weigh


def policy_mixture(config: MixtureConfig) -> Weighting:
    r"""Weigh each block by how near its policy is to the current one: PDML, Eq. (4)-(5).

    Departs from the paper where it cannot be taken literally: Eq. (4) is normalised over $i < k$, since $\xi_k = 0$;
    the norm is L1; the warm-up's rows, which no Gaussian policy collected, count together as one block with the
    weight of the first policy, as in the released code.
    """
    alpha = config.rate / (1.0 - config.rate)

    def weigh(context: Context) -> Weights:
        current = len(context.block_sizes) - 1
        if current < config.first_block:
            result = uniform()(context)
            return Weights(result.rows, result.metrics | _shift_metrics(None, None))
        shifts = np.maximum(np.asarray(context.shifts(), np.float64), config.floor)
        stored = np.zeros(current + 1, bool)
        stored[np.unique(context.block)] = True
        blocks = mixture_weights(shifts[1:-1], alpha, stored)
        rows = spread(blocks, context)
        return Weights(rows, _describe(rows, context) | _shift_metrics(blocks, shifts))

    return weigh


def mixture_weights(
    shifts: Float[np.ndarray, " historical"], alpha: float, stored: np.ndarray | None = None
) -> Float64[np.ndarray, " blocks"]:
    r"""Return the share of each block: warm-up, historical policies, current policy.

    $u_i = \xi_i^{-1} / \sum_{n<m} \xi_n^{-1}$ (Eq. 4), $w_m = \max(\alpha \sum_i u_i, \max_i u_i)$ (Eq. 5), then L1.

    Args:
        shifts: $\xi_1 \dots \xi_{m-1}$, positive.
        alpha: $r / (1 - r)$.
        stored: For each block, warm-up first, whether any of its rows is left; emptied blocks take no part.
    """
    if stored is None:
        stored = np.ones(len(shifts) + 2, bool)
    u = np.where(stored[1:-1], 1.0 / shifts.astype(np.float64), 0.0)
    if u.sum() == 0:  # only the newest block is left
        u = np.zeros_like(u)
        newest, warmup = 1.0, 0.0
    else:
        u = u / u.sum()
        newest, warmup = max(alpha * u.sum(), u.max()), (u[0] if stored[0] else 0.0)
    weights = np.concatenate([[warmup], u, [newest]])
    return weights / weights.sum()


def spread(blocks: Float64[np.ndarray, " blocks"], context: Context) -> Float64[np.ndarray, " n"]:
    """Spread each block's share over its rows: share / (rows when collected), renormalised over what is stored."""
    rows = (blocks / np.maximum(context.block_sizes, 1))[context.block]
    return rows / rows.sum()


def _describe(rows: np.ndarray, context: Context) -> dict[str, float]:
    """Return the effective sample size and the newest block's share."""
    newest = context.block == context.block.max()
    return {
        "weights/effective_size": float(1.0 / np.square(rows).sum()),
        "weights/newest_share": float(rows[newest].sum()),
    }


def _shift_metrics(blocks: np.ndarray | None, shifts: np.ndarray | None) -> dict[str, float]:
    r"""Return the term of Theorem 1 that PDML shrinks, $\sum w_i \xi_i$, its uniform value, and the shifts' range.

    Over $i = 1 \dots m$ with $\xi_m = 0$; the warm-up block is left out. Not a number before the weights begin.
    """
    if blocks is None or shifts is None:
        names = ("mixture_shift", "uniform_shift", "shift_min", "shift_max")
        return {f"weights/{name}": float("nan") for name in names}
    policies = np.concatenate([shifts[1:-1], [0.0]])
    weights = blocks[1:] / blocks[1:].sum()
    return {
        "weights/mixture_shift": float(weights @ policies),
        "weights/uniform_shift": float(policies.mean()),
        "weights/shift_min": float(shifts[1:-1].min()),
        "weights/shift_max": float(shifts[1:-1].max()),
    }
