"""Branched rollouts: who steps which rows, where branches end, and what a step predicts, all by hand."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rings import constant_model

from pdml.config.defaults import defaults
from pdml.config.fields import change_learning
from pdml.core.nets import Layer
from pdml.core.transition import Layout, Transition
from pdml.data.model_buffer import blank_buffer
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser, Targets, elite_means, predict, reward_variance
from pdml.models.rollouts import branched

LAYOUT = Layout(1, 1)
ACTOR = (Layer(jnp.zeros((1, 2)), jnp.zeros((2,))),)
CAPACITY = 4 * 4096


def ends_at_twelve(model, obs, action, next_obs):
    return (jnp.abs(next_obs[:, 0] - 12.0) < 0.5).astype(jnp.float32)


@cache
def program(batch, elites, members, **changes):
    """Return compiled rollouts of a policy that does nothing; tests of the same sizes share them."""
    sizes = {"rollouts.batch": batch, "dynamics.num_elites": elites, "dynamics.num_members": members}
    config = change_learning(defaults("Hopper-v5").learning, sizes | {f"rollouts.{k}": v for k, v in changes.items()})
    return jax.jit(branched(config, LAYOUT, lambda actor, obs, key: 0.0 * obs, ends_at_twelve))


def roll_out(model, starts, length, batch=1200, **changes):
    """Roll out from some starts; a single elite steps chunks of 512 rows."""
    padded = np.zeros((batch, 1), np.float32)
    padded[: len(starts), 0] = starts
    run = program(batch, len(model.elites), len(model.network.members), **changes)
    counts = (jnp.asarray(number, jnp.int32) for number in (len(starts), length))
    buffer = blank_buffer(CAPACITY, LAYOUT.width, CAPACITY)
    buffer, stats = run(model, ACTOR, buffer, jnp.asarray(padded), *counts, jax.random.key(5))
    return Transition(*(np.asarray(field) for field in LAYOUT.unpack(buffer.rows[: int(buffer.size)]))), stats


ONE = constant_model([1.0], [0])
"""Moves every state by 1."""


def test_elites_step_equal_shares_of_the_rows_and_others_none():
    model = constant_model([1.0, 100.0, 2.0, 100.0, 3.0], [4, 0, 2])
    steps, stats = roll_out(model, np.zeros(300), 1, batch=300)
    moved, count = np.unique(steps.next_obs[:, 0], return_counts=True)
    assert moved.tolist() == [1.0, 2.0, 3.0]
    assert count.tolist() == [100, 100, 100]
    assert int(stats.steps) == 300


def test_groups_are_dealt_again_at_every_depth():
    steps, _ = roll_out(constant_model([0.0, 1.0], [0, 1]), np.zeros(1000), 2, batch=1000)
    end = steps.next_obs[1000:, 0]
    # With new groups a branch meets the same member twice half of the time; with fixed groups always.
    assert 0.4 < np.mean(end == 1.0) < 0.6


@pytest.mark.parametrize("count", [200, 1200])
def test_every_depth_is_represented_and_branches_continue_where_they_were(count):
    steps, _ = roll_out(ONE, np.arange(count) * 100.0, 3)
    for depth in range(3):
        rows = slice(count * depth, count * (depth + 1))
        assert np.array_equal(np.sort(steps.obs[rows, 0]), np.arange(count) * 100.0 + depth)
    np.testing.assert_allclose(steps.next_obs - steps.obs, 1.0, atol=1e-3)


@pytest.mark.parametrize("times", [1, 12])
def test_the_terminating_row_is_stored_and_nothing_after_it(times):
    """With 1200 branches, those that survive move up from one chunk of 512 into another."""
    steps, stats = roll_out(ONE, np.array(([0.0] * 60 + [10.0] * 40) * times), 4)
    assert int(stats.terminated) == 40 * times
    assert int(stats.steps) == (60 * 4 + 40 * 2) * times
    ended = steps.terminated == 1.0
    assert np.array_equal(np.unique(steps.next_obs[ended]), [12.0])
    assert steps.obs.max() == 11.0  # no row begins in a terminated state


def test_rows_that_are_not_finite_are_dropped_and_counted():
    starts = np.zeros(100)
    starts[:7] = np.inf
    steps, stats = roll_out(ONE, starts, 2)
    assert int(stats.dropped) == 7
    assert int(stats.steps) == 2 * 93
    assert np.isfinite(steps.next_obs).all()


def test_only_the_given_number_of_branches_is_started():
    steps, stats = roll_out(ONE, 100.0 + np.arange(80.0), 2)
    assert int(stats.steps) == 160
    assert np.array_equal(np.sort(steps.obs[:80, 0]), 100.0 + np.arange(80.0))


def model_of(biases, upper, lower):
    """Return a model whose network i says biases[i], the means and log-variances, of every step."""
    members = tuple((Layer(jnp.zeros((2, 4)), jnp.asarray(bias, jnp.float32)),) for bias in biases)
    network = Network(members, Bounds(jnp.full((2,), upper), jnp.full((2,), lower)))
    return ModelState(network, (), Normaliser(jnp.zeros((2,)), jnp.ones((2,))), jnp.asarray([0], jnp.int32), ())


@pytest.mark.slow
def test_deterministic_branches_step_by_the_mean_and_the_penalty_is_the_variance_of_all_networks_rewards():
    model = model_of([[reward, 0.25, 0.0, 0.0] for reward in (1.0, 2.0, 6.0)], 0.5, -10.0)  # variances of about 1
    found = {}
    for deterministic, penalty in ((True, 0.0), (True, 0.5), (False, 0.0)):
        changes = {"deterministic": deterministic, "reward_penalty": penalty}
        found[deterministic, penalty] = roll_out(model, np.zeros(50), 1, batch=50, **changes)[0]
    np.testing.assert_allclose(found[True, 0.0].next_obs, 0.25)
    np.testing.assert_allclose(found[True, 0.0].reward, 1.0)
    np.testing.assert_allclose(found[True, 0.5].reward, 1.0 - 0.5 * np.var([1.0, 2.0, 6.0]), rtol=1e-5)
    assert found[False, 0.0].next_obs.std() > 0.3


def test_sampled_noise_has_the_predicted_variance():
    model = model_of([[2.0, 0.5, -50.0, np.log(0.09)]], 5.0, -40.0)
    steps, _ = roll_out(model, np.zeros(1200), 3)
    moves = steps.next_obs - steps.obs
    assert len(moves) == 3600
    assert moves.mean() == pytest.approx(0.5, abs=0.02)
    assert moves.std() == pytest.approx(0.3, rel=0.05)
    np.testing.assert_allclose(steps.reward, 2.0, atol=1e-3)


@pytest.mark.parametrize("direct", [False, True])
def test_standardised_targets_come_back_in_their_own_units(direct):
    """Member 0 says [2, 0.5] with a noise of 0.3 on the state: a reward of 23, and 57 give or take 30."""
    model = model_of([[reward, 0.5, -50.0, np.log(0.09)] for reward in (2.0, 4.0)], 5.0, -40.0)
    model = replace(model, targets=Targets(jnp.array([3.0, 7.0]), jnp.array([10.0, 100.0]), direct))
    members = model.network.members
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
