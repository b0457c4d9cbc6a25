"""Statistics over seeds and tasks: means with intervals, curves, and aggregates.

Intervals of a mean are Student's, over seeds; those of a difference or a ratio of two means are Welch's. Aggregates
over tasks are those of [Agarwal et al. 2021]: interquartile mean, optimality gap and probability of improvement, with a
bootstrap that resamples the seeds of each task; on one task the probability has a score interval.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

RESAMPLES = 5000


class Estimate(NamedTuple):
    """A value and its 95 % interval, which is NaN where there are too few seeds."""

    value: float
    low: float
    high: float
    seeds: int


class Curve(NamedTuple):
    """A mean over seeds at each step, with its interval."""

    steps: Int[np.ndarray, " n"]
    mean: Float64[np.ndarray, " n"]
    low: Float64[np.ndarray, " n"]
    high: Float64[np.ndarray, " n"]
    seeds: Int[np.ndarray, " n"]
    """How many seeds each point averages."""
    notes: list[str]
    """What is missing or was left out."""


class Series(NamedTuple):
    """One seed's values."""

    name: str
    steps: Int[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]


def mean_interval(values: Float[np.ndarray, " n"], level: float = 0.95) -> Estimate:
    """Return the mean and its Student interval; values that are not finite are left out."""
    kept = np.asarray(values, np.float64)[np.isfinite(values)]
    n = len(kept)
    if n == 0:
        return Estimate(np.nan, np.nan, np.nan, 0)
    mean = float(kept.mean())
    if n == 1:
        return Estimate(mean, np.nan, np.nan, 1)
    from scipy.special import stdtrit  # slow to import, and a table of single seeds does not need it

    half = float(stdtrit(n - 1, 0.5 + level / 2.0) * kept.std(ddof=1) / np.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)


def geometric_interval(values: Float[np.ndarray, " n"], level: float = 0.95) -> Estimate:
    """Return the geometric mean of positive values, and the Student interval of their logarithms as factors."""
    found = mean_interval(np.log(values), level)
    value, low, high = np.exp([found.value, found.low, found.high]).tolist()
    return Estimate(value, low, high, found.seeds)


def finite_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the values that are finite; NaN if there is none."""
    kept = _finite(np.asarray(values, np.float64))
    return float(kept.mean()) if len(kept) else float("nan")


def difference_interval(
    ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " m"], level: float = 0.95
) -> Estimate:
    """Return the difference of two means and its Welch interval; values that are not finite are left out."""
    x, y = _finite(ours), _finite(theirs)
    if not len(x) or not len(y):
        return Estimate(np.nan, np.nan, np.nan, len(x) + len(y))
    value = float(x.mean() - y.mean())
    half = _welch_half([mean_variance(x), mean_variance(y)], [len(x), len(y)], level)
    return Estimate(value, value - half, value + half, len(x) + len(y))


def ratio_interval(ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " m"], level: float = 0.95) -> Estimate:
    """Return the ratio of two means and its interval: Welch's for its logarithm, to first order.

    There is none unless both means are positive.
    """
    x, y = _finite(ours), _finite(theirs)
    if not len(x) or not len(y) or min(x.mean(), y.mean()) <= 0.0:
        return Estimate(np.nan, np.nan, np.nan, len(x) + len(y))
    value = float(x.mean() / y.mean())
    relative = [mean_variance(scores) / float(scores.mean()) ** 2 for scores in (x, y)]
    half = _welch_half(relative, [len(x), len(y)], level)
    return Estimate(value, value * float(np.exp(-half)), value * float(np.exp(half)), len(x) + len(y))


def mean_variance(scores: Float64[np.ndarray, " n"]) -> float:
    """Return the variance of a mean, the square of its standard error; NaN for a single score."""
    return float(scores.var(ddof=1)) / len(scores) if len(scores) > 1 else float("nan")


def _welch_half(variances: Sequence[float], counts: Sequence[int], level: float) -> float:
    """Return half of the interval of a sum of independent means, with Welch's degrees of freedom."""
    total = sum(variances)
    if not total > 0.0:  # NaN if a mean is of one score
        return total
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in zip(variances, counts, strict=True))
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(freedom, 0.5 + level / 2.0) * np.sqrt(total))


def over_seeds(series: Sequence[Series]) -> Curve:
    """Average seeds step by step; a seed counts where it has a finite value."""
    notes = []
    for one in series:
        lost = int((~np.isfinite(one.values)).sum())
        if lost:
            notes.append(f"{one.name}: {lost} of {len(one.values)} values are not finite and were left out")
    kept = [(one.name, dict(zip(one.steps.tolist(), one.values.tolist(), strict=True))) for one in series]
    kept = [(name, {step: value for step, value in points.items() if np.isfinite(value)}) for name, points in kept]
    steps = np.array(sorted({step for _, points in kept for step in points}), int)
    for name, points in kept:
        notes += _missing(name, points, steps)
    estimates = [
        mean_interval(np.array([points[step] for _, points in kept if step in points])) for step in steps.tolist()
    ]
    columns = np.array([estimate[:3] for estimate in estimates], np.float64).reshape(-1, 3)
    seeds = np.array([estimate.seeds for estimate in estimates], int)
    return Curve(steps, columns[:, 0], columns[:, 1], columns[:, 2], seeds, notes)


def _missing(name: str, points: dict[int, float], steps: np.ndarray) -> list[str]:
    """Say where a seed has no value but others do."""
    if not points:
        return [f"{name}: no values"]
    absent = [step for step in steps.tolist() if step not in points]
    if not absent:
        return []
    last = max(points)
    inside = [step for step in absent if step < last]
    notes = []
    if inside:
        where = f"{len(inside)} of {len(steps)} steps, first at {inside[0]}"
        notes.append(f"{name}: no value at {where}; these points average fewer seeds")
    if absent[-1] > last:
        notes.append(f"{name}: ends at step {last}, others at {steps[-1]}; later points average fewer seeds")
    return notes


def first_reaching(series: Series, threshold: float) -> float:
    """Return the first step with a value at or above the threshold; infinity if there is none."""
    reached = series.steps[np.nan_to_num(series.values, nan=-np.inf) >= threshold]
    return float(reached[0]) if len(reached) else np.inf


def last_mean(series: Series, count: int = 5) -> float:
    """Return the mean of the last `count` finite values; NaN if there are fewer."""
    kept = series.values[np.isfinite(series.values)][-count:]
    return float(kept.mean()) if len(kept) == count else np.nan


def median_duration(durations: Float[np.ndarray, " n"], ended: Bool[np.ndarray, " n"]) -> float:
    """Return the median duration by the estimator of Kaplan and Meier; infinity if less than half is known to end.

    Args:
        ended: Whether the end was seen; else the duration is a lower bound.
    """
    surviving = 1.0
    for duration in np.unique(durations[ended]):
        surviving *= 1.0 - float((ended & (durations == duration)).sum() / (durations >= duration).sum())
        if surviving <= 0.5:
            return float(duration)
    return np.inf


def rank_correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Return Spearman's correlation; equal values share the mean of their ranks. NaN if either does not vary."""
    ranks = np.array([np.searchsorted(np.sort(v), v) + np.searchsorted(np.sort(v), v, side="right") for v in (x, y)])
    if any(len(np.unique(rank)) < 2 for rank in ranks):
        return np.nan
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def iqm(scores: Float[np.ndarray, "... n"]) -> Float64[np.ndarray, "..."]:
    """Return the interquartile mean over the last axis; a quarter of the scores, rounded down, is cut on each side."""
    cut = scores.shape[-1] // 4
    middle = np.sort(np.asarray(scores, np.float64), axis=-1)[..., cut : scores.shape[-1] - cut]
    return np.asarray(middle.mean(axis=-1))


def optimality_gap(scores: Float[np.ndarray, "... n"], goal: float = 1.0) -> Float64[np.ndarray, "..."]:
    """Return by how much scores fall short of a goal on average; scores above it count as the goal."""
    return np.asarray(goal - np.minimum(np.asarray(scores, np.float64), goal).mean(axis=-1))


def aggregate(
    tasks: Sequence[Float[np.ndarray, " _"]],
    statistic: Callable[[np.ndarray], np.ndarray],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Return a statistic of the scores of all tasks, with a bootstrap interval over seeds.

    Args:
        tasks: The scores of each task's seeds; their number may differ between tasks.
        statistic: Reduces the last axis.
        seed: Of the bootstrap.
    """
    tasks = [_finite(scores) for scores in tasks]
    tasks = [scores for scores in tasks if len(scores)]
    if not tasks:
        return Estimate(np.nan, np.nan, np.nan, 0)
    value = float(statistic(np.concatenate(tasks)))
    seeds = sum(len(scores) for scores in tasks)
    if max(len(scores) for scores in tasks) < 2:  # resampling single seeds changes nothing
        return Estimate(value, np.nan, np.nan, seeds)
    interval = bootstrap_interval(tasks, lambda *drawn: statistic(np.concatenate(drawn, axis=1)), seed, resamples)
    return Estimate(value, *interval, seeds)


def probability_of_improvement(
    ours: Sequence[Float[np.ndarray, " _"]],
    theirs: Sequence[Float[np.ndarray, " _"]],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Return the probability that a run of ours beats one of theirs, averaged over the tasks that both have.

    A tie counts half. One task has the interval of `improvement_interval`, more have a bootstrap's.
    """
    pairs = [(_finite(x), _finite(y)) for x, y in zip(ours, theirs, strict=True)]
    pairs = [(x, y) for x, y in pairs if len(x) and len(y)]
    if not pairs:
        return Estimate(np.nan, np.nan, np.nan, 0)
    if len(pairs) == 1:
        return improvement_interval(*pairs[0])
    value = float(np.mean([_superiority(x[None], y[None])[0] for x, y in pairs]))
    seeds = sum(len(x) + len(y) for x, y in pairs)
    if max(max(len(x), len(y)) for x, y in pairs) < 2:
        return Estimate(value, np.nan, np.nan, seeds)

    def superiority(*drawn: np.ndarray) -> np.ndarray:
        return np.mean([_superiority(x, y) for x, y in zip(drawn[::2], drawn[1::2], strict=True)], axis=0)

    samples = [scores for pair in pairs for scores in pair]
    return Estimate(value, *bootstrap_interval(samples, superiority, seed, resamples), seeds)


def improvement_interval(ours: Float[np.ndarray, " n"], theirs: Float[np.ndarray, " m"]) -> Estimate:
    r"""Return the probability that a run of ours beats one of theirs, with a score interval [Newcombe 2006, part 2].

    The interval has all $\theta$ with $(\hat\theta - \theta)^2 \le z^2 \, \mathrm{Var}(\theta)$, where Hanley and
    McNeil's variance has $(n + m)/2 - 1$ for both $n - 1$ and $m - 1$. A bootstrap of few runs that are all on one side
    would say that there is no doubt.
    """
    x, y = _finite(ours), _finite(theirs)
    if not len(x) or not len(y):
        return Estimate(np.nan, np.nan, np.nan, len(x) + len(y))
    value = float(_superiority(x[None], y[None])[0])
    from scipy.optimize import root_scalar  # slow to import
    from scipy.special import ndtri

    factor = float(ndtri(0.975)) ** 2 / (len(x) * len(y))

    def excess(p: float) -> float:
        shared = ((len(x) + len(y)) / 2.0 - 1.0) * ((1.0 - p) / (2.0 - p) + p / (1.0 + p))
        return (value - p) ** 2 - factor * p * (1.0 - p) * (1.0 + shared)

    near = 1e-9  # at a value of 0 or 1 the excess is 0, not negative: brackets begin a little off
    low = 0.0 if value == 0.0 else float(root_scalar(excess, bracket=(0.0, value * (1.0 - near))).root)
    high = 1.0 if value == 1.0 else float(root_scalar(excess, bracket=(value + (1.0 - value) * near, 1.0)).root)
    return Estimate(value, low, high, len(x) + len(y))


def _superiority(x: Float64[np.ndarray, "r n"], y: Float64[np.ndarray, "r m"]) -> Float64[np.ndarray, " r"]:
    """Return the share of pairs in which x is the larger."""
    difference = x[:, :, None] - y[:, None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(1, 2))


def _finite(scores: Float[np.ndarray, " n"]) -> Float64[np.ndarray, " m"]:
    scores = np.asarray(scores, np.float64)
    return scores[np.isfinite(scores)]


def bootstrap_interval(
    samples: Sequence[Float64[np.ndarray, " _"]],
    statistic: Callable[..., np.ndarray],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % interval of a statistic of some samples, by the quantiles of resamples of each.

    These are the numbers of `scipy.stats.bootstrap` but for their last bits. It refuses a sample of one seed, which a
    study has while it is under way.

    Args:
        statistic: Of the samples, of which each has its resamples as rows.
    """
    rng = np.random.default_rng(seed)
    drawn = (scores[rng.integers(len(scores), size=(resamples, len(scores)))] for scores in samples)
    low, high = np.quantile(statistic(*drawn), [0.025, 0.975])
    return float(low), float(high)
