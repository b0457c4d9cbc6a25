"""Soft actor-critic: targets, temporal-difference errors and temperature by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_batches import LAYOUT, batch, forward

from pdml.agents.base import soft_target, td_errors
from pdml.agents.sac import sac
from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.schema import AgentConfig, Config
from pdml.core.transition import pack


def agent_and_state(seed=0, **changes):
    agent = sac(Config(agent=AgentConfig(hidden_sizes=(16,), **changes)), LAYOUT)
    return agent, agent.init(jax.random.key(seed))


def test_target_is_reward_plus_discounted_soft_value():
    _, state = agent_and_state(temperature=0.3)
    step = batch(0.2, 0.1, 2.0, [0.0, 0.5, -1.0, 3.0], 0.0)
    noise = jnp.asarray([[0.0], [1.0], [-1.0], [0.5]])
    found = soft_target(state, state.target_critics, step, noise, 0.9)
    mean, log_std = np.split(np.asarray(forward(state.actor, np.asarray(step.next_obs))), 2, axis=1)
    u = mean + np.exp(log_std) * np.asarray(noise)
    log_prob = -0.5 * np.asarray(noise) ** 2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    x = np.concatenate([np.asarray(step.next_obs), np.tanh(u)], axis=1)
    value = np.minimum(*(forward(critic, x)[:, 0] for critic in state.target_critics))
    np.testing.assert_allclose(np.asarray(found), 2.0 + 0.9 * (value - 0.3 * log_prob[:, 0]), rtol=1e-4)


def test_terminated_rows_do_not_bootstrap_even_from_values_that_are_not_finite():
    _, state = agent_and_state()
    step = batch(0.0, 0.0, [1.0, 2.0, 3.0, 4.0], [0.0, np.nan, np.inf, 1.0], 1.0)
    assert np.asarray(soft_target(state, state.target_critics, step, jnp.zeros((4, 1)), 0.99)).tolist() == [1, 2, 3, 4]


def test_targets_trail_the_critics_by_tau():
    agent, state = agent_and_state(tau=0.25)
    before = np.asarray(state.target_critics[0][0].w)
    rows = pack(batch(0.1, 0.2, 1.0, 0.3, 0.0))[None]
    after, _, _ = jax.jit(agent.improve)(state, rows, None, jax.random.key(1))
    expected = 0.75 * before + 0.25 * np.asarray(after.critics[0][0].w)
    np.testing.assert_allclose(np.asarray(after.target_critics[0][0].w), expected, rtol=1e-5, atol=1e-7)


def test_a_fixed_temperature_stays_and_a_learned_one_meets_its_target_entropy():
    rows = jnp.broadcast_to(pack(batch([0.0, 0.3, -0.3, 1.0], 0.0, 0.0, 0.0, 1.0))[None], (1500, 4, LAYOUT.width))
    agent, state = agent_and_state(temperature=0.2)
    after, metrics, _ = jax.jit(agent.improve)(state, rows[:50], None, jax.random.key(0))
    assert float(jnp.exp(after.log_alpha)) == pytest.approx(0.2)
    agent, state = agent_and_state(target_entropy=-0.7, learning_rate=3e-3)
    improve = jax.jit(agent.improve)
    state, _, _ = improve(state, rows, None, jax.random.key(0))
    _, metrics, _ = improve(state, rows, None, jax.random.key(1))
    assert float(metrics["agent/entropy"]) == pytest.approx(-0.7, abs=0.15)


def test_td_error_is_the_soft_target_minus_the_mean_value():
    _, state = agent_and_state(temperature=0.3)
    step = batch([0.2, -0.1, 0.0, 1.0], 0.1, 2.0, [0.0, 0.5, -1.0, 3.0], [0.0, 0.0, 1.0, 0.0])
    noise = jnp.asarray([[0.0], [1.0], [-1.0], [0.5]])
    x = np.concatenate([np.asarray(step.obs), np.asarray(step.action)], axis=1)
    value = np.mean([forward(critic, x)[:, 0] for critic in state.critics], axis=0)
    expected = np.asarray(soft_target(state, state.target_critics, step, noise, 0.9)) - value
    np.testing.assert_allclose(np.asarray(td_errors(state, step, noise, 0.9)), expected, rtol=1e-4)
    assert expected[2] == pytest.approx(2.0 - value[2])


def test_log_probabilities_may_count_in_the_environments_action_units():
    config = change(defaults("Humanoid-v5"), {"agent.scaled_log_prob": True}).learning
    assert config.log_action_scale == pytest.approx(17 * np.log(0.4))
    assert defaults("Humanoid-v5").learning.log_action_scale == 0.0
    _, state = agent_and_state(temperature=0.3)
    step, noise = batch(0.2, 0.1, 2.0, 0.5, 0.0), jnp.zeros((4, 1))
    plain, scaled = (soft_target(state, state.target_critics, step, noise, 0.9, scale) for scale in (0.0, np.log(0.4)))
    # A density over actions 0.4 times as wide is 1 / 0.4 times as high: log pi grows, the soft value falls.
    np.testing.assert_allclose(np.asarray(scaled - plain), 0.9 * 0.3 * np.log(0.4), rtol=1e-4)
    rows, entropy, log_alpha = pack(batch(0.2, 0.1, 2.0, 0.5, 0.0))[None], {}, {}
    for counted in (False, True):
        learned = change(
            defaults("Humanoid-v5"), {"agent.scaled_log_prob": counted, "agent.hidden_sizes": (16,)}
        )  # of its 17 actions the layout has one: only the constant counts
        agent = sac(learned.learning, LAYOUT)
        after, metrics, _ = jax.jit(agent.improve)(agent.init(jax.random.key(0)), rows, None, jax.random.key(1))
        entropy[counted], log_alpha[counted] = float(metrics["agent/entropy"]), float(after.log_alpha)
    assert entropy[True] - entropy[False] == pytest.approx(17 * np.log(0.4), rel=1e-4)
    assert log_alpha[True] > log_alpha[False]  # less entropy than wanted: the temperature rises
