"""Updates of critics, actor and temperature, by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import (
    GAMMA,
    LAYOUT,
    MEMBERS,
    NEVER,
    ROWS,
    STEPS,
    agent_state,
    endless_rollout,
    linear_model,
    noise_for,
    optimisers_of,
    small_config,
)

from pdml.dhmbpo.learner import state_buffer_rows, update_plan
from pdml.dhmbpo.rollouts import TrainingRollout, sample_noise, training_rollout
from pdml.dhmbpo.updates import actor_loss, choose_critics, critic_target, scaled_values, update_bounds, updates

SIZES = {
    "batch_size": ROWS,
    "double.near": STEPS,
    "dynamics.num_members": MEMBERS,
    "agent.hidden_sizes": (16,),
    "agent.num_critics": 3,
}


@pytest.mark.slow
def test_an_update_moves_the_actor_by_the_gradient_of_its_loss_with_the_critics_already_moved():
    """Adam's first step is the sign of the gradient, times the learning rate."""
    config = small_config(SIZES)
    state, model, rate = agent_state(alpha=0.1), linear_model(noise=0.2), config.agent.learning_rate
    obs, update_key = jax.random.normal(jax.random.key(9), (ROWS, 2)), jax.random.key(5)
    opts = optimisers_of(state, rate)
    after, _, metrics = jax.jit(updates(config, LAYOUT, NEVER).all_networks)(state, opts, model, obs, update_key)
    noise = sample_noise(config, LAYOUT, STEPS + 1, jax.random.split(update_key)[0])

    def loss(layers):
        rollout = training_rollout(replace(state.actor, layers=layers), model, NEVER, obs, noise)
        moved = replace(after, log_alpha=state.log_alpha)  # critics and bounds after their step
        return actor_loss(moved, rollout, config.agent.gamma)

    value, grads = jax.jit(jax.value_and_grad(loss))(state.actor.layers)
    assert float(metrics["agent/actor_loss"]) == pytest.approx(float(value), rel=1e-4)
    for old, new, grad in zip(
        *(jax.tree.leaves(t) for t in (state.actor.layers, after.actor.layers, grads)), strict=True
    ):
        large = np.abs(grad) > 1e-4
        assert large.any()
        np.testing.assert_allclose((new - old)[large], -rate * np.sign(grad)[large], rtol=0.02)
    slope = float(jnp.exp(state.log_alpha)) * (float(metrics["agent/entropy"]) - config.agent.target_entropy)
    assert float(after.log_alpha - state.log_alpha) == pytest.approx(-rate * np.sign(slope), rel=0.02)
    fixed = jax.jit(updates(small_config(SIZES | {"agent.temperature": 0.1}), LAYOUT, NEVER).all_networks)
    assert float(fixed(state, opts, model, obs, update_key)[0].log_alpha) == float(state.log_alpha)


@pytest.mark.slow
def test_updates_of_the_critics_only_move_them_towards_the_bounded_target_and_nothing_else():
    config = small_config(SIZES | {"double.critic_dropout": 0.0, "agent.tau": 0.1})
    state, model, rate = agent_state(alpha=0.1), linear_model(noise=0.2), config.agent.learning_rate
    state = replace(state, target_critics=jax.tree.map(lambda leaf: 0.5 * leaf, state.critics))
    obs, update_key = jax.random.normal(jax.random.key(9), (ROWS, 2)), jax.random.key(5)
    opts = optimisers_of(state, rate)
    after, _, metrics = updates(config, LAYOUT, NEVER).critics_only(state, opts, model, obs, update_key)
    assert after.actor is state.actor
    assert after.log_alpha is state.log_alpha
    step_key, critic_key = jax.random.split(update_key)
    rollout = endless_rollout(state.actor, model, obs, sample_noise(config, LAYOUT, STEPS + 1, step_key))
    bounded = replace(state, bounds=after.bounds)
    chosen = jax.random.permutation(jax.random.split(critic_key)[0], 3)[:2]
    target = critic_target(bounded, choose_critics(state.target_critics, chosen), rollout, config.agent.gamma)

    def loss(critics):
        return jnp.square(scaled_values(critics, bounded, obs, rollout.action) - target[None]).mean(axis=1).sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(state.critics)
    assert float(metrics["agent/critic_loss"]) == pytest.approx(float(value), rel=1e-4)
    trees = (state.critics, after.critics, grads, state.target_critics, after.target_critics)
    for old, new, grad, target_old, target_new in zip(*map(jax.tree.leaves, trees), strict=True):
        large = np.abs(grad) > 1e-3
        assert large.reshape(3, -1).any(axis=1).all()  # each critic learns
        np.testing.assert_allclose((new - old)[large], -rate * np.sign(grad)[large], rtol=0.02)
        np.testing.assert_allclose(target_new, target_old + 0.1 * (new - target_old), rtol=1e-5, atol=1e-6)


def test_values_at_the_end_of_a_rollout_are_held_within_the_bounds():
    state, model = agent_state(), linear_model()
    obs, noise = 3.0 * jax.random.normal(jax.random.key(9), (ROWS, 2)), noise_for(STEPS + 1)
    rollout = endless_rollout(state.actor, model, obs, noise)
    found = np.asarray(scaled_values(state.critics, state, rollout.last_obs, rollout.last_action)).min(axis=0)
    assert ((found < -5.0) | (found > 9.0)).any()
    rewards = (GAMMA ** np.arange(STEPS)[:, None] * np.asarray(rollout.reward)).sum(axis=0)
    expected = rewards + GAMMA**STEPS * np.clip(found, -5.0, 9.0)
    np.testing.assert_allclose(critic_target(state, state.critics, rollout, GAMMA), expected, rtol=1e-4, atol=1e-4)


def test_the_bounds_of_values_are_copied_first_and_follow_slowly_then():
    config = small_config({})
    reward = jnp.linspace(0.0, 1.0, 500).reshape(5, 100)
    rollout = TrainingRollout(
        reward, jnp.zeros((6, 100)), jnp.ones((6, 100)), jnp.zeros((100, 1)), jnp.zeros((100, 2)), jnp.zeros((100, 1))
    )
    state = update_bounds(replace(agent_state(), bounded=jnp.zeros(())), rollout, config)
    np.testing.assert_allclose(state.bounds, [0.01 * 200, 0.99 * 200], rtol=1e-3)
    again = update_bounds(state, rollout._replace(reward=reward + 1.0), config)
    np.testing.assert_allclose(again.bounds - state.bounds, [3e-4 * 200] * 2, rtol=1e-2)


@pytest.mark.slow
def test_critics_learn_with_dropout():
    found = set()
    for rate in (0.0, 0.5):
        config = small_config(SIZES | {"double.near": 2, "double.critic_dropout": rate})
        state = agent_state()
        opts = optimisers_of(state, 1e-3)
        obs = jax.random.normal(jax.random.key(9), (ROWS, 2))
        _, _, metrics = updates(config, LAYOUT, NEVER).critics_only(state, opts, linear_model(), obs, jax.random.key(0))
        found.add(round(float(metrics["agent/critic_loss"]), 4))
    assert len(found) == 2


def test_updates_and_distribution_rollouts_are_counted_as_published():
    config = small_config({})
    for pending_steps, expected in ((5000, 5000), (1000, 1000)):
        found = update_plan(config, pending_steps)
        assert sum(count for alone, count in found if alone) == 250
        assert sum(count for alone, count in found if not alone) == expected
        assert {count for alone, count in found if not alone} == {20}  # distribution rollouts before each
    twice = update_plan(small_config({"updates_per_step": 2}), 1000)
    assert sum(count for alone, count in twice if not alone) == 2000
    assert all(not alone for alone, _ in update_plan(small_config({"double.critic_share": 0.0}), 1000))
    many = [count for alone, count in update_plan(small_config({"double.critic_share": 0.6}), 1000) if alone]
    assert many == [250, 250, 100]  # more than are published: their states are refreshed too
    assert state_buffer_rows(config) == 51_200
