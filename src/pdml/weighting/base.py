"""What every weighting is made of: what it may look at, what it returns, and the uniform one.

A weighting is a function from `Context` to a probability over the stored rows, for model learning and for the starts
of rollouts. It gets the rows' own blocks and scores, so a weight always belongs to its row.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int, Int32

from pdml.core.types import Metrics

Scores = Callable[[], Float[np.ndarray, " n"]]


class Context(NamedTuple):
    """All that a weighting may look at. What is costly is a function, called only by the weightings that need it."""

    block: Int32[np.ndarray, " n"]
    block_sizes: Int[np.ndarray, " blocks"]
    shifts: Callable[[], Float[np.ndarray, " blocks"]]
    """Shift of each block's last policy from the current one; the last entry is the current policy's own, 0."""
    td_errors: Scores
    """Soft target minus value of each row, by the current critics."""
    values: Scores
    """Minimum over the current critics of the value of each row's state and action."""
    model_errors: Scores
    """Mean squared error of each row, by the model before the fit."""
    random: Callable[[], np.random.Generator]
    leading: int = 1
    """Blocks at the front that no policy of this run collected: transitions from before the run, if any, and the
    warm-up."""


class Weights(NamedTuple):
    """Two probabilities over the stored rows, and metrics of the weighting."""

    model: Float64[np.ndarray, " n"]
    """For the model's minibatches."""
    starts: Float64[np.ndarray, " n"]
    """For the states where rollouts start."""
    metrics: Metrics
    shifts: Float64[np.ndarray, " blocks"] | None = None
    """Shift of each block's policy from the current one, if the weighting is made from shifts."""


Weighting = Callable[[Context], Weights]


def uniform() -> Weighting:
    """Give every row the same weight: MBPO [Janner et al. 2019]."""

    def weigh(context: Context) -> Weights:
        return same_for_both(np.full(len(context.block), 1.0 / len(context.block)), context)

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


def num_policies(context: Context) -> int:
    """Return how many blocks the policies of this run have collected."""
    return len(context.block_sizes) - context.leading


def same_for_both(rows: Float64[np.ndarray, " n"], context: Context) -> Weights:
    """Use one probability for the model and for the starts, with its effective sample size and shares of blocks.

    These are the newest block and, if there is one, the block from before the run.
    """
    newest = context.block == context.block.max()
    metrics = {
        "weights/effective_size": float(1.0 / np.square(rows).sum()),
        "weights/newest_share": float(rows[newest].sum()),
    }
    if context.leading > 1:
        metrics["weights/prior"] = float(rows[context.block == 0].sum())
    return Weights(rows, rows, metrics)


def by_block(weights: Weights, block: Int32[np.ndarray, " n"], num_blocks: int) -> dict[str, list[float]]:
    """Return the total weight of each block's rows, for the model and for the starts, and its policy's shift."""
    sums = {
        name: np.bincount(block, rows, num_blocks)
        for name, rows in (("model", weights.model), ("starts", weights.starts))
    }
    if weights.shifts is not None:
        sums["shift"] = weights.shifts
    return {name: array.tolist() for name, array in sums.items()}
