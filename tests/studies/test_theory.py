"""Theorem 1 and the Proposition: numbers by hand, the counterexamples, and bounds that must never fail."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdml.studies import theory, theory_text
from pdml.studies.theory import TheoryConfig

FAMILIES = ("ordinary", "sticky", "forked")
SMALL = TheoryConfig(trials=60, num_states=4, num_actions=2, num_policies=3)


def problem_and_weights(seed, family="ordinary", config=SMALL):
    random = np.random.default_rng(seed)
    problem = theory.random_problem(random, config, family)
    weights = random.exponential(size=problem.policies.shape[:2]) ** 2
    return problem, weights / weights.sum(axis=1, keepdims=True)


def holds(gap, bound):
    return bool((np.abs(gap) <= bound + theory.TOLERANCE).all())


def test_total_variation_by_hand():
    p, q = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), np.array([[0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(theory.total_variation(p, q), [0.3, 1.0])


def test_visitation_of_two_states_by_hand():
    # The first action stays, the second moves on, for good; each is taken half of the time.
    dynamics = np.array([[[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]]])
    policies = np.array([[[[0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [1.0, 0.0]]]])
    found = theory.visitation(policies, dynamics, np.array([[1.0, 0.0]]), np.array([0.5]))
    first = 0.5 / (1 - 0.25)
    np.testing.assert_allclose(found[0, 0], [[first / 2, first / 2], [(1 - first) / 2, (1 - first) / 2]])
    np.testing.assert_allclose(found[0, 1], [[0.0, 0.5], [0.5, 0.0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_visitations_are_distributions_and_obey_the_flow_equation(family):
    problem, _ = problem_and_weights(0, family)
    found = theory.visitation(problem.policies, problem.truth, problem.start, problem.gamma)
    assert (found > -1e-12).all()
    np.testing.assert_allclose(found.sum(axis=(2, 3)), 1.0, rtol=1e-9)
    flow = np.einsum("tksa,tsaz->tkz", found, problem.truth)
    gamma = problem.gamma[:, None, None]
    np.testing.assert_allclose(found.sum(axis=-1), (1 - gamma) * problem.start[:, None] + gamma * flow, atol=1e-10)


def test_weights_are_inverse_shifts_and_the_current_policy_gets_the_largest():
    found = theory.pdml_weights(np.array([[0.4, 0.1, 0.0], [0.5, 1e-9, 0.0]]))
    np.testing.assert_allclose(found, [[1 / 9, 4 / 9, 4 / 9], [2 / 2002, 1000 / 2002, 1000 / 2002]])
    np.testing.assert_allclose(theory.pdml_weights(np.zeros((1, 1))), 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_printed_bound_holds_for_a_perfect_model(family):
    problem, weights = problem_and_weights(1, family)
    problem = problem._replace(model=problem.truth)
    found = theory.parts(problem, weights)
    np.testing.assert_array_equal(theory.gaps(problem), 0.0)
    for zero in (found.model_error, found.fit_a, found.fit_b):
        np.testing.assert_array_equal(zero, 0.0)
    values = theory.bounds(problem, weights, found)
    assert holds(0.0, values["printed (a)"])
    assert holds(0.0, values["printed (b)"])
    assert (values["printed (a)"] > 1e-4).all()  # while the bound does not vanish: the policies differ


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
    problem, weights = problem_and_weights(seed, family, config)
    if signed:
        problem = problem._replace(reward=2.0 * problem.reward - 1.0)
    found, gap = theory.parts(problem, weights), theory.gaps(problem)
    values = theory.bounds(problem, weights, found)
    assert list(values) == list(theory.BOUNDS)
    for name, value in values.items():
        assert name.startswith("printed") or holds(gap, value), name
    # Its own assumption as a term makes the printed bound true, for the reading (a) and no fewer than 2 / gamma states.
    enough = problem.gamma * problem.start.shape[1] >= 2.0
    largest = np.abs(problem.reward).max(axis=(1, 2))
    assert holds(gap[enough], (values["printed (a)"] + 2.0 * largest * found.fit_a)[enough])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fit_to_the_mixture_is_bounded_by_the_error_on_its_data(family):
    problem, weights = problem_and_weights(2, family)
    real = theory.visitation(problem.policies, problem.truth, problem.start, problem.gamma)
    error = np.einsum("tk,tksa,tsa->t", weights, real, theory.total_variation(problem.truth, problem.model))
    fit = theory.parts(problem, weights).fit_a
    assert (fit <= problem.gamma / (1.0 - problem.gamma) * error + theory.TOLERANCE).all()
    assert (fit > 0.0).all()


@pytest.mark.parametrize(("lowest", "threshold"), [(0.0, 0.5), (-1.0, 0.0)])
def test_the_slip_violates_the_printed_bound_as_its_closed_form_says(lowest, threshold):
    problem, (gap, printed) = theory.slip_problem(lowest), theory.slip_closed_form(lowest)
    alone = np.ones((len(gap), 1))
    found = theory.parts(problem, alone)
    values = theory.bounds(problem, alone, found)
    np.testing.assert_allclose(theory.gaps(problem), gap, atol=1e-12)
    for reading in ("(a)", "(b)"):
        np.testing.assert_allclose(values[f"printed {reading}"], printed, atol=1e-12)
    for nothing in (found.visitation_shift, found.policy_shift_a, found.last_a, found.last_b):
        np.testing.assert_allclose(nothing, 0.0, atol=1e-12)
    stays = problem.gamma * problem.model[:, 0, 0, 0]
    np.testing.assert_array_equal(gap > printed, stays > threshold)
    assert 0 < (gap > printed).sum() <= len(gap)
    assert holds(gap, values["corrected (a)"])


def test_the_slip_shows_that_no_factor_can_be_taken_off_the_corrected_bound():
    problem = theory.slip_problem(-1.0)
    alone = np.ones((len(problem.gamma), 1))
    corrected = theory.bounds(problem, alone, theory.parts(problem, alone))["corrected (a)"]
    rate = problem.model[:, 0, 0, 1]
    np.testing.assert_allclose(theory.gaps(problem) / corrected, 1.0 / (1.0 + problem.gamma * rate), rtol=1e-9)


def test_the_detour_violates_the_printed_bound_although_the_model_fits_the_mixture():
    problem, weights = theory.detour_problem()
    found, gap = theory.parts(problem, weights), theory.gaps(problem)
    values = theory.bounds(problem, weights, found)
    assert found.fit_b[0] < 1e-4
    assert gap[0] > 10 * values["printed (b)"][0]
    assert found.split_b[0] > 0.9  # the mixture goes where no policy of it goes
    assert holds(gap, values["corrected (b)"])


def test_a_policy_shift_need_not_split_when_a_policy_is_drawn_once():
    # The other policy, right of the start, is alone there: the mixture acts as it does, not as the average.
    problem = theory.fork_problem()
    problem = problem._replace(policies=np.stack([1.0 - problem.policies[:, -1], problem.policies[:, -1]], axis=1))
    found = theory.parts(problem, np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(found.split_a, 0.0, atol=1e-12)  # total variation 1 in half the states, on either side
    tilted = problem.policies.copy()
    tilted[:, 0, 1] = [1.0, 0.0]  # where only the current policy goes, both agree: the average shift falls
    found = theory.parts(problem._replace(policies=tilted), np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(found.split_a, 0.495 - 0.2475, atol=1e-12)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0.1, 50.0))
def test_the_proposition_holds_where_one_order_is_valid_for_both_shifts(shifts, volume):
    visits, policies = np.sort(np.array(shifts), axis=0)[::-1].T[:, None]
    weights = theory.pdml_weights(policies)
    weights = np.sort(weights, axis=1)
    alike = np.full_like(weights, 1.0 / weights.shape[1])
    weighted, average = (theory.proposition_terms(w, visits, policies, np.array([volume])) for w in (weights, alike))
    assert weighted[0] <= average[0] + 1e-9


def test_the_proposition_fails_where_the_orders_disagree():
    visits, policies = np.array([[1.0, 0.02, 0.0]]), np.array([[0.01, 0.02, 0.0]])
    weights = theory.pdml_weights(policies)
    np.testing.assert_allclose(weights, [[0.4, 0.2, 0.4]])
    weighted = theory.proposition_terms(weights, visits, policies, np.array([3.0]))
    np.testing.assert_allclose(weighted, 3 * 0.404 + 2 * 0.008)
    average = theory.proposition_terms(np.full((1, 3), 1 / 3), visits, policies, np.array([3.0]))
    np.testing.assert_allclose(average, 3 * 0.34 + 2 * 0.01)
    assert weighted[0] > average[0]


def test_the_fork_has_such_shifts():
    problem = theory.fork_problem(gamma=0.99, spread=0.02)
    stored = theory.stored_shifts(problem)
    np.testing.assert_allclose(stored, [[0.01, 0.0198, 0.0]], atol=1e-12)
    visits = theory.parts(problem, np.full((1, 3), 1 / 3)).visitation_shift
    np.testing.assert_allclose(visits, [[1.0, 0.0198, 0.0]], atol=1e-12)


def test_the_same_seed_gives_the_same_result():
    first, again, other = (theory.check(TheoryConfig(seed=seed, trials=30)) for seed in (3, 3, 4))
    assert first == again
    assert first.scores != other.scores


def test_rows_are_a_table():
    found = theory.rows(theory.check(SMALL))
    assert len(found) == (len(FAMILIES) * 2 + 2) * len(theory.BOUNDS)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    assert len(out.getvalue().splitlines()) == len(found) + 1


def test_the_page_shows_what_the_command_prints():
    result = theory.check()
    assert all(score.fails == 0 for score in result.scores if not score.bound.startswith("printed"))
    assert all(order.fails_common == order.fails_agreeing == 0 for order in result.orders)
    text = theory_text.describe(result)
    assert max(map(len, text.splitlines())) <= 120
    assert text in (Path(__file__).parents[2] / "docs" / "theory.md").read_text()


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"num_states": 1}, {"num_policies": 1}, {"horizon": 1.0}])
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TheoryConfig(**wrong)


def test_two_policies_have_no_pair_whose_order_could_disagree():
    result = theory.check(TheoryConfig(trials=20, num_policies=2))
    assert all(order.orders_disagree == order.pairs_disagree == 0.0 for order in result.orders)
