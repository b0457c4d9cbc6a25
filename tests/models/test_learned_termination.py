"""The learned termination: limits by hand, rules that it must find, calibration, and rows of one kind."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.models.learned_termination import TerminationConfig, calibrate, find_limits, learned_termination

LAYOUT = Layout(4, 2)
SMALL = TerminationConfig(num_members=3, hidden_sizes=(32, 32), half_batch=32, round_steps=100, first_rounds=6)


def real_rows(rows):
    n = len(rows)
    return RealRows(rows.astype(np.float32), np.zeros(n, np.int32), np.arange(n), np.array([n]))


def steps(n, rule, seed=0):
    """Steps of random states that move a little; `rule` of the next states says which are terminal."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((n, 4))
    next_obs = obs + 0.1 * rng.standard_normal((n, 4))
    action, reward = rng.uniform(-1, 1, (n, 2)), rng.standard_normal(n)
    return real_rows(np.column_stack([obs, action, reward, next_obs, rule(next_obs, rng)]))


def box(next_obs, rng):
    return (next_obs[:, 0] < -1.8) | (next_obs[:, 2] > 2.2)


def chance(next_obs, rng):
    return rng.random(len(next_obs)) < 0.03


@cache
def made(seed):
    return learned_termination(Config(seed=seed), LAYOUT, SMALL)


def fitted(real, seed=0, step=0, fits=1):
    part = made(seed)
    state, metrics = part.init(key(seed, Purpose.ENDING_INIT)), {}
    for i in range(fits):
        state, metrics = part.fit(state, real, step + i)
    return part, state, metrics


@cache
def compiled(probability):
    return jax.jit(lambda state, t: probability(state, t.obs, t.action, t.next_obs))


def asked(part, state, real):
    return in_chunks(lambda rows, _: compiled(part.probability)(state, LAYOUT.unpack(jnp.asarray(rows))), real.rows)


def f1(probability, real):
    found, ended = probability > 0.5, real.rows[:, -1] > 0.5
    return 2 * (found & ended).sum() / (found.sum() + ended.sum())


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_limits_lie_halfway_between_the_last_terminal_row_and_the_next():
    terminal = np.float32([[5.0], [6.0], [7.0], [-3.0], [-4.0], [-5.0]])
    others = np.float32([[4.0], [0.0], [-2.0]])
    assert find_limits(terminal, others, 3).tolist() == [4.5, 2.5]  # of x, and of -x
    assert find_limits(terminal, others, 4).tolist() == [np.inf, np.inf]


def test_a_limit_is_taken_for_what_no_earlier_limit_covers():
    """The second input is beyond 10 in rows that the first explains already, and in two others."""
    terminal = np.float32([[9, 0], [9, 0], [9, 0], [9, 11], [9, 11], [0, 12], [0, 12]])
    others = np.float32([[0, 0], [1, 9]])
    assert find_limits(terminal, others, 3).tolist() == [5.0, np.inf, np.inf, np.inf]
    assert find_limits(terminal, others, 2).tolist() == [5.0, 10.0, np.inf, np.inf]


def test_limits_keep_terminal_rows_beyond_them_where_floats_are_adjacent():
    last = np.float32(1.0)
    terminal = np.repeat(np.nextafter(last, np.float32(2.0)), 5)[:, None]
    limit = find_limits(terminal, last.reshape(1, 1), 3)[0]
    assert last <= limit < terminal[0, 0]


def test_a_limit_allows_few_wrong_rows_and_none_is_found_by_chance():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5000, 6)).astype(np.float32)
    ended = (x[:, 1] > 1.5) & (rng.random(5000) < 0.97)  # three in a hundred survive
    limits = find_limits(x[ended], x[~ended], 3)
    assert limits[1] == pytest.approx(1.5, abs=0.01)
    assert np.isinf(np.delete(limits, 1)).all()
    ended = rng.random(5000) < 0.03
    assert np.isinf(find_limits(x[ended], x[~ended], 3)).all()


def test_calibration_forgets_what_says_nothing_and_keeps_what_is_right():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.standard_normal(100_000)
    slope, log_odds = calibrate(logits, rng.random(100_000) < 0.03)
    assert slope < 0.05
    assert log_odds == pytest.approx(np.log(0.03 / 0.97), abs=0.1)
    slope, log_odds = calibrate(logits, rng.random(100_000) < 1 / (1 + np.exp(-(0.6 * logits - 4.0))))
    assert (slope, log_odds) == pytest.approx((0.6, -4.0), abs=0.1)


@pytest.mark.slow
def test_learns_a_rule_of_thresholds():
    part, state, metrics = fitted(steps(8000, box))
    test = steps(8000, box, seed=1)
    probability = asked(part, state, test)
    assert f1(probability, test) > 0.95
    assert probability.mean() == pytest.approx(test.rows[:, -1].mean(), rel=0.1)
    assert min(metrics["ending/precision"], metrics["ending/recall"]) > 0.95


def test_learns_a_rule_that_no_limit_of_one_number_expresses():
    def rule(next_obs, rng):
        return next_obs[:, 0] + next_obs[:, 1] > 2.5

    part, state, _ = fitted(steps(8000, rule), fits=8)
    test = steps(8000, rule, seed=1)
    assert f1(asked(part, state, test), test) > 0.8


def test_learns_a_rule_of_the_state_before_the_step():
    def earlier(real):
        real.rows[:, -1] = real.rows[:, 1] > 2.0
        return real

    part, state, _ = fitted(earlier(steps(6000, chance)))
    test = earlier(steps(6000, chance, seed=1))
    assert f1(asked(part, state, test), test) > 0.95


def test_ends_by_chance_have_their_rate_however_long_the_training():
    """Networks that learn labels by heart would answer 0 on new rows."""
    part, state, _ = fitted(steps(6000, chance), fits=8)
    probability = asked(part, state, steps(6000, chance, seed=1))
    assert probability.mean() == pytest.approx(0.03, rel=0.25)
    assert probability.max() < 0.5


def test_without_terminal_rows_the_probability_is_exactly_zero():
    real = steps(500, lambda next_obs, rng: np.zeros(len(next_obs)))
    part, state, metrics = fitted(real)
    assert (asked(part, state, real) == 0.0).all()
    _, _, others = fitted(steps(500, box))
    assert metrics.keys() == others.keys()
    assert metrics["ending/rate"] == 0.0
    assert (asked(part, part.init(key(0, Purpose.ENDING_INIT)), real) == 0.0).all()  # nor before the first fit


def test_terminal_rows_that_come_later_are_learned_as_if_first():
    none = steps(500, lambda next_obs, rng: np.zeros(len(next_obs)))
    part, state, _ = fitted(none)
    state, _ = part.fit(state, steps(4000, box), 250)
    test = steps(4000, box, seed=1)
    assert f1(asked(part, state, test), test) > 0.9


@pytest.mark.parametrize("terminal", [1, 3, 299, 300])
def test_few_rows_of_a_kind_give_finite_numbers(terminal):
    real = steps(300, lambda next_obs, rng: np.arange(len(next_obs)) < terminal)
    part, state, metrics = fitted(real, fits=2)
    probability = asked(part, state, real)
    assert np.isfinite(probability).all()
    assert np.isfinite(list(metrics.values())).all()
    assert ((probability >= 0.0) & (probability <= 1.0)).all()
    assert metrics["ending/terminal_rows"] == terminal
    if terminal == 300:
        assert (probability == 1.0).all()


@pytest.mark.parametrize("ended", [False, True])
def test_a_single_row_can_be_fitted(ended):
    part, state, _ = fitted(steps(1, lambda next_obs, rng: np.full(len(next_obs), ended)))
    assert asked(part, state, steps(1, chance)).tolist() == [float(ended)]


@pytest.mark.slow
def test_the_same_address_and_rows_give_the_same_bits():
    real = steps(2000, box)
    _, state, metrics = fitted(real, fits=2)
    _, again, metrics_again = fitted(real, fits=2)
    assert same(state, again)
    assert metrics == metrics_again
    for changed in (fitted(real, seed=1, fits=2), fitted(real, step=250, fits=2)):
        assert not same(state.networks, changed[1].networks)


def test_nothing_compiles_again_as_rows_grow():
    part, state, _ = fitted(steps(300, box))
    for n in (301, 5000, 9000):
        state, _ = part.fit(state, steps(n, box), n)
    assert [function._cache_size() for function in part.compiled.values()] == [1, 1]


def test_host_rows_may_be_overwritten_right_after_the_call():
    real = steps(1000, box)
    _, expected, _ = fitted(real)
    handed = real_rows(real.rows.copy())
    _, found, _ = fitted(handed)
    handed.rows[:] = np.nan
    assert same(expected, found)


def test_a_fit_starts_from_the_last_weights_and_leaves_its_argument_alone():
    real = steps(1000, box)
    part, state, _ = fitted(real)
    count = int(np.asarray(state.opt[0].count))
    once, _ = part.fit(state, real, 250)
    again, _ = part.fit(state, real, 250)
    assert int(np.asarray(once.opt[0].count)) == count + SMALL.round_steps
    assert same(once, again)


def test_a_network_does_not_learn_from_rows_that_it_leaves_out():
    part = made(0)
    state = part.init(key(0, Purpose.ENDING_INIT))
    x = np.random.default_rng(0).standard_normal((SMALL.round_steps, 2 * SMALL.half_batch, 10)).astype(np.float32)
    fold = np.full(x.shape[:2], 1, np.int32)
    networks, _ = part.compiled["train"](state.networks, state.opt, x, fold, state.normaliser, state.limits)
    unchanged = [same(old[1:], new[1:]) for old, new in zip(state.networks, networks, strict=True)]
    assert unchanged == [False, True, False]
