"""The policy mixture: SPEC examples A and B by hand, limits, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdml.config import MixtureConfig
from pdml.weighting import Context, mixture_weights, policy_mixture, spread, uniform

ALPHA = 0.02 / 0.98


def context(sizes, shifts=None, permutation=None):
    block = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    if permutation is not None:
        block = block[permutation]
    return Context(block, np.array(sizes), lambda: np.asarray(shifts, np.float32))


def test_example_a_five_policies():
    blocks = mixture_weights(np.array([0.4, 0.2, 0.1, 0.05]), ALPHA)
    np.testing.assert_allclose(blocks, np.array([1, 1, 2, 4, 8, 8]) / 24, rtol=1e-12)
    rows = spread(blocks, context([5000] + [250] * 5))
    assert rows[0] / rows[5000] == pytest.approx(1 / 20)  # a warm-up row against one of the first policy
    assert rows.sum() == pytest.approx(1.0)


def test_example_b_equal_shifts_of_two_hundred_policies():
    blocks = mixture_weights(np.full(200, 0.3), ALPHA)
    assert blocks[-1] == pytest.approx(0.0199, abs=5e-5)
    assert blocks[5] == pytest.approx(0.00488, abs=5e-6)
    assert blocks[-1] / blocks[1:].sum() == pytest.approx(0.02)  # exactly the rate, with the warm-up left out
    rows = spread(blocks, context([5000] + [250] * 201))
    assert rows[-1] / rows[6000] == pytest.approx(4.08, abs=5e-3)
    assert rows[-1] / rows[0] == pytest.approx(81.6, abs=5e-2)


def test_rate_maps_to_alpha():
    assert MixtureConfig().rate == 0.02
    assert pytest.approx(0.020408, abs=1e-6) == ALPHA


@given(st.lists(st.floats(1e-3, 50.0), min_size=1, max_size=300), st.floats(0.0, 0.9))
def test_shares_are_a_probability_and_the_newest_is_the_largest(shifts, rate):
    blocks = mixture_weights(np.array(shifts), rate / (1 - rate))
    assert blocks.sum() == pytest.approx(1.0)
    assert (blocks >= 0).all()
    assert blocks[-1] == blocks.max()
    assert blocks[0] == blocks[1]  # the warm-up counts as one block like the first policy's
    assert blocks[-1] / blocks[1:].sum() >= rate - 1e-12


@given(st.lists(st.integers(1, 30), min_size=6, max_size=12), st.integers(0, 1000))
def test_weights_follow_their_rows_under_any_permutation(sizes, seed):
    drawn = np.random.default_rng(seed)
    shifts = np.append(drawn.uniform(0.05, 2.0, len(sizes) - 1), 0.0)
    order = drawn.permutation(sum(sizes))
    weigh = policy_mixture(MixtureConfig())
    straight, permuted = weigh(context(sizes, shifts)), weigh(context(sizes, shifts, order))
    np.testing.assert_allclose(permuted.rows, straight.rows[order], rtol=1e-12)


def test_identical_policies_share_alike():
    result = policy_mixture(MixtureConfig())(context([100] + [20] * 6, np.zeros(7)))
    per_block = np.bincount(context([100] + [20] * 6).block, weights=result.rows)
    np.testing.assert_allclose(per_block, 1 / 7)


def test_uniform_until_the_first_weighted_block():
    for blocks in range(1, 5):  # warm-up only, then 1 to 3 policies
        result = policy_mixture(MixtureConfig())(context([100] + [20] * (blocks - 1), None))
        np.testing.assert_allclose(result.rows, 1 / len(result.rows))
    later = policy_mixture(MixtureConfig())(context([100] + [20] * 4, [0.5, 0.4, 0.3, 0.2, 0.0]))
    assert later.rows[-1] > 2 * later.rows[0]


def test_two_policies():
    result = policy_mixture(MixtureConfig(first_block=2))(context([10, 5, 5], [9.0, 0.5, 0.0]))
    per_block = np.bincount([0] * 10 + [1] * 5 + [2] * 5, weights=result.rows)
    np.testing.assert_allclose(per_block, 1 / 3)


def test_emptied_blocks_take_no_part():
    # The warm-up and the first policy are overwritten, the second half so: 5 of its 10 rows are left.
    block = np.repeat([2, 3, 4], [5, 10, 10]).astype(np.int32)
    shifts = np.array([7.0, 0.01, 0.4, 0.2, 0.0])
    weigh = policy_mixture(MixtureConfig(first_block=2))
    rows = weigh(Context(block, np.array([20, 10, 10, 10, 10]), lambda: shifts)).rows
    share = np.array([0.5 * 1 / 3, 2 / 3, 2 / 3])
    np.testing.assert_allclose(np.bincount(block, weights=rows)[2:], share / share.sum())


def test_logged_shift_is_the_term_of_the_theorem():
    shifts = np.array([9.0, 0.4, 0.2, 0.1, 0.05, 0.0])
    metrics = policy_mixture(MixtureConfig())(context([100] + [20] * 5, shifts)).metrics
    weights = np.array([1, 2, 4, 8, 8]) / 23
    assert metrics["weights/mixture_shift"] == pytest.approx(weights @ [0.4, 0.2, 0.1, 0.05, 0.0])
    assert metrics["weights/uniform_shift"] == pytest.approx(0.75 / 5)
    assert metrics["weights/mixture_shift"] < metrics["weights/uniform_shift"]
    assert (metrics["weights/shift_min"], metrics["weights/shift_max"]) == pytest.approx((0.05, 0.4))
    assert metrics["weights/newest_share"] == pytest.approx(8 / 24)


def test_uniform_weighs_rows_alike_and_has_full_effective_size():
    result = uniform()(context([30, 5, 5]))
    np.testing.assert_allclose(result.rows, 1 / 40)
    assert result.metrics["weights/effective_size"] == pytest.approx(40)
