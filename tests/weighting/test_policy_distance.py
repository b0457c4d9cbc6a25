"""Estimates of the policy shift: against integrals, limits, and the released code's formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from pdml.config.schema import MixtureConfig
from pdml.weighting.policy_distance import bretagnolle_huber, double_kl, estimator, total_variation

PINSKER = estimator(MixtureConfig(), 2, 0)


@pytest.mark.parametrize(("m", "s", "n", "t"), [(0.0, 0.1, 0.3, -0.2), (1.0, -2.0, 0.9, -1.5), (-2.0, 0.5, 2.0, 0.5)])
def test_kl_is_that_of_the_integral_and_pinsker_bounds_the_total_variation(m, s, n, t):
    p, q = stats.norm(m, np.exp(s)), stats.norm(n, np.exp(t))
    ends = (m - 12 * np.exp(s), m + 12 * np.exp(s))
    kl, _ = integrate.quad(lambda x: p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), *ends, limit=200)
    found = float(double_kl(*(jnp.full((1, 1), v) for v in (m, s, n, t)))[0]) / 2
    assert found == pytest.approx(kl, rel=1e-5, abs=1e-5)
    low, high = min(m, n) - 30, max(m, n) + 30
    tv, _ = integrate.quad(lambda x: 0.5 * abs(p.pdf(x) - q.pdf(x)), low, high, points=[m, n], limit=500)
    assert np.sqrt(found / 2) >= tv - 1e-6


@pytest.mark.parametrize(("m", "s", "n", "t"), [(0.0, 0.1, 0.3, -0.2), (1.0, -2.0, 0.9, -1.5), (-2.0, 0.5, 2.0, 0.5)])
def test_other_estimators_bound_or_meet_the_total_variation(m, s, n, t):
    p, q = stats.norm(m, np.exp(s)), stats.norm(n, np.exp(t))
    low, high = min(m, n) - 30, max(m, n) + 30
    tv, _ = integrate.quad(lambda x: 0.5 * abs(p.pdf(x) - q.pdf(x)), low, high, points=[m, n], limit=500)
    kl = double_kl(*(jnp.full((1, 1), v) for v in (m, s, n, t)))[None] / 2
    assert tv - 1e-6 <= float(bretagnolle_huber(kl)[0, 0]) <= 1.0
    noise = jax.random.normal(jax.random.key(0), (20_000, 1, 1))
    current, other = (jnp.full((1, 1), v) for v in (m, s)), (jnp.full((1, 1, 1), v) for v in (n, t))
    many = [jnp.broadcast_to(x, (20_000, 1)) for x in current], [jnp.broadcast_to(x, (1, 20_000, 1)) for x in other]
    found = total_variation(*many[0], *many[1], noise[:, 0][None])
    assert float(found.mean()) == pytest.approx(tv, abs=0.015)


def test_every_estimator_is_zero_for_the_same_policy_and_orders_nearer_before_farther():
    states = 300
    current = jnp.concatenate([jnp.zeros((states, 2)), jnp.full((states, 2), -0.5)], axis=1)
    others = jnp.stack([current + jnp.asarray([[d, d, d / 2, d / 2]]) for d in (0.0, 0.1, 0.4, 1.0)])
    for shift in ("pinsker", "bretagnolle-huber", "monte-carlo"):
        estimate = estimator(MixtureConfig(shift=shift, reservoir=states), 2, 0)
        found = np.asarray(estimate(current, others, jnp.asarray(states)))
        assert found[0] == pytest.approx(0.0, abs=1e-6)
        assert (np.diff(found) > 0).all(), shift


def test_the_released_code_puts_the_standard_deviation_in_the_place_of_the_variance():
    m, s, n, t = 0.3, -0.7, 0.1, -0.2
    current, other = jnp.asarray([[m, s]]), jnp.asarray([[[n, t]]])
    a, b = np.exp(s), np.exp(t)  # as variances
    expected = 0.5 * np.sqrt(a / b + (m - n) ** 2 / b - 1 + np.log(b / a))
    estimate = estimator(MixtureConfig(std_as_covariance=True, reservoir=1), 1, 0)
    assert float(estimate(current, other, jnp.asarray(1))[0]) == pytest.approx(expected, rel=1e-5)


def test_kl_of_17_narrow_dimensions_does_not_underflow():
    small = jnp.full((1, 17), -15.0)
    assert float(double_kl(jnp.zeros((1, 17)), small, jnp.zeros((1, 17)), small)[0]) == 0.0
    apart = double_kl(jnp.zeros((1, 17)), small, jnp.full((1, 17), 1e-6), small)
    assert np.isfinite(np.asarray(apart)).all()
    assert float(apart[0]) > 0


def test_states_beyond_the_count_do_not_enter():
    outputs = np.random.default_rng(0).standard_normal((2, 10, 4)).astype(np.float32)
    whole = PINSKER(jnp.asarray(outputs[0, :6]), jnp.asarray(outputs[1:, :6]), jnp.asarray(6))
    padded = PINSKER(jnp.asarray(outputs[0]), jnp.asarray(outputs[1:]), jnp.asarray(6))
    np.testing.assert_allclose(np.asarray(whole), np.asarray(padded), rtol=1e-6)
