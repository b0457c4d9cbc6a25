"""Weights of single rows by a score: temporal-difference error, value, or model error."""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64

from pdml.config.schema import PriorityConfig
from pdml.weighting.base import Context, Weighting, Weights, num_policies, same_for_both, uniform


def temporal_difference(config: PriorityConfig) -> Weighting:
    r"""Weight each row by $(|\delta| + \epsilon)^a$ [Schaul et al. 2016], without importance weights.

    The paper only says that samples are weighted by their error. Importance weights would undo it in expectation.
    """
    return _scored(lambda context: np.power(np.abs(context.td_errors()) + config.floor, config.exponent))


def highest_values(config: PriorityConfig) -> Weighting:
    """Keep the rows of the highest value, a quarter of all, with equal weights: RECALL as the paper describes it."""

    def score(context: Context) -> Float64[np.ndarray, " n"]:
        values = context.values()
        kept = np.argsort(-values, kind="stable")[: math.ceil(round(config.share * len(values), 9))]
        weights = np.zeros(len(values))
        weights[kept] = 1.0
        return weights

    return _scored(score)


def temporal_difference_and_model(config: PriorityConfig) -> Weighting:
    r"""Weight rows by $(\delta^2 / \overline{\delta^2} + e / \overline e + \epsilon)^a$: MaPER as the paper words it.

    Both errors are divided by their means, since they have different units.
    """

    def score(context: Context) -> Float64[np.ndarray, " n"]:
        terms = [np.square(context.td_errors()), context.model_errors()]
        total = sum(term / max(term.mean(), 1e-300) for term in terms)
        return np.power(total + config.floor, config.exponent)

    return _scored(score)


def _scored(score: Callable[[Context], Float64[np.ndarray, " n"]]) -> Weighting:
    """Weight rows in proportion to a score; uniformly before anything has been learned that could score them."""

    def weigh(context: Context) -> Weights:
        if num_policies(context) == 0:
            return uniform()(context)
        scores = score(context)
        return same_for_both(scores / scores.sum(), context)

    return weigh
