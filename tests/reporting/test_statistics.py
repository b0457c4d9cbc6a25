"""Statistics over seeds: numbers by hand, intervals against known distributions, and what is said about gaps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap, norm, trim_mean
from scipy.stats import t as student

from pdml.reporting import statistics
from pdml.reporting.statistics import Series

NAN = float("nan")


def series(name, points):
    return Series(name, np.array(list(points), int), np.array(list(points.values()), float))


def same(first, second):
    return np.array_equal(np.array(first), np.array(second), equal_nan=True)


def test_students_interval_of_two_and_of_three_by_hand():
    # Quantiles of any table: t(0.975; 1) = 12.7062, t(0.975; 2) = 4.3027.
    assert statistics.mean_interval(np.array([1.0, 3.0])) == pytest.approx((2.0, 2 - 12.7062, 2 + 12.7062, 2), abs=1e-4)
    half = 4.302653 / math.sqrt(3)  # the standard deviation of 1, 2, 3 is 1
    assert statistics.mean_interval(np.array([1.0, 2.0, 3.0])) == pytest.approx((2.0, 2 - half, 2 + half, 3), abs=1e-5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_students_interval_is_scipys(values):
    found = statistics.mean_interval(np.array(values))
    spread = np.std(values, ddof=1) / math.sqrt(len(values))
    half = student.ppf(0.975, len(values) - 1) * spread
    assert found == pytest.approx((np.mean(values), np.mean(values) - half, np.mean(values) + half, len(values)))


def test_students_interval_of_five_normal_seeds_holds_the_mean_in_95_of_100():
    samples = np.random.default_rng(0).normal(3.0, 2.0, size=(4000, 5))
    found = [statistics.mean_interval(sample) for sample in samples]
    covered = np.mean([one.low <= 3.0 <= one.high for one in found])
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 4000)
    wrongly_normal = np.mean(abs(samples.mean(axis=1) - 3) < 1.96 * samples.std(axis=1, ddof=1) / math.sqrt(5))
    assert wrongly_normal < 0.9  # the normal quantile would not do


def test_one_seed_has_a_mean_and_no_interval():
    assert same(statistics.mean_interval(np.array([7.0])), (7.0, NAN, NAN, 1))
    assert same(statistics.mean_interval(np.array([7.0, NAN])), (7.0, NAN, NAN, 1))
    assert same(statistics.aggregate([np.array([7.0]), np.array([9.0])], statistics.iqm), (8.0, NAN, NAN, 2))
    seven, nine = [np.array([7.0])] * 2, [np.array([9.0])] * 2
    assert same(statistics.probability_of_improvement(seven, nine), (0.0, NAN, NAN, 4))


def test_no_seed_has_nothing():
    for empty in ([], [NAN, math.inf]):
        assert same(statistics.mean_interval(np.array(empty)), (NAN, NAN, NAN, 0))
        assert same(statistics.aggregate([np.array(empty)], statistics.iqm), (NAN, NAN, NAN, 0))
        assert same(statistics.probability_of_improvement([np.array(empty)], [np.ones(3)]), (NAN, NAN, NAN, 0))
        assert same(statistics.improvement_interval(np.array(empty), np.ones(3)), (NAN, NAN, NAN, 3))


def test_seeds_of_equal_length_are_averaged_step_by_step():
    found = statistics.over_seeds([series("a", {10: 1.0, 20: 4.0}), series("b", {10: 3.0, 20: 4.0})])
    assert found.steps.tolist() == [10, 20]
    assert found.mean.tolist() == [2.0, 4.0]
    assert found.low == pytest.approx([2 - 12.7062, 4.0], abs=1e-4)
    assert found.high == pytest.approx([2 + 12.7062, 4.0], abs=1e-4)
    assert found.seeds.tolist() == [2, 2]
    assert found.notes == []


def test_a_shorter_seed_is_named_and_later_points_count_fewer():
    found = statistics.over_seeds([series("a", {10: 1.0, 20: 2.0, 30: 3.0}), series("b", {10: 3.0})])
    assert found.mean.tolist() == [2.0, 2.0, 3.0]
    assert found.seeds.tolist() == [2, 1, 1]
    assert np.isnan(found.low).tolist() == [False, True, True]
    assert found.notes == ["b: ends at step 10, others at 30; later points average fewer seeds"]


def test_a_missing_evaluation_is_named():
    points = {10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0}
    found = statistics.over_seeds([series("a", points), series("b", {10: 3.0, 40: 8.0})])
    assert found.mean.tolist() == [2.0, 2.0, 3.0, 6.0]
    assert found.seeds.tolist() == [2, 1, 1, 2]
    assert found.notes == ["b: no value at 2 of 4 steps, first at 20; these points average fewer seeds"]


def test_what_is_not_finite_is_left_out_and_named():
    found = statistics.over_seeds(
        [series("a", {10: 1.0, 20: NAN, 30: 5.0}), series("b", {10: 3.0, 20: 2.0, 30: math.inf})]
    )
    assert found.mean.tolist() == [2.0, 2.0, 5.0]
    assert found.seeds.tolist() == [2, 1, 1]
    assert found.notes[:2] == [f"{name}: 1 of 3 values are not finite and were left out" for name in "ab"]


def test_seeds_without_any_value_are_named_even_if_no_other_has_one():
    some = statistics.over_seeds([series("a", {10: 1.0}), series("b", {})])
    assert (some.mean.tolist(), some.seeds.tolist(), some.notes) == ([1.0], [1], ["b: no values"])
    none = statistics.over_seeds([series("a", {}), series("b", {10: NAN})])
    assert none.steps.shape == none.mean.shape == none.low.shape == (0,)
    assert none.notes == [
        "b: 1 of 1 values are not finite and were left out",
        "a: no values",
        "b: no values",
    ]


def test_first_step_at_the_threshold():
    one = series("a", {10: 1.0, 20: NAN, 30: 5.0, 40: 2.0, 50: 9.0})
    assert statistics.first_reaching(one, 5.0) == 30
    assert statistics.first_reaching(one, 5.1) == 50
    assert statistics.first_reaching(one, 9.1) == math.inf
    assert statistics.first_reaching(series("b", {}), 0.0) == math.inf


def test_interquartile_mean_by_hand():
    assert statistics.iqm(np.array([100.0, 2.0, 1.0, -50.0])) == 1.5
    assert statistics.iqm(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e9])) == 3.5
    assert statistics.iqm(np.array([1.0, 2.0, 6.0])) == 3.0  # a quarter of three is less than one: nothing is cut


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_interquartile_mean_is_scipys_trimmed_mean(scores):
    assert statistics.iqm(np.array(scores)) == pytest.approx(trim_mean(scores, 0.25), rel=1e-9, abs=1e-9)


def test_statistics_take_the_last_axis():
    scores = np.random.default_rng(0).normal(size=(3, 9))
    for statistic in (statistics.iqm, statistics.optimality_gap):
        np.testing.assert_allclose(statistic(scores), [float(statistic(row)) for row in scores])


def test_optimality_gap_by_hand():
    assert statistics.optimality_gap(np.array([0.5, 0.25, 3.0, 1.0])) == pytest.approx((0.5 + 0.75) / 4)
    assert statistics.optimality_gap(np.array([2.0, 5.0])) == 0.0
    assert statistics.optimality_gap(np.array([-1.0]), goal=2.0) == 3.0


def test_probability_of_improvement_by_hand():
    # First task: of the six pairs three are won and one is a tie. Second task: all are won.
    ours, theirs = [np.array([1.0, 3.0]), np.array([5.0])], [np.array([0.0, 1.0, 4.0]), np.array([1.0, 2.0])]
    found = statistics.probability_of_improvement(ours, theirs)
    assert found.value == pytest.approx((3.5 / 6 + 1.0) / 2)
    assert found.seeds == 8
    back = statistics.probability_of_improvement(theirs, ours)
    assert found.value + back.value == pytest.approx(1.0)


Z2 = norm.ppf(0.975) ** 2


def test_the_interval_of_an_improvement_by_hand():
    one = statistics.improvement_interval(np.array([2.0]), np.array([1.0]))
    assert one == (1.0, pytest.approx(1 / (1 + Z2)), 1.0, 2)  # (1 - p)^2 = z^2 p (1 - p)
    back = statistics.improvement_interval(np.array([1.0]), np.array([2.0]))
    assert back == (0.0, 0.0, pytest.approx(Z2 / (1 + Z2)), 2)
    found = statistics.improvement_interval(np.array([1.0, 3.0, NAN]), np.array([0.0, 1.0, 4.0, 2.0]))
    assert (found.value, found.seeds) == (4.5 / 8, 6)
    for p in (found.low, found.high):  # Hanley and McNeil's own form of the variance, with 2 for both counts less one
        variance = p * (1 - p) + 2 * (p / (2 - p) - p**2) + 2 * (2 * p**2 / (1 + p) - p**2)
        assert (found.value - p) ** 2 == pytest.approx(Z2 * variance / 8)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
@pytest.mark.parametrize("shift", [0.0, 1.0, 1.75, 2.5])
def test_few_runs_hold_the_probability_of_improvement(seeds, shift):
    ours, theirs = np.random.default_rng(0).normal(size=(2, 4000, seeds)) + np.array([shift, 0.0])[:, None, None]
    won = (ours[:, :, None] > theirs[:, None, :]).sum(axis=(1, 2))
    _, first, which = np.unique(won, return_index=True, return_inverse=True)  # wins alone decide the interval
    found = [statistics.improvement_interval(ours[i], theirs[i]) for i in first]
    low, high = np.array([(one.low, one.high) for one in found]).T
    truth = norm.cdf(shift / 2**0.5)
    assert ((low[which] <= truth) & (truth <= high[which])).mean() >= 0.87


def test_a_bootstrap_of_two_runs_seldom_holds_the_probability_of_improvement():
    ours, theirs = np.random.default_rng(0).normal(size=(2, 200, 2)) + np.array([3.0, 0.0])[:, None, None]
    found = [
        statistics.bootstrap_interval(pair, lambda x, y: (x[:, :, None] > y[:, None]).mean(axis=(1, 2)), resamples=200)
        for pair in zip(ours, theirs, strict=True)
    ]
    assert np.mean([low <= norm.cdf(3.0 / 2**0.5) <= high for low, high in found]) < 0.1


def test_equals_tie():
    found = statistics.probability_of_improvement([np.full(4, 2.0)] * 2, [np.full(3, 2.0)] * 2)
    assert found[:3] == (0.5, 0.5, 0.5)


def test_tasks_of_which_one_side_has_no_score_do_not_count():
    ours = [np.array([1.0, 2.0]), np.array([0.0, 0.0])]
    found = statistics.probability_of_improvement(ours, [np.array([0.0, 0.5]), np.array([NAN])])
    assert (found.value, found.seeds) == (1.0, 4)


def test_the_same_seed_gives_the_same_resamples_and_another_seed_others():
    rng = np.random.default_rng(0)
    tasks, others = ([rng.normal(size=n) for n in (5, 3, 8)] for _ in range(2))
    for estimate in (
        lambda seed: statistics.aggregate(tasks, statistics.iqm, seed),
        lambda seed: statistics.aggregate(tasks, statistics.optimality_gap, seed),
        lambda seed: statistics.probability_of_improvement(tasks, others, seed),
    ):
        assert estimate(3) == estimate(3)
        assert estimate(3).value == estimate(4).value
        assert estimate(3)[1:3] != estimate(4)[1:3]


def test_bootstrap_of_many_seeds_is_the_normal_interval():
    """Standard errors of n normal scores: of the mean 1 / sqrt(n), of the middle half by the trimmed mean's formula."""
    n, edge = 500, norm.ppf(0.75)
    trimmed = 2.0 * math.sqrt(0.5 - 2.0 * edge * norm.pdf(edge) + 0.5 * edge**2)
    assert trimmed == pytest.approx(1.093, abs=1e-3)
    scores = norm.ppf((np.arange(n) + 0.5) / n)
    for statistic, deviation in ((lambda s: s.mean(axis=-1), 1.0), (statistics.iqm, trimmed)):
        found = statistics.aggregate([scores], statistic, resamples=10_000)
        half = 1.96 * deviation / math.sqrt(n)
        assert found.value == pytest.approx(0.0, abs=1e-9)
        assert (found.low, found.high) == pytest.approx((-half, half), rel=0.05)


def test_bootstrap_interval_holds_the_truth_in_95_of_100():
    rng = np.random.default_rng(1)
    tasks = rng.exponential(size=(300, 3, 40)) * np.array([1.0, 2.0, 3.0])[:, None]
    found = [statistics.aggregate(list(one), lambda s: s.mean(axis=-1), seed, 200) for seed, one in enumerate(tasks)]
    covered = np.mean([one.low <= 2.0 <= one.high for one in found])
    assert 0.91 < covered < 0.98


def test_resampling_stays_within_a_task():
    """Two tasks of like seeds that differ from each other: no resample can change anything."""
    found = statistics.aggregate([np.full(5, 1.0), np.full(3, 9.0)], lambda s: s.mean(axis=-1))
    assert found == (4.0, 4.0, 4.0, 8)


def test_tasks_may_have_different_numbers_of_seeds_and_gaps():
    tasks = [np.array([0.1, NAN, 0.3]), np.array([0.5]), np.array([NAN]), np.array([0.2, 0.4, 0.6, 0.8])]
    found = statistics.aggregate(tasks, statistics.iqm)
    assert found.value == pytest.approx(trim_mean([0.1, 0.3, 0.5, 0.2, 0.4, 0.6, 0.8], 0.25))
    assert found.seeds == 7
    assert 0.1 <= found.low < found.value < found.high <= 0.8


@pytest.mark.parametrize("sizes", [(5,), (2, 3), (8, 4, 6)])
def test_bootstrap_intervals_are_scipys(sizes):
    """But for the last bits: SciPy's quantile is at (1 - 0.95) / 2, which is not 0.025 in floating point."""
    rng = np.random.default_rng(len(sizes))
    samples = [1000.0 * rng.normal(size=size) for size in sizes]

    def spread(*drawn, axis=-1):
        return np.concatenate(drawn, axis=axis).std(axis=axis)

    theirs = bootstrap(samples, spread, n_resamples=5000, method="percentile", rng=np.random.default_rng(3))
    assert statistics.bootstrap_interval(samples, spread, 3) == pytest.approx(theirs.confidence_interval, rel=1e-12)


def test_the_interval_of_a_difference_is_welchs():
    from scipy.stats import ttest_ind

    ours, theirs = np.array([1.0, 4.0, 5.0, 9.0]), np.array([2.0, 2.5, 3.5])
    found = statistics.difference_interval(ours, theirs)
    expected = ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert found.value == pytest.approx(4.75 - 8.0 / 3.0)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.seeds == 7


def test_the_interval_of_a_ratio_is_welchs_for_its_logarithm():
    ours, theirs = np.array([0.9, 1.1]), np.array([1.8, 2.2])
    found = statistics.ratio_interval(ours, theirs)
    # both means have a relative standard error of 0.1, and there are two degrees of freedom: t = 4.302653
    half = 4.302653 * np.sqrt(2 * 0.1**2)
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 * np.exp(-half), 0.5 * np.exp(half)), rel=1e-5)


@pytest.mark.parametrize("ours", [(-1.0, -2.0), (0.0, 0.0), (-1.0, 1.0)])
def test_a_ratio_of_means_that_are_not_positive_is_none(ours):
    for pair in ((np.array(ours), np.ones(2)), (np.ones(2), np.array(ours))):
        assert np.isnan(statistics.ratio_interval(*pair)[:3]).all()


@pytest.mark.parametrize("interval", [statistics.difference_interval, statistics.ratio_interval])
def test_single_seeds_have_no_interval_and_no_seeds_no_value(interval):
    one = interval(np.array([2.0]), np.array([1.0, 3.0]))
    assert np.isfinite(one.value)
    assert np.isnan([one.low, one.high]).all()
    assert np.isnan(interval(np.zeros(0), np.array([1.0])).value)


def test_with_five_seeds_welchs_interval_covers_the_truth_and_the_bootstraps_too_rarely():
    rng, welch, bootstrap = np.random.default_rng(0), [], []
    for _ in range(600):
        x, y = rng.normal(size=(2, 5))
        found = statistics.difference_interval(x, y)
        welch.append(found.low < 0 < found.high)
        low, high = statistics.bootstrap_interval((x, y), lambda a, b: a.mean(-1) - b.mean(-1), resamples=500)
        bootstrap.append(low < 0 < high)
    assert 0.93 < np.mean(welch) < 0.98
    assert np.mean(bootstrap) < 0.90
