"""The historical policies: kept outputs give the shifts of the definition, on a uniform reservoir of states."""

import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.schema import MixtureConfig
from pdml.core.nets import gaussian, init_xavier
from pdml.core.transition import Layout
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import PolicyHistory

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


def test_kept_outputs_give_the_shifts_of_the_definition():
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((900, 3)).astype(np.float32)
    actors = [actor_of(i, 1 + 0.1 * i) for i in range(8)]
    history = PolicyHistory(gaussian, actors[0], Layout(3, 2), reservoir=150, seed=3, estimate=PINSKER)
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
    assert hits.max() <= 20  # 6 expected, each at most once per seed


def test_states_lost_from_a_small_replay_buffer_leave_no_holes_in_the_reservoir():
    actor = actor_of(0)
    history = PolicyHistory(gaussian, actor, Layout(3, 2), reservoir=80, seed=0, estimate=PINSKER)
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
    history = PolicyHistory(gaussian, actor, Layout(1, 1), reservoir=50, seed=seed, estimate=PINSKER)
    states = np.arange(500, dtype=np.float32)[:, None]
    for total in (120, 250, 500):
        history.push(actor)
        history.shifts(states[:total], total)
    return history


def test_identical_policies_have_no_shift_and_hundreds_work():
    actor = actor_of(0)
    history = PolicyHistory(gaussian, actor, Layout(3, 2), reservoir=40, seed=0, estimate=PINSKER)
    for _ in range(300):
        history.push(actor)
    shifts = history.shifts(np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32), 60)
    assert shifts.shape == (300,)
    assert not shifts.any()


def test_snapshots_are_copies():
    actor = actor_of(0)
    history = PolicyHistory(gaussian, actor, Layout(3, 2), reservoir=40, seed=0, estimate=PINSKER)
    history.push(actor)
    before = history.snapshot(0)
    donate = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1.0, tree), donate_argnums=0)
    donate(actor)
    assert np.array_equal(history.snapshot(0), before)


def test_restored_history_resumes_with_the_same_bits():
    obs = np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    first = PolicyHistory(gaussian, actor_of(0), Layout(3, 2), reservoir=64, seed=1, estimate=PINSKER)
    for i in range(5):
        first.push(actor_of(i))
        first.shifts(obs[: 60 * (i + 1)], 60 * (i + 1))
    second = PolicyHistory(gaussian, actor_of(0), Layout(3, 2), reservoir=64, seed=1, estimate=PINSKER)
    second.restore(first.arrays())
    for history in (first, second):
        history.push(actor_of(9))
    assert np.array_equal(first.shifts(obs, 400), second.shifts(obs, 400))
