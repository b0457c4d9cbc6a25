import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import PHYSICAL, change_capacity, constant_model, newest, ring_of, write

from pdml.config.schema import change, defaults
from pdml.core.nets import Layer
from pdml.core.transition import Layout, Transition
from pdml.envs.termination_fns import never
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser, Targets, elite_means, predict, reward_variance
from pdml.models.rollouts import Imagined, branched, compact, empty, horizon, sizes


def ends_by(rule):
    return lambda model, obs, action, next_obs: rule(next_obs).astype(jnp.float32)


@settings(max_examples=60, deadline=None)
@given(st.integers(6, PHYSICAL), st.lists(st.integers(0, 6), max_size=12), st.integers(6, PHYSICAL))
def test_ring_keeps_the_newest_rows_in_order_through_wraps_and_a_change_of_capacity(capacity, counts, later):
    ring, written = ring_of(capacity), []
    for i, count in enumerate(counts):
        if i == len(counts) // 2:
            ring = change_capacity(ring, jnp.asarray(later, jnp.int32))
            written, capacity = written[-min(capacity, later) :], later
        rows = np.arange(6, dtype=np.float32)[:, None] + 10 * i + 1
        ring = write(ring, jnp.asarray(rows), jnp.asarray(count, jnp.int32))
        written = (written + rows[:count, 0].tolist())[-capacity:]
        assert newest(ring) == written


def test_compaction_keeps_order():
    rows = jnp.arange(5.0)[:, None]
    kept = compact(rows, jnp.array([False, True, False, True, True]))
    assert np.asarray(kept)[:3, 0].tolist() == [1, 3, 4]


def test_horizon_follows_the_schedule():
    hopper = defaults("Hopper-v5").rollouts
    assert [horizon(hopper, e) for e in (0, 20, 25, 26, 60, 100, 200)] == [1, 1, 1, 2, 8, 15, 15]
    humanoid = defaults("Humanoid-v5").rollouts
    assert [horizon(humanoid, e) for e in (0, 20, 300, 400)] == [1, 1, 25, 25]
    assert {horizon(defaults("Walker2d-v5").rollouts, e) for e in range(200)} == {1}


def test_ring_holds_an_epoch_of_calls_and_every_depth_when_capped():
    config = defaults("Hopper-v5")
    assert sizes(config, 1) == (400_000, 100_000)
    assert sizes(config, 2) == (800_000, 100_000)
    for length in (3, 8, 15):
        capacity, branches = sizes(config, length)
        assert capacity == 1_000_000
        assert 0.99e6 < 4 * length * branches <= 1e6
    assert empty(config, Layout(11, 3)).rows.shape == (1_000_000, 27)
    short = change(config, {"steps": 30_000})
    assert empty(short, Layout(11, 3)).rows.shape == (400_000, 27)


LAYOUT = Layout(1, 1)


def unpacked(rows):
    return Transition(*(np.asarray(field) for field in LAYOUT.unpack(rows)))


def imagine(changes, elites, starts, length, terminated=lambda obs: jnp.zeros(len(obs), bool), num=None, batch=None):
    batch = batch or len(starts)
    config = change(
        defaults("Hopper-v5"),
        {"rollouts.batch": batch, "dynamics.num_elites": len(elites), "dynamics.num_members": len(changes)},
    )
    run = jax.jit(branched(config, LAYOUT, lambda actor, obs, key: 0.0 * obs, ends_by(terminated)))
    ring = Imagined(
        jnp.zeros((4 * 4096, LAYOUT.width)), jnp.asarray(4 * 4096, jnp.int32), *[jnp.asarray(0, jnp.int32)] * 2
    )
    padded = np.zeros((batch, 1), np.float32)
    padded[: len(starts), 0] = starts
    model = constant_model(changes, elites)
    actor = (Layer(jnp.zeros((1, 2)), jnp.zeros((2,))),)
    count = jnp.asarray(len(starts) if num is None else num, jnp.int32)
    ring, stats = run(model, actor, ring, jnp.asarray(padded), count, jnp.asarray(length, jnp.int32), jax.random.key(5))
    return unpacked(ring.rows[: int(ring.size)]), stats


def test_elites_step_equal_shares_of_the_rows_and_others_none():
    changes = [1.0, 100.0, 2.0, 100.0, 3.0]
    steps, stats = imagine(changes, [4, 0, 2], np.zeros(300), 1)
    moved, count = np.unique(steps.next_obs[:, 0], return_counts=True)
    assert moved.tolist() == [1.0, 2.0, 3.0]
    assert count.tolist() == [100, 100, 100]
    assert int(stats.steps) == 300


def test_groups_are_dealt_anew_at_every_depth():
    steps, _ = imagine([0.0, 1.0], [0, 1], np.zeros(1000), 2)
    end = steps.next_obs[1000:, 0]
    # With new groups a branch meets the same member twice half of the time; with fixed groups always.
    assert 0.4 < np.mean(end == 1.0) < 0.6


def test_every_depth_is_represented_and_branches_continue_where_they_were():
    steps, _ = imagine([1.0], [0], np.arange(200) * 100.0, 3)
    for depth in range(3):
        rows = slice(200 * depth, 200 * (depth + 1))
        assert np.array_equal(np.sort(steps.obs[rows, 0]), np.arange(200) * 100.0 + depth)
    np.testing.assert_allclose(steps.next_obs - steps.obs, 1.0, atol=1e-3)


def test_the_terminating_row_is_stored_and_nothing_after_it():
    steps, stats = imagine([1.0], [0], np.array([0.0] * 60 + [10.0] * 40), 4, lambda obs: (obs > 11.5)[:, 0])
    assert int(stats.terminated) == 40
    assert int(stats.steps) == 60 * 4 + 40 * 2
    ended = steps.terminated == 1.0
    assert np.array_equal(np.unique(steps.next_obs[ended]), [12.0])
    assert steps.obs.max() == 11.0  # no row begins in a terminated state


def test_rows_that_are_not_finite_are_dropped_and_counted():
    starts = np.zeros(100)
    starts[:7] = np.inf
    steps, stats = imagine([1.0], [0], starts, 2)
    assert int(stats.dropped) == 7
    assert int(stats.steps) == 2 * 93
    assert np.isfinite(steps.next_obs).all()


def test_only_the_given_number_of_branches_is_started():
    steps, stats = imagine([1.0], [0], np.arange(80.0), 2, batch=3000)
    assert int(stats.steps) == 160
    assert np.array_equal(np.sort(steps.obs[:80, 0]), np.arange(80.0))


def test_deterministic_branches_step_by_the_mean_and_the_penalty_is_the_variance_of_all_networks_rewards():
    members = tuple(
        (Layer(jnp.zeros((2, 4)), jnp.array([reward, 0.25, 0.0, 0.0])),) for reward in (1.0, 2.0, 6.0)
    )  # a variance of about 1 in every output
    network = Network(members, Bounds(jnp.full((2,), 0.5), jnp.full((2,), -10.0)))
    model = ModelState(network, (), Normaliser(jnp.zeros((2,)), jnp.ones((2,))), jnp.asarray([0], jnp.int32), ())
    found = {}
    for deterministic, penalty in ((True, 0.0), (True, 0.5), (False, 0.0)):
        changes = {"rollouts.batch": 50, "dynamics.num_elites": 1, "dynamics.num_members": 3}
        changes |= {"rollouts.deterministic": deterministic, "rollouts.reward_penalty": penalty}
        config = change(defaults("Hopper-v5"), changes)
        run = jax.jit(branched(config, LAYOUT, lambda actor, obs, key: 0.0 * obs, ends_by(lambda obs: obs[:, 0] > 9.0)))
        ring = Imagined(jnp.zeros((600, 5)), jnp.asarray(600, jnp.int32), *[jnp.asarray(0, jnp.int32)] * 2)
        actor, one = (Layer(jnp.zeros((1, 2)), jnp.zeros((2,))),), jnp.asarray(1, jnp.int32)
        ring, _ = run(model, actor, ring, jnp.zeros((50, 1)), jnp.asarray(50, jnp.int32), one, jax.random.key(0))
        found[deterministic, penalty] = unpacked(ring.rows[:50])
    np.testing.assert_allclose(found[True, 0.0].next_obs, 0.25)
    np.testing.assert_allclose(found[True, 0.0].reward, 1.0)
    np.testing.assert_allclose(found[True, 0.5].reward, 1.0 - 0.5 * np.var([1.0, 2.0, 6.0]), rtol=1e-5)
    assert found[False, 0.0].next_obs.std() > 0.3


def test_sampled_noise_has_the_predicted_variance():
    changes = [0.5]
    model = constant_model(changes, [0])
    log_var = np.log(0.09)
    noisy = jax.tree.map(lambda b: b, model)
    layer = noisy.network.members[0][0]
    members = ((Layer(layer.w, jnp.array([2.0, 0.5, -50.0, log_var])),),)
    noisy = ModelState(
        Network(members, Bounds(jnp.full((2,), 5.0), jnp.full((2,), -40.0))), (), model.normaliser, model.elites, ()
    )
    config = change(
        defaults("Hopper-v5"), {"rollouts.batch": 4000, "dynamics.num_elites": 1, "dynamics.num_members": 1}
    )
    run = jax.jit(branched(config, LAYOUT, lambda actor, obs, key: 0.0 * obs, ends_by(never)))
    ring = Imagined(jnp.zeros((5000, 5)), jnp.asarray(5000, jnp.int32), *[jnp.asarray(0, jnp.int32)] * 2)
    one = jnp.asarray(1, jnp.int32)
    actor = (Layer(jnp.zeros((1, 2)), jnp.zeros((2,))),)
    ring, _ = run(noisy, actor, ring, jnp.zeros((4000, 1)), jnp.asarray(4000, jnp.int32), one, jax.random.key(0))
    steps = unpacked(ring.rows[:4000])
    assert steps.next_obs.mean() == pytest.approx(0.5, abs=0.02)
    assert steps.next_obs.std() == pytest.approx(0.3, rel=0.05)
    np.testing.assert_allclose(steps.reward, 2.0, atol=1e-3)


@pytest.mark.parametrize("direct", [False, True])
def test_standardised_targets_come_back_in_their_own_units(direct):
    """Member 0 says [2, 0.5] with a noise of 0.3 on the state: a reward of 23, and 57 give or take 30."""
    bias = jnp.array([2.0, 0.5, -50.0, np.log(0.09)])
    members = tuple((Layer(jnp.zeros((2, 4)), bias.at[0].set(reward)),) for reward in (2.0, 4.0))
    network = Network(members, Bounds(jnp.full((2,), 5.0), jnp.full((2,), -40.0)))
    targets = Targets(jnp.array([3.0, 7.0]), jnp.array([10.0, 100.0]), direct)
    normaliser = Normaliser(jnp.zeros((2,)), jnp.ones((2,)))
    model = ModelState(network, (), normaliser, jnp.asarray([0], jnp.int32), (), targets=targets)
    obs, action = jnp.full((4000, 1), 1000.0), jnp.zeros((4000, 1))
    expected = 57.0 if direct else 1057.0  # the next state itself, or on top of the last one
    reward, next_obs = predict(model, members[:1], obs, action, jax.random.key(0))
    assert float(next_obs.mean()) == pytest.approx(expected, abs=2.0)
    assert float(next_obs.std()) == pytest.approx(30.0, rel=0.05)
    np.testing.assert_allclose(reward, 23.0, atol=1e-3)
    _, next_obs = predict(model, members[:1], obs, action, jax.random.key(0), deterministic=True)
    np.testing.assert_allclose(next_obs, expected, rtol=1e-5)
    np.testing.assert_allclose(elite_means(model, obs, action)[0, 0], [23.0, expected - 1000.0], rtol=1e-5)
    np.testing.assert_allclose(reward_variance(model, obs, action), 100.0, rtol=1e-5)  # of 2 and 4, in tens
