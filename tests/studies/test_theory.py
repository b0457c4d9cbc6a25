"""Theorem 1 and the Proposition: numbers by hand, the counterexamples, and bounds that must never fail."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdml.studies.theory import TOLERANCE, check_theory, rows
from pdml.studies.theory_bounds import BOUNDS, bounds, distances, pdml_weights, proposition_terms, stored_shifts
from pdml.studies.theory_counterexamples import detour_mdp, fork_mdp, slip_closed_form, slip_mdps
from pdml.studies.theory_mdps import TheoryConfig, discounted_visitation, random_mdps, return_gaps, tv_distance
from pdml.studies.theory_text import describe_theory

FAMILIES = ("ordinary", "sticky", "forked")
SMALL = TheoryConfig(trials=60, num_states=4, num_actions=2, num_policies=3)


def mdps_and_weights(seed, family="ordinary", config=SMALL):
    rng = np.random.default_rng(seed)
    mdps = random_mdps(rng, config, family)
    weights = rng.exponential(size=mdps.policies.shape[:2]) ** 2
    return mdps, weights / weights.sum(axis=1, keepdims=True)


def holds(gap, bound):
    return bool((np.abs(gap) <= bound + TOLERANCE).all())


def test_total_variation_by_hand():
    p, q = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(tv_distance(p, q), [0.3, 1.0])


def test_visitation_of_two_states_by_hand():
    # The first action stays, the second moves to the absorbing state. The first policy takes each half of the time.
    dynamics = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])
    policies = np.array([[[[0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]]]])
    found = discounted_visitation(policies, dynamics, np.array([[1.0, 0.0]]), np.array([0.5]))
    first = 0.5 / (1 - 0.25)
    np.testing.assert_allclose(found[0, 0], [[first / 2, first / 2], [(1 - first) / 2, (1 - first) / 2]])
    np.testing.assert_allclose(found[0, 1], [[0.0, 0.5], [0.5, 0.0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_visitations_are_distributions_and_obey_the_flow_equation(family):
    mdps, _ = mdps_and_weights(0, family)
    found = discounted_visitation(mdps.policies, mdps.truth, mdps.start, mdps.gamma)
    assert (found > -1e-12).all()
    np.testing.assert_allclose(found.sum(axis=(2, 3)), 1.0, rtol=1e-9)
    flow = np.einsum("tksa,tsaz->tkz", found, mdps.truth)
    gamma = mdps.gamma[:, None, None]
    np.testing.assert_allclose(found.sum(axis=-1), (1 - gamma) * mdps.start[:, None] + gamma * flow, atol=1e-10)


def test_weights_are_inverse_shifts_and_the_current_policy_gets_the_largest():
    found = pdml_weights(np.array([[0.4, 0.1, 0.0], [0.5, 1e-9, 0.0]]))
    np.testing.assert_allclose(found, [[1 / 9, 4 / 9, 4 / 9], [2 / 2002, 1000 / 2002, 1000 / 2002]])
    np.testing.assert_allclose(pdml_weights(np.zeros((1, 1))), 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_printed_bound_holds_for_a_perfect_model(family):
    mdps, weights = mdps_and_weights(1, family)
    mdps = mdps._replace(model=mdps.truth)
    found = distances(mdps, weights)
    np.testing.assert_array_equal(return_gaps(mdps), 0.0)
    for zero in (found.model_error, found.fit_a, found.fit_b):
        np.testing.assert_array_equal(zero, 0.0)
    values = bounds(mdps, weights, found)
    assert holds(0.0, values["printed (a)"])
    assert holds(0.0, values["printed (b)"])
    assert (values["printed (a)"] > 1e-4).all()  # the bound does not vanish, because the policies differ


@settings(max_examples=30)
@given(
    st.integers(0, 10**6),
    st.sampled_from(FAMILIES),
    st.integers(2, 6),
    st.integers(2, 4),
    st.sampled_from([2.0, 10.0, 1000.0]),
    st.booleans(),
)
def test_every_bound_but_the_printed_ones_holds_for_any_weights(seed, family, states, policies, horizon, signed):
    config = TheoryConfig(trials=20, num_states=states, num_actions=2, num_policies=policies, horizon=horizon)
    mdps, weights = mdps_and_weights(seed, family, config)
    if signed:
        mdps = mdps._replace(reward=2.0 * mdps.reward - 1.0)
    found, gap = distances(mdps, weights), return_gaps(mdps)
    values = bounds(mdps, weights, found)
    assert list(values) == list(BOUNDS)
    for name, value in values.items():
        assert name.startswith("printed") or holds(gap, value), name
    # The proof's assumption, added as a term, makes the printed bound true: reading (a), at least 2 / gamma states.
    enough = mdps.gamma * mdps.start.shape[1] >= 2.0
    largest = np.abs(mdps.reward).max(axis=(1, 2))
    assert holds(gap[enough], (values["printed (a)"] + 2.0 * largest * found.fit_a)[enough])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fit_to_the_mixture_is_bounded_by_the_error_on_its_data(family):
    mdps, weights = mdps_and_weights(2, family)
    real = discounted_visitation(mdps.policies, mdps.truth, mdps.start, mdps.gamma)
    error = np.einsum("tk,tksa,tsa->t", weights, real, tv_distance(mdps.truth, mdps.model))
    fit = distances(mdps, weights).fit_a
    assert (fit <= mdps.gamma / (1.0 - mdps.gamma) * error + TOLERANCE).all()
    assert (fit > 0.0).all()


@pytest.mark.parametrize(("lowest", "threshold"), [(0.0, 0.5), (-1.0, 0.0)])
def test_the_slip_violates_the_printed_bound_as_its_closed_form_says(lowest, threshold):
    mdps, (gap, printed) = slip_mdps(lowest), slip_closed_form(lowest)
    alone = np.ones((len(gap), 1))
    found = distances(mdps, alone)
    values = bounds(mdps, alone, found)
    np.testing.assert_allclose(return_gaps(mdps), gap, atol=1e-12)
    for reading in ("(a)", "(b)"):
        np.testing.assert_allclose(values[f"printed {reading}"], printed, atol=1e-12)
    for nothing in (found.visitation_shift, found.policy_shift_a, found.last_a, found.last_b):
        np.testing.assert_allclose(nothing, 0.0, atol=1e-12)
    stays = mdps.gamma * mdps.model[:, 0, 0, 0]
    np.testing.assert_array_equal(gap > printed, stays > threshold)
    assert 0 < (gap > printed).sum() <= len(gap)
    assert holds(gap, values["corrected (a)"])


def test_the_slip_shows_that_no_factor_can_be_taken_off_the_corrected_bound():
    mdps = slip_mdps(-1.0)
    alone = np.ones((len(mdps.gamma), 1))
    corrected = bounds(mdps, alone, distances(mdps, alone))["corrected (a)"]
    rate = mdps.model[:, 0, 0, 1]
    np.testing.assert_allclose(return_gaps(mdps) / corrected, 1.0 / (1.0 + mdps.gamma * rate), rtol=1e-9)


def test_the_detour_violates_the_printed_bound_although_the_model_fits_the_mixture():
    mdps, weights = detour_mdp()
    found, gap = distances(mdps, weights), return_gaps(mdps)
    values = bounds(mdps, weights, found)
    assert found.fit_b[0] < 1e-4
    assert gap[0] > 10 * values["printed (b)"][0]
    assert found.split_b[0] > 0.9  # the mixture goes where none of its policies goes
    assert holds(gap, values["corrected (b)"])


def test_a_policy_shift_need_not_split_when_a_policy_is_drawn_once():
    # Only the other policy goes right at the start: in the right room the mixture acts as it does, not as the average.
    mdps = fork_mdp()
    mdps = mdps._replace(policies=np.stack([1.0 - mdps.policies[:, -1], mdps.policies[:, -1]], axis=1))
    found = distances(mdps, np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(found.split_a, 0.0, atol=1e-12)  # total variation 1 in half of the states, on both sides
    tilted = mdps.policies.copy()
    tilted[:, 0, 1] = [1.0, 0.0]  # both agree where only the current policy goes: the average shift falls
    found = distances(mdps._replace(policies=tilted), np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(found.split_a, 0.495 - 0.2475, atol=1e-12)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0.1, 50.0))
def test_the_proposition_holds_where_one_order_is_valid_for_both_shifts(shifts, volume):
    visits, policies = np.sort(np.array(shifts), axis=0)[::-1].T[:, None]
    weights = pdml_weights(policies)
    weights = np.sort(weights, axis=1)
    uniform = np.full_like(weights, 1.0 / weights.shape[1])
    weighted, average = (proposition_terms(w, visits, policies, np.array([volume])) for w in (weights, uniform))
    assert weighted[0] <= average[0] + 1e-9


def test_the_proposition_fails_where_the_orders_disagree():
    visits, policies = np.array([[1.0, 0.02, 0.0]]), np.array([[0.01, 0.02, 0.0]])
    weights = pdml_weights(policies)
    np.testing.assert_allclose(weights, [[0.4, 0.2, 0.4]])
    weighted = proposition_terms(weights, visits, policies, np.array([3.0]))
    np.testing.assert_allclose(weighted, 3 * 0.404 + 2 * 0.008)
    average = proposition_terms(np.full((1, 3), 1 / 3), visits, policies, np.array([3.0]))
    np.testing.assert_allclose(average, 3 * 0.34 + 2 * 0.01)
    assert weighted[0] > average[0]


def test_the_fork_has_such_shifts():
    mdps = fork_mdp(gamma=0.99, spread=0.02)
    stored = stored_shifts(mdps)
    np.testing.assert_allclose(stored, [[0.01, 0.0198, 0.0]], atol=1e-12)
    visits = distances(mdps, np.full((1, 3), 1 / 3)).visitation_shift
    np.testing.assert_allclose(visits, [[1.0, 0.0198, 0.0]], atol=1e-12)


def test_the_same_seed_gives_the_same_result():
    first, again, other = (check_theory(TheoryConfig(seed=seed, trials=30)) for seed in (3, 3, 4))
    assert first == again
    assert first.scores != other.scores


def test_rows_are_a_table():
    found = rows(check_theory(SMALL))
    assert len(found) == (len(FAMILIES) * 2 + 2) * len(BOUNDS)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    assert len(out.getvalue().splitlines()) == len(found) + 1


def test_the_page_shows_what_the_command_prints():
    result = check_theory()
    assert all(score.fails == 0 for score in result.scores if not score.bound.startswith("printed"))
    assert all(order.fails_common == order.fails_agreeing == 0 for order in result.orders)
    text = describe_theory(result)
    assert max(map(len, text.splitlines())) <= 120
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text()
    assert text in page
    said = " ".join(page.split())
    scores = {(score.family, score.weights): score for score in result.scores if score.bound == "printed (a)"}
    pdml, uniform = (scores["sticky", weights] for weights in ("pdml", "uniform"))
    failed = [f"{100 * score.fails / score.trials:.1f} %" for score in (pdml, uniform)]
    assert f"it failed in {failed[0]} with PDML's weights and in {failed[1]} with uniform weights" in said
    assert round(5 * scores["ordinary", "pdml"].says_nothing) == 2
    assert "it never failed, but it was vacuous (at least $r_{max}$) in two of five" in said
    assert scores["ordinary", "pdml"].fails == scores["ordinary", "uniform"].fails == 0
    disagree = [100 * order.orders_disagree for order in result.orders]
    assert f"disagreed for some pair in {min(disagree):.0f} to {max(disagree):.0f} % of the MDPs" in said
    (forked,) = (order for order in result.orders if order.fails > 0)
    assert forked.family == "forked"
    assert f"only where forks were made on purpose ({100 * forked.fails:.1f} %)" in said


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"num_states": 1}, {"num_policies": 1}, {"horizon": 1.0}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TheoryConfig(**wrong)


def test_two_policies_have_no_pair_whose_order_could_disagree():
    result = check_theory(TheoryConfig(trials=20, num_policies=2))
    assert all(order.orders_disagree == order.pairs_disagree == 0.0 for order in result.orders)
