"""Weightings: how much each real row counts when the model learns and when branches start.

A weighting is a function from `Context` to a probability over the stored rows. It is given the rows' own blocks and
scores, so a weight cannot come apart from its row.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int, Int32

from pdml.config.schema import MixtureConfig, PriorityConfig

Scores = Callable[[], Float[np.ndarray, " n"]]


class Context(NamedTuple):
    """All that a weighting may look at; what costs something is a function, called only by who needs it."""

    block: Int32[np.ndarray, " n"]
    block_sizes: Int[np.ndarray, " blocks"]
    shifts: Callable[[], Float[np.ndarray, " blocks"]]
    """Shift of each block's closing policy from the current one, the last entry's own being 0."""
    td_errors: Scores
    """Soft target minus value, of each row, by the current critics."""
    values: Scores
    """Least value of each row's state and action, by the current critics."""
    model_errors: Scores
    """Mean squared error of each row, by the model as it is before the fit."""
    random: Callable[[], np.random.Generator]
    leading: int = 1
    """Blocks at the front that no policy of this run collected: rows handed in before, if any, and the warm-up."""


class Weights(NamedTuple):
    """Two probabilities over the stored rows, and what is worth logging about the weighting."""

    model: Float64[np.ndarray, " n"]
    """For the model's minibatches."""
    starts: Float64[np.ndarray, " n"]
    """For the states where branches start."""
    metrics: dict[str, float]
    shifts: Float64[np.ndarray, " blocks"] | None = None
    """Of each block's policy from the current one, where the weighting is made from them."""


Weighting = Callable[[Context], Weights]


def uniform() -> Weighting:
    """Weigh every row alike: MBPO [Janner et al. 2019]."""

    def weigh(context: Context) -> Weights:
        return _alike_for_both(np.full(len(context.block), 1.0 / len(context.block)), context)

    return weigh


def applied_to(weighting: Weighting, use: str) -> Weighting:
    """Use a weighting for `both`, for the `model`'s minibatches only, for the `starts` only, or for `none`."""
    if use in ("both", "none"):
        return weighting if use == "both" else uniform()

    def weigh(context: Context) -> Weights:
        weights, plain = weighting(context), uniform()(context)
        model = weights.model if use == "model" else plain.model
        starts = weights.starts if use == "starts" else plain.starts
        return weights._replace(model=model, starts=starts)

    return weigh


def policy_mixture(config: MixtureConfig) -> Weighting:
    r"""Weigh each block by how near its policy is to the current one: PDML, Eq. (4)-(5), $u_i \propto \xi_i^{-1}$."""

    def weigh(context: Context) -> Weights:
        if _policies(context) < config.first_block:
            weights, blocks, shifts = uniform()(context), None, None
        else:
            every = np.asarray(context.shifts(), np.float64)
            shifts = np.maximum(every, config.floor)[1:-1]
            weights, blocks = _over_blocks(1.0 / shifts, config, context)
            weights = weights._replace(shifts=np.concatenate([np.full(context.leading - 1, np.nan), every]))
        return weights._replace(metrics=weights.metrics | _shift_metrics(blocks, shifts))

    return weigh


def exponential_decay(config: MixtureConfig) -> Weighting:
    r"""Weigh each block by the age of its policy, $u_i \propto \lambda^{m-i}$, then as PDML: the decay of its Sec. 5.

    With $\lambda = 1$ all blocks weigh alike, which is not MBPO: MBPO is uniform over rows.
    """

    def weigh(context: Context) -> Weights:
        if _policies(context) < config.first_block:
            return uniform()(context)
        return _over_blocks(config.decay ** np.arange(_policies(context) - 2, -1, -1.0), config, context)[0]

    return weigh


def temporal_difference(config: PriorityConfig) -> Weighting:
    r"""Weigh each row by $(|\delta| + \epsilon)^a$ [Schaul et al. 2016], without importance weights.

    The paper says no more than that samples weigh by their error; importance weights would undo it in expectation.
    """
    return _scored(lambda context: np.power(np.abs(context.td_errors()) + config.floor, config.exponent))


def highest_values(config: PriorityConfig) -> Weighting:
    """Keep the rows of the highest value, a quarter of all, and weigh these alike: RECALL as the paper describes it."""

    def score(context: Context) -> Float64[np.ndarray, " n"]:
        values = context.values()
        kept = np.argsort(-values, kind="stable")[: math.ceil(round(config.share * len(values), 9))]
        weights = np.zeros(len(values))
        weights[kept] = 1.0
        return weights

    return _scored(score)


def temporal_difference_and_model(config: PriorityConfig) -> Weighting:
    r"""Weigh rows by $(\delta^2 / \overline{\delta^2} + e / \overline e + \epsilon)^a$: MaPER as the paper words it.

    Both errors are divided by their means, since they have no unit in common.
    """

    def score(context: Context) -> Float64[np.ndarray, " n"]:
        terms = [np.square(context.td_errors()), context.model_errors()]
        total = sum(term / max(term.mean(), 1e-300) for term in terms)
        return np.power(total + config.floor, config.exponent)

    return _scored(score)


def _scored(score: Callable[[Context], Float64[np.ndarray, " n"]]) -> Weighting:
    """Weigh rows in proportion to a score; alike before anything has been learned that could score them."""

    def weigh(context: Context) -> Weights:
        if _policies(context) == 0:
            return uniform()(context)
        scores = score(context)
        return _alike_for_both(scores / scores.sum(), context)

    return weigh


def _policies(context: Context) -> int:
    """Return how many blocks policies of this run have collected."""
    return len(context.block_sizes) - context.leading


def _over_blocks(
    u: Float64[np.ndarray, " historical"], config: MixtureConfig, context: Context
) -> tuple[Weights, Float64[np.ndarray, " blocks"]]:
    """Weigh rows by their blocks, given the proportions of the historical policies; return the blocks' shares too."""
    stored = np.zeros(len(context.block_sizes), bool)
    stored[np.unique(context.block)] = True
    blocks = mixture_weights(u, config.rate / (1.0 - config.rate), stored)
    weights = _alike_for_both(spread(blocks, context), context)
    if config.misaligned:
        weights = weights._replace(model=context.random().permutation(weights.model))
    return weights, blocks


def mixture_weights(
    u: Float[np.ndarray, " historical"], alpha: float, stored: np.ndarray | None = None
) -> Float64[np.ndarray, " blocks"]:
    r"""Return the share of each block: warm-up, historical policies, current policy.

    $u_i / \sum_{n<m} u_n$ (Eq. 4), $w_m = \max(\alpha \sum_i u_i, \max_i u_i)$ (Eq. 5), then L1.

    Departs from the paper where it cannot be taken literally: Eq. (4) is normalised over $i < k$, since $\xi_k = 0$;
    the norm is L1; the warm-up's rows, which no Gaussian policy collected, count together as one block with the
    weight of the first policy, as in the released code. So does a block of rows that were handed in before.

    Args:
        u: Proportions of the policies $1 \dots m-1$, positive.
        alpha: $r / (1 - r)$.
        stored: For each block, warm-up first, whether any of its rows is left; emptied blocks take no part. What it
            has more than policies and a warm-up are blocks before that.
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
    """Spread each block's share over its rows: share / (rows when collected), renormalised over what is stored."""
    rows = (blocks / np.maximum(context.block_sizes, 1))[context.block]
    return rows / rows.sum()


def by_block(weights: Weights, block: Int32[np.ndarray, " n"], num_blocks: int) -> dict[str, list[float]]:
    """Return what each block's rows weigh together, for the model and for the starts, and its policy's shift."""
    sums = {
        name: np.bincount(block, rows, num_blocks)
        for name, rows in (("model", weights.model), ("starts", weights.starts))
    }
    if weights.shifts is not None:
        sums["shift"] = weights.shifts
    return {name: array.tolist() for name, array in sums.items()}


def _alike_for_both(rows: Float64[np.ndarray, " n"], context: Context) -> Weights:
    """Use the same probability for the model and for the starts."""
    return Weights(rows, rows, _describe(rows, context))


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
    policies = np.concatenate([shifts, [0.0]])
    weights = blocks[-len(policies) :] / blocks[-len(policies) :].sum()
    return {
        "weights/mixture_shift": float(weights @ policies),
        "weights/uniform_shift": float(policies.mean()),
        "weights/shift_min": float(shifts.min()),
        "weights/shift_max": float(shifts.max()),
    }
