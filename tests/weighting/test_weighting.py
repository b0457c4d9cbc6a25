"""Every weighting: values by hand (for the mixture the examples A and B), limits, and properties that all share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdml.config.schema import MixtureConfig, PriorityConfig
from pdml.weighting.base import Context, applied_to, uniform
from pdml.weighting.by_policy import exponential_decay, mixture_weights, policy_mixture, spread
from pdml.weighting.by_row import highest_values, temporal_difference, temporal_difference_and_model

ALPHA = 0.02 / 0.98


def context(sizes, shifts=None, permutation=None):
    block = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    if permutation is not None:
        block = block[permutation]
    return context_of(block, sizes, lambda: np.asarray(shifts, np.float32))


def context_of(block, sizes, shifts=None, td_errors=None, values=None, model_errors=None, seed=0):
    """Scores are given as arrays; asking for one that was not given fails."""

    def give(scores):
        return lambda: np.asarray(scores, np.float64)

    return Context(
        np.asarray(block, np.int32),
        np.array(sizes),
        shifts,
        give(td_errors),
        give(values),
        give(model_errors),
        lambda: np.random.default_rng(seed),
    )


def test_example_a_five_policies():
    blocks = mixture_weights(1 / np.array([0.4, 0.2, 0.1, 0.05]), ALPHA)
    np.testing.assert_allclose(blocks, np.array([1, 1, 2, 4, 8, 8]) / 24, rtol=1e-12)
    rows = spread(blocks, context([5000] + [250] * 5))
    assert rows[0] / rows[5000] == pytest.approx(1 / 20)  # a warm-up row against one of the first policy
    assert rows.sum() == pytest.approx(1.0)


def test_example_b_equal_shifts_of_two_hundred_policies():
    blocks = mixture_weights(1 / np.full(200, 0.3), ALPHA)
    assert blocks[-1] == pytest.approx(0.0199, abs=5e-5)
    assert blocks[5] == pytest.approx(0.00488, abs=5e-6)
    assert blocks[-1] / blocks[1:].sum() == pytest.approx(0.02)  # exactly the rate, with the warm-up left out
    rows = spread(blocks, context([5000] + [250] * 201))
    assert rows[-1] / rows[6000] == pytest.approx(4.08, abs=5e-3)
    assert rows[-1] / rows[0] == pytest.approx(81.6, abs=5e-2)


def test_the_weight_of_transitions_from_before_the_run_is_reported_if_there_are_any():
    sizes, shifts = [600, 100, 50, 50, 50, 50, 50], [0.8, 0.4, 0.2, 0.1, 0.05, 0.0]
    plain = context(sizes, shifts)
    started = plain._replace(leading=2)
    assert "weights/prior" not in uniform()(plain).metrics
    assert uniform()(started).metrics["weights/prior"] == pytest.approx(600 / 950)  # their share of all
    weights = policy_mixture(MixtureConfig())(started)
    assert weights.metrics["weights/prior"] == pytest.approx(1 / 25)  # as the first policy, and as the warm-up
    assert weights.model[:600].sum() == pytest.approx(1 / 25)


def test_rate_maps_to_alpha():
    assert MixtureConfig().rate == 0.02
    assert pytest.approx(0.020408, abs=1e-6) == ALPHA


@given(st.lists(st.floats(1e-3, 50.0), min_size=1, max_size=300), st.floats(0.0, 0.9))
def test_shares_are_a_probability_and_the_newest_is_the_largest(shifts, rate):
    blocks = mixture_weights(1 / np.array(shifts), rate / (1 - rate))
    assert blocks.sum() == pytest.approx(1.0)
    assert (blocks >= 0).all()
    assert blocks[-1] == blocks.max()
    assert blocks[0] == blocks[1]  # the warm-up counts as one block like the first policy's
    assert blocks[-1] / blocks[1:].sum() >= rate - 1e-12


WEIGHTINGS = {
    "uniform": uniform(),
    "pdml": policy_mixture(MixtureConfig()),
    "pdml-model-only": applied_to(policy_mixture(MixtureConfig()), "model"),
    "pdml-starts-only": applied_to(policy_mixture(MixtureConfig()), "starts"),
    "decay-mbpo": exponential_decay(MixtureConfig()),
    "per-mbpo": temporal_difference(PriorityConfig()),
    "recall-mbpo": highest_values(PriorityConfig()),
    "maper-mbpo-model": temporal_difference_and_model(PriorityConfig(exponent=0.5, floor=1e-9)),
}


@pytest.mark.parametrize("name", WEIGHTINGS)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 1000))
def test_weights_are_probabilities_and_follow_their_rows_under_any_permutation(name, sizes, seed):
    rng, n = np.random.default_rng(seed), sum(sizes)
    block = np.repeat(np.arange(len(sizes)), sizes)
    shifts = np.append(rng.uniform(0.05, 2.0, len(sizes) - 1), 0.0)
    td, values, errors = rng.standard_normal(n), rng.standard_normal(n), rng.exponential(size=n)
    order = rng.permutation(n)
    straight = WEIGHTINGS[name](context_of(block, sizes, lambda: shifts, td, values, errors))
    permuted = WEIGHTINGS[name](
        context_of(block[order], sizes, lambda: shifts, td[order], values[order], errors[order])
    )
    for whole, mixed in ((straight.model, permuted.model), (straight.starts, permuted.starts)):
        assert whole.sum() == pytest.approx(1.0)
        assert (whole >= 0).all()
        np.testing.assert_allclose(mixed, whole[order], rtol=1e-12)


@given(st.integers(5, 40), st.integers(2, 9), st.integers(0, 1000))
def test_weightings_reach_the_uniform_one_where_they_have_that_limit(size, blocks, seed):
    rng, sizes = np.random.default_rng(seed), [size] * blocks
    n = sum(sizes)
    block = np.repeat(np.arange(blocks), sizes)
    context = context_of(
        block,
        sizes,
        lambda: np.full(blocks, 0.7),
        rng.standard_normal(n),
        rng.standard_normal(n),
        rng.exponential(size=n),
    )
    limits = [
        policy_mixture(MixtureConfig(rate=0.0, first_block=2)),  # equal shifts, and a warm-up of a block's size
        exponential_decay(MixtureConfig(rate=0.0, decay=1.0, first_block=2)),
        temporal_difference(PriorityConfig(exponent=0.0)),
        temporal_difference_and_model(PriorityConfig(exponent=0.0)),
        highest_values(PriorityConfig(share=1.0)),
        applied_to(policy_mixture(MixtureConfig()), "none"),
    ]
    for weigh in limits:
        weights = weigh(context)
        np.testing.assert_allclose(weights.model, 1 / n, rtol=1e-12)
        np.testing.assert_allclose(weights.starts, 1 / n, rtol=1e-12)


def test_scores_count_only_once_something_has_been_learned():
    for name in ("per-mbpo", "recall-mbpo", "maper-mbpo-model"):
        weights = WEIGHTINGS[name](context_of([0] * 8, [8]))  # asking for a score would fail
        np.testing.assert_allclose(weights.model, 1 / 8)


def test_priority_is_the_power_of_the_absolute_error():
    weigh = temporal_difference(PriorityConfig(exponent=0.5, floor=0.0625))
    weights = weigh(context_of([0, 0, 1, 1], [2, 2], td_errors=[0.9375, -3.9375, 0.0, 8.9375]))
    np.testing.assert_allclose(weights.model, np.array([1.0, 2.0, 0.25, 3.0]) / 6.25)
    np.testing.assert_allclose(weights.starts, weights.model)
    defaults = temporal_difference(PriorityConfig())(context_of([0, 1], [1, 1], td_errors=[1.0, 32.0]))
    assert defaults.model[1] / defaults.model[0] == pytest.approx(32**0.6, rel=1e-5)


@given(st.integers(2, 400), st.integers(0, 100))
def test_recall_keeps_exactly_the_top_quarter(n, seed):
    values = np.random.default_rng(seed).standard_normal(n)
    weights = highest_values(PriorityConfig())(context_of(np.arange(n) % 2, [n, n], values=values))
    kept = weights.model > 0
    assert kept.sum() == int(np.ceil(n / 4))
    assert not kept.any() or kept.all() or values[kept].min() > values[~kept].max()
    np.testing.assert_allclose(weights.model[kept], 1 / kept.sum())


def test_recall_keeps_a_quarter_even_of_equal_values():
    weights = highest_values(PriorityConfig())(context_of([0] * 10 + [1] * 10, [10, 10], values=np.zeros(20)))
    assert (weights.model > 0).sum() == 5


def test_maper_adds_both_errors_after_dividing_them_by_their_means():
    weigh = temporal_difference_and_model(PriorityConfig(exponent=0.5, floor=1e-12))
    weights = weigh(context_of([0, 1, 1], [1, 2], td_errors=[1.0, -2.0, 1.0], model_errors=[0.0, 3.0, 6.0]))
    terms = np.array([1.0, 4.0, 1.0]) / 2.0 + np.array([0.0, 3.0, 6.0]) / 3.0
    np.testing.assert_allclose(weights.model, np.sqrt(terms) / np.sqrt(terms).sum())
    flat = weigh(context_of([0, 1], [1, 1], td_errors=[0.0, 0.0], model_errors=[0.0, 0.0]))
    np.testing.assert_allclose(flat.model, 0.5)


def test_older_policies_weigh_less_by_the_decay_and_the_newest_as_in_pdml():
    sizes = [100] + [20] * 5
    weights = exponential_decay(MixtureConfig(decay=0.5))(context(sizes))
    share = np.bincount(context(sizes).block, weights=weights.model)
    np.testing.assert_allclose(share, np.array([1, 1, 2, 4, 8, 8]) / 24)  # warm-up, four policies, the newest
    slow = exponential_decay(MixtureConfig(decay=0.98))(context([5000] + [250] * 401))
    share = np.bincount(context([5000] + [250] * 401).block, weights=slow.model)
    assert share[2] / share[1] == pytest.approx(1 / 0.98)
    assert share[-1] / share[1:].sum() == pytest.approx(0.02, abs=2e-4)  # the least share of the newest binds


def test_misaligned_weights_reach_the_model_only_and_belong_to_other_rows():
    sizes, shifts = [100] + [20] * 8, np.append(np.geomspace(2.0, 0.05, 8), 0.0)
    aligned = policy_mixture(MixtureConfig())(context(sizes, shifts))
    mixed = policy_mixture(MixtureConfig(misaligned=True))(context(sizes, shifts))
    np.testing.assert_allclose(mixed.starts, aligned.starts)
    np.testing.assert_allclose(np.sort(mixed.model), np.sort(aligned.model))
    assert abs(np.corrcoef(mixed.model, aligned.model)[0, 1]) < 0.2


def test_an_ablation_uses_the_weights_for_one_purpose_only():
    sizes, shifts = [100] + [20] * 5, [9.0, 0.4, 0.2, 0.1, 0.05, 0.0]
    both = policy_mixture(MixtureConfig())(context(sizes, shifts))
    for use, kept, flat in (("model", "model", "starts"), ("starts", "starts", "model")):
        weights = applied_to(policy_mixture(MixtureConfig()), use)(context(sizes, shifts))
        np.testing.assert_allclose(getattr(weights, kept), getattr(both, kept))
        np.testing.assert_allclose(getattr(weights, flat), 1 / 200)
        assert weights.metrics == both.metrics


def test_identical_policies_have_equal_shares():
    result = policy_mixture(MixtureConfig())(context([100] + [20] * 6, np.zeros(7)))
    per_block = np.bincount(context([100] + [20] * 6).block, weights=result.model)
    np.testing.assert_allclose(per_block, 1 / 7)


def test_uniform_until_the_first_weighted_block():
    for blocks in range(1, 5):  # warm-up only, then 1 to 3 policies
        result = policy_mixture(MixtureConfig())(context([100] + [20] * (blocks - 1), None))
        np.testing.assert_allclose(result.model, 1 / len(result.model))
    later = policy_mixture(MixtureConfig())(context([100] + [20] * 4, [0.5, 0.4, 0.3, 0.2, 0.0]))
    assert later.model[-1] > 2 * later.model[0]


def test_two_policies():
    result = policy_mixture(MixtureConfig(first_block=2))(context([10, 5, 5], [9.0, 0.5, 0.0]))
    per_block = np.bincount([0] * 10 + [1] * 5 + [2] * 5, weights=result.model)
    np.testing.assert_allclose(per_block, 1 / 3)


def test_emptied_blocks_take_no_part():
    # The warm-up and the first policy are overwritten, the second half so: 5 of its 10 rows are left.
    block = np.repeat([2, 3, 4], [5, 10, 10]).astype(np.int32)
    shifts = np.array([7.0, 0.01, 0.4, 0.2, 0.0])
    weigh = policy_mixture(MixtureConfig(first_block=2))
    rows = weigh(context_of(block, [20, 10, 10, 10, 10], lambda: shifts)).model
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


def test_uniform_weights_are_equal_and_have_full_effective_size():
    result = uniform()(context([30, 5, 5]))
    np.testing.assert_allclose(result.model, 1 / 40)
    assert result.metrics["weights/effective_size"] == pytest.approx(40)
