"""Soft actor-critic: targets by hand, and five probe environments whose answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pdml.agents import critic_values, sac, soft_target
from pdml.config import AgentConfig
from pdml.transition import Layout, Transition, pack

LAYOUT = Layout(1, 1)


def batch(obs, action, reward, next_obs, terminated):
    columns = (obs, action, reward, next_obs, terminated)
    o, a, r, n, d = (jnp.asarray(np.broadcast_to(np.asarray(c, np.float32), (4,))) for c in columns)
    return Transition(o[:, None], a[:, None], r, n[:, None], d)


def agent_and_state(seed=0, **changes):
    agent = sac(AgentConfig(hidden_sizes=(16,), **changes), LAYOUT)
    return agent, agent.init(jax.random.key(seed))


def test_target_is_reward_plus_discounted_soft_value():
    _, state = agent_and_state(temperature=0.3)
    step = batch(0.2, 0.1, 2.0, [0.0, 0.5, -1.0, 3.0], 0.0)
    noise = jnp.asarray([[0.0], [1.0], [-1.0], [0.5]])
    found = soft_target(state, step, noise, 0.9)
    mean, log_std = np.split(np.asarray(_forward(state.actor, np.asarray(step.next_obs))), 2, axis=1)
    u = mean + np.exp(log_std) * np.asarray(noise)
    log_prob = -0.5 * np.asarray(noise) ** 2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2)
    x = np.concatenate([np.asarray(step.next_obs), np.tanh(u)], axis=1)
    value = np.minimum(*(_forward(critic, x)[:, 0] for critic in state.target_critics))
    np.testing.assert_allclose(np.asarray(found), 2.0 + 0.9 * (value - 0.3 * log_prob[:, 0]), rtol=1e-4)


def _forward(layers, x):
    for layer in layers[:-1]:
        x = np.maximum(x @ np.asarray(layer.w) + np.asarray(layer.b), 0.0)
    return x @ np.asarray(layers[-1].w) + np.asarray(layers[-1].b)


def test_terminated_rows_do_not_bootstrap_even_from_values_that_are_not_finite():
    _, state = agent_and_state()
    step = batch(0.0, 0.0, [1.0, 2.0, 3.0, 4.0], [0.0, np.nan, np.inf, 1.0], 1.0)
    assert np.asarray(soft_target(state, step, jnp.zeros((4, 1)), 0.99)).tolist() == [1, 2, 3, 4]


def test_targets_trail_the_critics_by_tau():
    agent, state = agent_and_state(tau=0.25)
    before = np.asarray(state.target_critics[0][0].w)
    rows = pack(batch(0.1, 0.2, 1.0, 0.3, 0.0))[None]
    after, _ = jax.jit(agent.improve)(state, rows, jax.random.key(1))
    expected = 0.75 * before + 0.25 * np.asarray(after.critics[0][0].w)
    np.testing.assert_allclose(np.asarray(after.target_critics[0][0].w), expected, rtol=1e-5, atol=1e-7)


def test_a_fixed_temperature_stays_and_a_learned_one_meets_its_target_entropy():
    rows = jnp.broadcast_to(pack(batch([0.0, 0.3, -0.3, 1.0], 0.0, 0.0, 0.0, 1.0))[None], (1500, 4, LAYOUT.width))
    agent, state = agent_and_state(temperature=0.2)
    after, metrics = jax.jit(agent.improve)(state, rows[:50], jax.random.key(0))
    assert float(jnp.exp(after.log_alpha)) == pytest.approx(0.2)
    agent, state = agent_and_state(target_entropy=-0.7, learning_rate=3e-3)
    improve = jax.jit(agent.improve)
    state, _ = improve(state, rows, jax.random.key(0))
    _, metrics = improve(state, rows, jax.random.key(1))
    assert float(metrics["agent/entropy"]) == pytest.approx(-0.7, abs=0.15)


def solve(step, updates=1500, gamma=0.9):
    """Train on random transitions of a probe; `step(obs, action)` gives reward, next_obs, terminated."""
    agent = sac(AgentConfig(hidden_sizes=(32, 32), learning_rate=3e-3, gamma=gamma, temperature=1e-3, tau=0.05), LAYOUT)
    drawn = np.random.default_rng(0)
    obs = drawn.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (updates, 64)).astype(np.float32)
    action = drawn.uniform(-1, 1, (updates, 64)).astype(np.float32)
    reward, next_obs, terminated = step(obs, action)
    rows = np.stack([obs, action, *(np.broadcast_to(c, obs.shape) for c in (reward, next_obs, terminated))], axis=-1)
    state, _ = jax.jit(agent.improve)(agent.init(jax.random.key(0)), rows.astype(np.float32), jax.random.key(1))

    def value(o, a=0.0):
        return float(critic_values(state.critics, jnp.full((1, 1), o), jnp.full((1, 1), a)).mean())

    def mode(o):
        return float(agent.mode(state.actor, jnp.full((1, 1), o))[0, 0])

    return value, mode


def test_probe_1_a_constant_reward_has_its_value():
    value, _ = solve(lambda o, a: (np.ones_like(o), o, np.ones_like(o)), 500)
    assert value(0.0) == pytest.approx(1.0, abs=0.05)


def test_probe_2_the_value_follows_the_observation():
    value, _ = solve(lambda o, a: (o, o, np.ones_like(o)), 800)
    for o in (-1.0, 0.0, 1.0):
        assert value(o) == pytest.approx(o, abs=0.1)


def test_probe_3_a_delayed_reward_is_discounted():
    # Observation 0 leads to 1 without reward; 1 ends with reward 1.
    def step(o, a):
        last = o > 0.75
        return np.where(last, 1.0, 0.0), np.ones_like(o), np.where(last, 1.0, 0.0)

    value, _ = solve(step)
    assert value(1.0) == pytest.approx(1.0, abs=0.05)
    assert value(0.0) == pytest.approx(0.9, abs=0.08)


def test_probe_4_the_policy_finds_the_best_action():
    _, mode = solve(lambda o, a: (-np.square(a - 0.5), o, np.ones_like(o)))
    assert mode(0.0) == pytest.approx(0.5, abs=0.15)


def test_probe_5_the_policy_depends_on_the_observation():
    _, mode = solve(lambda o, a: (-np.square(a - 0.8 * o), o, np.ones_like(o)))
    for o in (-1.0, -0.5, 0.5, 1.0):
        assert mode(o) == pytest.approx(0.8 * o, abs=0.15)
