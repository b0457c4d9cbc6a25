"""Weights by the policy that collected a row: PDML's mixture, and its variant that decays with age.

[Wang et al. 2023, Sec. 4.1, Eq. (4)-(5)].
"""

import numpy as np
from jaxtyping import Bool, Float, Float64

from pdml.config.schema import MixtureConfig
from pdml.core.types import Metrics
from pdml.weighting.base import Context, Weighting, Weights, num_policies, same_for_both, uniform


def policy_mixture(config: MixtureConfig) -> Weighting:
    r"""Weight each block by how near its policy is to the current one: PDML, Eq. (4)-(5), $u_i \propto \xi_i^{-1}$."""

    def weigh(context: Context) -> Weights:
        if num_policies(context) < config.first_block:
            weights, blocks, shifts = uniform()(context), None, None
        else:
            every = np.asarray(context.shifts(), np.float64)
            shifts = np.maximum(every, config.floor)[1:-1]
            weights, blocks = _over_blocks(1.0 / shifts, config, context)
            weights = weights._replace(shifts=np.concatenate([np.full(context.leading - 1, np.nan), every]))
        return weights._replace(metrics=weights.metrics | _shift_metrics(blocks, shifts))

    return weigh


def exponential_decay(config: MixtureConfig) -> Weighting:
    r"""Weight each block by the age of its policy, $u_i \propto \lambda^{m-i}$, then as PDML: the decay of its Sec. 5.

    With $\lambda = 1$ all blocks have the same weight. This is not MBPO, which is uniform over rows.
    """

    def weigh(context: Context) -> Weights:
        if num_policies(context) < config.first_block:
            return uniform()(context)
        return _over_blocks(config.decay ** np.arange(num_policies(context) - 2, -1, -1.0), config, context)[0]

    return weigh


def _over_blocks(
    u: Float64[np.ndarray, " historical"], config: MixtureConfig, context: Context
) -> tuple[Weights, Float64[np.ndarray, " blocks"]]:
    """Return the weights of rows and the shares of blocks, given the proportions of the historical policies."""
    stored = np.zeros(len(context.block_sizes), bool)
    stored[np.unique(context.block)] = True
    blocks = mixture_weights(u, config.rate / (1.0 - config.rate), stored)
    weights = same_for_both(spread(blocks, context), context)
    if config.misaligned:
        weights = weights._replace(model=context.random().permutation(weights.model))
    return weights, blocks


def mixture_weights(
    u: Float[np.ndarray, " historical"], alpha: float, stored: Bool[np.ndarray, " blocks"] | None = None
) -> Float64[np.ndarray, " blocks"]:
    r"""Return the share of each block: warm-up, historical policies, current policy.

    $u_i / \sum_{n<m} u_n$ (Eq. 4), $w_m = \max(\alpha \sum_i u_i, \max_i u_i)$ (Eq. 5), then L1.

    Departs from the paper where it cannot be taken literally: Eq. (4) is normalised over $i < k$, since $\xi_k = 0$;
    the norm is L1; the warm-up's rows, which no Gaussian policy collected, form one block with the weight of the
    first policy, as in the released code. So do transitions from before the run.

    Args:
        u: Proportions of the policies $1 \dots m-1$, positive.
        alpha: $r / (1 - r)$.
        stored: For each block, warm-up first, whether any of its rows is left; emptied blocks take no part. Entries
            beyond the policies and the warm-up are blocks before the warm-up.
    """
    if stored is None:
        stored = np.ones(len(u) + 2, bool)
    leading = len(stored) - len(u) - 1
    u = np.where(stored[leading:-1], u.astype(np.float64), 0.0)
    if u.sum() == 0:  # only the newest block is left
        u = np.zeros_like(u)
        newest, before = 1.0, np.zeros(leading)
    else:
        u = u / u.sum()
        newest, before = max(alpha * u.sum(), u.max()), np.where(stored[:leading], u[0], 0.0)
    weights = np.concatenate([before, u, [newest]])
    return weights / weights.sum()


def spread(blocks: Float64[np.ndarray, " blocks"], context: Context) -> Float64[np.ndarray, " n"]:
    """Spread each block's share over its rows: share / (rows when collected), renormalised over the stored rows."""
    rows = (blocks / np.maximum(context.block_sizes, 1))[context.block]
    return rows / rows.sum()


def _shift_metrics(
    blocks: Float64[np.ndarray, " blocks"] | None, shifts: Float64[np.ndarray, " historical"] | None
) -> Metrics:
    r"""Return the term of Theorem 1 that PDML shrinks, $\sum w_i \xi_i$, its uniform value, and the shifts' range.

    Over $i = 1 \dots m$ with $\xi_m = 0$; the warm-up block is left out. NaN while the weights are still uniform.
    """
    if blocks is None or shifts is None:
        names = ("mixture_shift", "uniform_shift", "shift_min", "shift_max")
        return {f"weights/{name}": float("nan") for name in names}
    policies = np.concatenate([shifts, [0.0]])
    weights = blocks[-len(policies) :] / blocks[-len(policies) :].sum()
    return {
        "weights/mixture_shift": float(weights @ policies),
        "weights/uniform_shift": float(policies.mean()),
        "weights/shift_min": float(shifts.min()),
        "weights/shift_max": float(shifts.max()),
    }
