"""Weighted sampling: frequencies, edges, and weights that are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdml.data.sampling import Sampler, draw_changing

weights_lists = st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0]), min_size=1, max_size=40).filter(sum)


@given(weights_lists, st.integers(0, 2**31))
def test_only_rows_with_weight_are_drawn_whatever_their_order(weights, seed):
    w = np.array(weights)
    rows = np.random.default_rng(seed).permutation(len(w)) + 100
    drawn = Sampler(rows, w).draw((200,), np.random.default_rng(seed))
    weight_of = dict(zip(rows.tolist(), w.tolist(), strict=True))
    assert all(weight_of[row] > 0 for row in drawn.tolist())


def test_frequencies_match_the_weights_within_three_sigma():
    w = np.repeat([0.1, 0.0, 2.0, 0.7], [50, 10, 3, 20])
    p = w / w.sum()
    count = 100_000
    drawn = Sampler(np.arange(len(w)), w).draw((count,), np.random.default_rng(0))
    found = np.bincount(drawn, minlength=len(w))
    sigma = np.sqrt(count * p * (1 - p))
    outside = np.abs(found - count * p) > 3 * sigma + 1e-9
    assert outside.sum() <= 2  # of 83 rows, 0.2 are expected beyond three sigma
    blocks = np.add.reduceat(found, [0, 50, 60, 63]) / count
    expected = np.add.reduceat(p, [0, 50, 60, 63])
    np.testing.assert_allclose(blocks, expected, atol=3 * np.sqrt(0.25 / count))


def test_no_row_of_a_million_is_out_of_reach():
    n = 1_000_000
    w = np.random.default_rng(1).random(n) + 0.5
    sampler = Sampler(np.arange(n), w)
    cumulated = np.cumsum(w)
    middles = (cumulated - 0.5 * w) / cumulated[-1]
    assert np.array_equal(sampler.rows_at(middles), np.arange(n))


@pytest.mark.parametrize("weights", [[0.0, 0.0], [-1.0, 2.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="finite"):
        Sampler(np.arange(2), np.array(weights))


def test_ends_of_the_unit_interval_stay_inside():
    sampler = Sampler(np.arange(4), np.array([0.0, 1.0, 2.0, 0.0]))
    assert sampler.rows_at(np.array([0.0, np.nextafter(1.0, 0.0)])).tolist() == [1, 2]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_changing_weights_are_drawn_in_proportion_and_nothing_beyond_the_last_row(n):
    weights = np.random.default_rng(n).exponential(size=n) + 1e-3
    rows = draw_changing(weights, (200, 500), np.random.default_rng(0))
    assert rows.min() >= 0
    assert rows.max() < n
    expected = weights / weights.sum()
    found = np.bincount(rows.ravel(), minlength=n) / rows.size
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected / rows.size)).all()


def test_changing_weights_never_reach_the_padding_behind_the_last_row():
    class Ends(np.random.Generator):
        def random(self, *args, **kwargs):
            return np.array([[0.0, 1.0 - 2**-53]])

    ends = Ends(np.random.PCG64(0))
    for seed in range(200):
        weights = np.random.default_rng(seed).exponential(size=70) + 1e-3
        first, last = draw_changing(weights, (1, 2), ends)[0]
        assert first == 0
        assert last == 69
