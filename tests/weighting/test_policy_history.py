import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from pdml.config.schema import MixtureConfig
from pdml.core.nets import gaussian, init_xavier
from pdml.core.transition import Layout
from pdml.weighting.policy_distance import bretagnolle_huber, double_kl, estimator, total_variation
from pdml.weighting.policy_history import History

PINSKER = estimator(MixtureConfig(), 2, 0)


def actor_of(seed, scale=1.0):
    return jax.tree.map(lambda leaf: scale * leaf, init_xavier(jax.random.key(seed), (3, 8, 4)))


def direct_shift(current, other, states):
    """The definition, in float64 and without any caching."""
    (m, s), (n, t) = (
        tuple(np.asarray(x, np.float64) for x in gaussian(a, jnp.asarray(states))) for a in (current, other)
    )
    kl = (t - s + (np.exp(2 * s) + (m - n) ** 2) / (2 * np.exp(2 * t)) - 0.5).sum(axis=1)
    return np.sqrt(np.maximum(kl, 0) / 2).mean()


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
    drawn = np.random.default_rng(0).standard_normal((2, 10, 4)).astype(np.float32)
    whole = PINSKER(jnp.asarray(drawn[0, :6]), jnp.asarray(drawn[1:, :6]), jnp.asarray(6))
    padded = PINSKER(jnp.asarray(drawn[0]), jnp.asarray(drawn[1:]), jnp.asarray(6))
    np.testing.assert_allclose(np.asarray(whole), np.asarray(padded), rtol=1e-6)


def test_kept_outputs_give_the_shifts_of_the_definition():
    drawn = np.random.default_rng(0)
    obs = drawn.standard_normal((900, 3)).astype(np.float32)
    actors = [actor_of(i, 1 + 0.1 * i) for i in range(8)]
    history = History(gaussian, actors[0], Layout(3, 2), reservoir=150, seed=3, estimate=PINSKER)
    for i, actor in enumerate(actors):
        history.push(actor)
        total = 100 * (i + 1)
        found = history.shifts(obs[:total], total)
        states = history.arrays()["states"][: min(total, 150)]
        expected = [direct_shift(actor, other, states) for other in actors[: i + 1]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert found[-1] == 0.0


def test_reservoir_is_a_uniform_sample_of_all_states():
    hits = np.zeros(500)
    for seed in range(60):
        history = _reservoir(seed)
        hits[history.arrays()["states"][:, 0].astype(int)] += 1
    early, late = hits[:250].sum(), hits[250:].sum()
    assert early + late == 60 * 50
    assert abs(early - late) < 3 * np.sqrt(60 * 50)
    assert hits.max() <= 20  # 6 expected, each at most once a seed


def test_states_lost_from_a_small_replay_leave_no_holes_in_the_reservoir():
    actor = actor_of(0)
    history = History(gaussian, actor, Layout(3, 2), reservoir=80, seed=0, estimate=PINSKER)
    kept = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32) + 9.0
    for total in (100, 120, 400):  # 50 of 100 rows are left when first asked
        history.push(actor)
        history.shifts(kept, total)
    arrays = history.arrays()
    offered = 50 + 20 + 50
    assert arrays["counts"].tolist() == [offered, 400]
    assert (arrays["states"] > 1.0).all()


def _reservoir(seed):
    actor = init_xavier(jax.random.key(0), (1, 4, 2))
    history = History(gaussian, actor, Layout(1, 1), reservoir=50, seed=seed, estimate=PINSKER)
    states = np.arange(500, dtype=np.float32)[:, None]
    for total in (120, 250, 500):
        history.push(actor)
        history.shifts(states[:total], total)
    return history


def test_identical_policies_have_no_shift_and_hundreds_work():
    actor = actor_of(0)
    history = History(gaussian, actor, Layout(3, 2), reservoir=40, seed=0, estimate=PINSKER)
    for _ in range(300):
        history.push(actor)
    shifts = history.shifts(np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32), 60)
    assert shifts.shape == (300,)
    assert not shifts.any()


def test_snapshots_are_copies():
    actor = actor_of(0)
    history = History(gaussian, actor, Layout(3, 2), reservoir=40, seed=0, estimate=PINSKER)
    history.push(actor)
    before = history.snapshot(0)
    donate = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1.0, tree), donate_argnums=0)
    donate(actor)
    assert np.array_equal(history.snapshot(0), before)


def test_restored_history_goes_on_with_the_same_bits():
    obs = np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    first = History(gaussian, actor_of(0), Layout(3, 2), reservoir=64, seed=1, estimate=PINSKER)
    for i in range(5):
        first.push(actor_of(i))
        first.shifts(obs[: 60 * (i + 1)], 60 * (i + 1))
    second = History(gaussian, actor_of(0), Layout(3, 2), reservoir=64, seed=1, estimate=PINSKER)
    second.restore(first.arrays())
    for history in (first, second):
        history.push(actor_of(9))
    assert np.array_equal(first.shifts(obs, 400), second.shifts(obs, 400))
