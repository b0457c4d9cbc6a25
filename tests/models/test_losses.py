"""Model losses beyond the likelihood: VaGraM's weights and loss by hand, and the switches of the released code."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import LAYOUT, SMALL, fitted, linear_system, predict, uniform

from pdml.agents.base import critic_values, value_gradients
from pdml.agents.sac import sac
from pdml.config.schema import AgentConfig, Config, VagramConfig
from pdml.core.errors import Diverged
from pdml.core.nets import Layer
from pdml.models.ensemble import Bounds, Network
from pdml.models.fit import ensemble
from pdml.models.fit_data import split_rows
from pdml.models.losses import gradient_weights, vagram

CONFIG = Config(warmup_steps=100, dynamics=SMALL, agent=AgentConfig(hidden_sizes=(16,)))


def test_unit_gradients_weigh_nothing_and_the_loss_is_squared_state_error_plus_squared_reward_error():
    np.testing.assert_allclose(gradient_weights(np.ones((9, 4, 2), np.float32), 0.95), 1.0, rtol=1e-6)
    network = Network(
        ((Layer(jnp.zeros((3, 6)), jnp.asarray([0.5, 1.0, -2.0, 9.0, 9.0, 9.0])),),), Bounds(jnp.ones(3), jnp.ones(3))
    )
    y = jnp.asarray([[[0.0, 1.0, 1.0], [1.5, 3.0, 0.0]]])
    loss = vagram(replace(CONFIG, dynamics=replace(SMALL, weight_decay=(0.0,))), LAYOUT, value_gradients)
    found = loss.value(network, jnp.zeros((1, 2, 3)), y, jnp.ones((1, 2, 2)))
    state, reward = np.mean([[0, 9], [4, 4]]), np.mean([0.25, 1.0])
    assert float(found) == pytest.approx(state + reward)
    rows = loss.error(jnp.asarray([[0.5, 1.0, -2.0]] * 2), y[0], jnp.asarray([[1.0, 2.0], [0.5, 0.0]]))
    np.testing.assert_allclose(np.asarray(rows), [0.25 + 9.0, 1.0 + 1.0])


def test_critics_of_unit_slope_make_the_loss_the_plain_squared_error_from_rows_to_loss():
    linear = replace(CONFIG, agent=AgentConfig(hidden_sizes=()), vagram=VagramConfig(mse_steps=0))
    agent = sac(linear, LAYOUT)
    slope = (Layer(jnp.asarray([[1.0], [1.0], [0.0]]), jnp.zeros(1)),)
    state = replace(agent.init(jax.random.key(0)), critics=(slope, slope), target_critics=(slope, slope))
    real, loss = linear_system(200), vagram(linear, LAYOUT, value_gradients)
    carried = loss.carry(real, state, 100)
    np.testing.assert_allclose(carried, 1.0, rtol=1e-5)
    y = LAYOUT.targets(real.rows)
    found = loss.error(jnp.zeros((200, 3)), jnp.asarray(y), jnp.asarray(carried))
    np.testing.assert_allclose(np.asarray(found), (y[:, 1:] ** 2).mean(axis=1) + y[:, 0] ** 2, rtol=1e-4)


def test_diverged_critics_are_named_and_a_quantile_of_zero_cuts_nothing():
    gradients = np.zeros((100, 1, 2), np.float32)
    gradients[0, 0] = 3.0  # all rows but one have no gradient
    weights = gradient_weights(gradients, 0.95)
    np.testing.assert_allclose(weights[0], 100.0)
    assert not weights[1:].any()
    gradients[1] = np.nan
    with pytest.raises(Diverged, match="the critics have diverged"):
        gradient_weights(gradients, 0.95)


def test_gradients_of_value_functions_are_squared_apart_and_scaled_to_mean_one():
    gradients = np.zeros((4, 2, 2), np.float32)
    gradients[:, 0, 0], gradients[:, 1, 0] = 3.0, -3.0  # opposite gradients must not cancel
    gradients[:, :, 1] = 1.0
    np.testing.assert_allclose(gradient_weights(gradients, 1.0), [[1.8, 0.2]] * 4, rtol=1e-6)


def test_long_gradients_are_cut_to_the_quantile_of_their_lengths():
    length = np.arange(1.0, 101.0)
    gradients = np.zeros((100, 1, 2), np.float32)
    gradients[:, 0, 0] = length
    weights = gradient_weights(gradients, 0.95)
    cut = np.minimum(length, np.quantile(length, 0.95))
    np.testing.assert_allclose(weights[:, 0], cut**2 / (cut**2).mean() * 2, rtol=1e-5)
    assert weights.mean() == pytest.approx(1.0, rel=1e-5)
    np.testing.assert_allclose(gradient_weights(np.zeros((5, 2, 3), np.float32), 0.95), 1.0)


def test_value_gradients_are_those_of_each_critic_with_the_action_held_fixed():
    agent = sac(CONFIG, LAYOUT)
    state = agent.init(jax.random.key(3))
    obs = jnp.asarray([[0.3, -0.4], [1.0, 0.2]])
    action = agent.mode(state.actor, obs)
    found = np.asarray(value_gradients(state, obs))
    assert found.shape == (4, 2, 2)
    for d in range(2):
        step = 1e-2 * jnp.eye(2)[d][None]
        for j, critic in enumerate((*state.critics, *state.target_critics)):
            up, down = (critic_values((critic,), obs + sign * step, action)[0] for sign in (1, -1))
            np.testing.assert_allclose(found[j, :, d], np.asarray(up - down) / 2e-2, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_rows_carry_the_gradients_at_their_own_next_state_and_plain_error_is_added_at_the_start():
    real = linear_system(300)
    agent = sac(CONFIG, LAYOUT)
    state = agent.init(jax.random.key(3))
    loss = vagram(replace(CONFIG, vagram=VagramConfig(mse_steps=50)), LAYOUT, value_gradients)
    gradients = np.moveaxis(np.asarray(value_gradients(state, jnp.asarray(real.rows[:, 4:6]))), 0, 1)
    expected = gradient_weights(gradients, 0.95)
    np.testing.assert_allclose(loss.carry(real, state, 150), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss.carry(real, state, 149), expected + 1.0, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_vagram_learns_the_entry_that_the_value_depends_on_before_the_other():
    real = linear_system(2000)
    loss = vagram(CONFIG, LAYOUT, value_gradients)._replace(
        carry=lambda real, agent, step: np.tile(np.float32([2.0, 0.0]), (len(real.rows), 1))
    )
    dynamics = ensemble(replace(CONFIG, dynamics=replace(SMALL, max_epochs=15)), LAYOUT, loss)
    model, _ = dynamics.fit(dynamics.init(jax.random.key(0)), real, uniform(real), None, 0)
    errors = np.mean([(mean - LAYOUT.targets(real.rows)) ** 2 for mean, _ in predict(model, real.rows)], axis=(0, 1))
    change = LAYOUT.targets(real.rows).var(axis=0)
    assert errors[1] < 0.2 * change[1]
    assert errors[2] > 0.5 * change[2]


def test_frozen_bounds_stay_where_they_began():
    real = linear_system(300)
    for train_bounds in (True, False):
        model, _ = fitted(replace(SMALL, max_epochs=3, train_bounds=train_bounds), real)
        moved = not np.allclose(np.asarray(model.network.bounds.upper), 0.5)
        assert moved == train_bounds


def test_without_restoring_a_fit_ends_with_the_last_weights_and_elites_by_the_last_error():
    real = linear_system(400)
    coarse = replace(SMALL, learning_rate=0.05, patience=2, max_epochs=40)
    last = replace(coarse, restore_best=False)
    model, metrics = fitted(last, real)
    _, holdout = split_rows(real, last, 0, 0)
    targets = LAYOUT.targets(real.rows)[holdout]
    errors = [np.mean((mean - targets) ** 2) for mean, _ in predict(model, real.rows[holdout])]
    assert metrics["model/holdout_error"] == pytest.approx(np.sort(errors)[:2].mean(), rel=1e-3)
    assert fitted(coarse, real)[1]["model/holdout_error"] < metrics["model/holdout_error"]


def test_a_weighted_holdout_counts_rows_by_their_weights():
    real = linear_system(400)
    weights = np.where(np.arange(400) < 200, 3.0, 1.0) / 800
    for kind in ("uniform", "weighted"):
        config = replace(SMALL, max_epochs=3, holdout_weights=kind)
        model, metrics = fitted(config, real, weights)
        _, holdout = split_rows(real, config, 0, 0)
        share = weights[holdout] if kind == "weighted" else np.ones(len(holdout))
        rows = [
            np.mean((mean - LAYOUT.targets(real.rows)[holdout]) ** 2, axis=1)
            for mean, _ in predict(model, real.rows[holdout])
        ]
        errors = np.sort([np.average(row, weights=share) for row in rows])
        assert metrics["model/holdout_error"] == pytest.approx(errors[:2].mean(), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("holdout", ["fresh", "fixed"])
def test_a_fit_is_uniform_when_all_weighted_rows_happen_to_be_held_out(holdout):
    real = linear_system(40)
    config = replace(SMALL, max_epochs=3, holdout=holdout)
    _, held = split_rows(real, config, 0, 0)
    weights = np.zeros(40)
    weights[held[:2]] = 0.5
    (model, _), (plain, _) = fitted(config, real, weights), fitted(config, real)
    for a, b in zip(jax.tree.leaves(model.network), jax.tree.leaves(plain.network), strict=True):
        assert np.array_equal(a, b)
