"""Soft actor-critic and its relatives: targets by hand, and five probes whose answers are known, for every agent."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rings import constant_model, ring_of

from pdml.agents.maper import augmented_terms, balance, maper, predicted_reward, train_heads
from pdml.agents.sac import critic_values, redq, sac, soft_target, td_errors
from pdml.config.schema import AgentConfig, Config, change, defaults
from pdml.core.nets import Layer
from pdml.core.pytree import copy
from pdml.core.transition import Layout, Transition, pack
from pdml.data.replay import RealRows

LAYOUT = Layout(1, 1)


def batch(obs, action, reward, next_obs, terminated):
    columns = (obs, action, reward, next_obs, terminated)
    o, a, r, n, d = (jnp.asarray(np.broadcast_to(np.asarray(c, np.float32), (4,))) for c in columns)
    return Transition(o[:, None], a[:, None], r, n[:, None], d)


def agent_and_state(seed=0, **changes):
    agent = sac(Config(agent=AgentConfig(hidden_sizes=(16,), **changes)), LAYOUT)
    return agent, agent.init(jax.random.key(seed))


def test_target_is_reward_plus_discounted_soft_value():
    _, state = agent_and_state(temperature=0.3)
    step = batch(0.2, 0.1, 2.0, [0.0, 0.5, -1.0, 3.0], 0.0)
    noise = jnp.asarray([[0.0], [1.0], [-1.0], [0.5]])
    found = soft_target(state, state.target_critics, step, noise, 0.9)
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
    value = np.mean([_forward(critic, x)[:, 0] for critic in state.critics], axis=0)
    expected = np.asarray(soft_target(state, state.target_critics, step, noise, 0.9)) - value
    np.testing.assert_allclose(np.asarray(td_errors(state, step, noise, 0.9)), expected, rtol=1e-4)
    assert expected[2] == pytest.approx(2.0 - value[2])


def test_log_probabilities_may_count_in_the_environments_action_units():
    config = change(defaults("Humanoid-v5"), {"agent.scaled_log_prob": True})
    assert config.log_action_scale == pytest.approx(17 * np.log(0.4))
    assert defaults("Humanoid-v5").log_action_scale == 0.0
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
        agent = sac(learned, LAYOUT)
        after, metrics, _ = jax.jit(agent.improve)(agent.init(jax.random.key(0)), rows, None, jax.random.key(1))
        entropy[counted], log_alpha[counted] = float(metrics["agent/entropy"]), float(after.log_alpha)
    assert entropy[True] - entropy[False] == pytest.approx(17 * np.log(0.4), rel=1e-4)
    assert log_alpha[True] > log_alpha[False]  # less entropy than wanted: the temperature rises


def redq_config(num_critics, subset, **changes):
    agent = AgentConfig(hidden_sizes=(16,), num_critics=num_critics, subset=subset, **changes)
    return Config(method="redq", agent=agent)


def without_noise(state):
    """Narrow the policy until its samples are its mode; with a tiny temperature no draw then reaches a target."""
    last = state.actor[-1]
    return replace(state, actor=(*state.actor[:-1], Layer(last.w.at[:, 1].set(0.0), last.b.at[1].set(-19.0))))


def test_redq_with_two_critics_and_both_in_the_subset_moves_its_critics_as_sac():
    config = redq_config(2, 2, temperature=1e-9)
    rows = pack(batch([0.2, 0.1, 0.0, -0.5], [0.1, 0.5, -0.2, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0))[None]
    after = []
    for agent in (redq(config, LAYOUT), sac(config, LAYOUT)):
        state = without_noise(agent.init(jax.random.key(0)))
        after.append(jax.jit(agent.improve)(state, rows, None, jax.random.key(1))[0])
    for a, b in zip(jax.tree.leaves(after[0].critics), jax.tree.leaves(after[1].critics), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-7)


def test_the_actors_of_redq_and_sac_follow_the_mean_and_the_least_of_the_critics():
    rows = pack(batch([0.2, 0.1, 0.0, -0.5], [0.1, 0.5, -0.2, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0))[None]
    for build, combine in ((redq, np.mean), (sac, np.min)):
        agent = build(redq_config(6, 2, temperature=1e-9), LAYOUT)
        state = without_noise(agent.init(jax.random.key(0)))
        after, metrics, _ = jax.jit(agent.improve)(state, rows, None, jax.random.key(1))
        obs = LAYOUT.unpack(rows[0]).obs
        values = np.asarray(critic_values(after.critics, obs, agent.mode(state.actor, obs)))
        assert float(metrics["agent/actor_loss"]) == pytest.approx(-combine(values, axis=0).mean(), rel=1e-4)


def test_redq_moves_all_critics_at_each_update_and_the_actor_once_after_the_last():
    agent = redq(redq_config(10, 2), LAYOUT)
    state = agent.init(jax.random.key(0))
    rows = jnp.broadcast_to(pack(batch([0.0, 0.3, -0.3, 1.0], 0.0, 1.0, 0.5, 0.0))[None], (7, 4, LAYOUT.width))
    after, metrics, priorities = jax.jit(agent.improve)(state, rows, None, jax.random.key(1))
    assert int(after.critic_opt[0].count) == 7
    assert int(after.actor_opt[0].count) == int(after.alpha_opt[0].count) == 1
    assert len(after.critics) == 10
    for old, new in zip(state.critics, after.critics, strict=True):
        assert not np.array_equal(old[0].w, new[0].w)
    assert priorities is None
    assert set(metrics) == {f"agent/{n}" for n in ("critic_loss", "value", "actor_loss", "entropy", "temperature")}


def test_redq_draws_a_random_pair_at_each_update():
    """Only chosen target critics are read: with one that is not a number, the share of spoilt updates is theirs."""
    agent = redq(redq_config(5, 2, learning_rate=1e-12), LAYOUT)
    state = agent.init(jax.random.key(0))
    spoilt = jax.tree.map(lambda leaf: leaf * jnp.nan, state.target_critics[3])
    state = replace(state, target_critics=(*state.target_critics[:3], spoilt, state.target_critics[4]))
    rows = pack(batch([0.0, 0.3, -0.3, 1.0], 0.0, 1.0, 0.5, 0.0))[None]
    improve = jax.jit(agent.improve)
    bad = [np.isnan(improve(state, rows, None, jax.random.key(i))[1]["agent/critic_loss"]) for i in range(200)]
    assert np.mean(bad) == pytest.approx(2 / 5, abs=0.12)


def test_maper_terms_priority_balance_and_target_by_hand():
    agent = maper(Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(16,))), LAYOUT)
    state = agent.init(jax.random.key(0))
    assert state.critics[0][-1].b.shape == (3,)  # value, reward, next state
    step, target = batch(0.2, [0.1, 0.2, -0.3, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0), jnp.asarray([1.0, 2.0, 3.0, 4.0])
    x = np.concatenate([np.asarray(step.obs), np.asarray(step.action)], axis=1)
    out = np.stack([_forward(critic, x) for critic in state.critics])
    terms, _ = augmented_terms(state.critics, step, target)
    np.testing.assert_allclose(np.asarray(terms[0]), ((out[..., 0] - np.asarray(target)) ** 2).sum(0), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(terms[1]), ((out[..., 1] - 2.0) ** 2).sum(0), rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(terms[2]), ((out[..., 2] - np.asarray(step.next_obs)[:, 0]) ** 2).sum(0), rtol=1e-4
    )
    np.testing.assert_allclose(np.asarray(predicted_reward(state.critics, step)), out[..., 1].mean(0), rtol=1e-4)
    raw = np.exp(np.array([2.0, 1.0, 0.5]) / 50.0)
    found = balance(jnp.asarray([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]]), 50.0)
    np.testing.assert_allclose(np.asarray(found), raw / raw.mean(), rtol=1e-5)
    assert np.asarray(found).mean() == pytest.approx(1.0)


def test_maper_priorities_are_half_the_summed_errors_of_the_batch_before_its_update():
    agent = maper(Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(16,), temperature=0.3)), LAYOUT)
    state = agent.init(jax.random.key(0))
    step = batch(0.2, [0.1, 0.2, -0.3, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 1.0)  # terminal: the target is the reward
    target = predicted_reward(state.critics, step)
    expected = 0.5 * augmented_terms(state.critics, step, target)[0].sum(axis=0)
    after, _, priorities = jax.jit(agent.improve)(state, pack(step)[None], None, jax.random.key(1))
    np.testing.assert_allclose(np.asarray(priorities[0]), np.asarray(expected), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(after.last_losses[0]), 1.0)


def test_rows_without_importance_teach_maper_nothing():
    agent = maper(Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(16,))), LAYOUT)
    state = agent.init(jax.random.key(0))
    rows = pack(batch([0.2, 0.4, 0.6, 0.8], 0.1, 2.0, 0.5, 1.0))[None]
    other = rows.at[0, 2:].set(pack(batch(-0.9, 0.9, -50.0, 5.0, 1.0))[2:])
    importance = jnp.asarray([[1.0, 0.5, 0.0, 0.0]])
    improve = jax.jit(agent.improve)
    first, second = (improve(state, x, importance, jax.random.key(1))[0] for x in (rows, other))
    for a, b in zip(
        jax.tree.leaves((first.critics, first.actor)), jax.tree.leaves((second.critics, second.actor)), strict=True
    ):
        assert np.array_equal(a, b)


def test_heads_are_trained_as_often_as_the_model_and_leave_actor_targets_and_the_values_output_alone():
    config = Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(32,), learning_rate=3e-3))
    agent = maper(config, LAYOUT)
    state = agent.init(jax.random.key(0))
    before = copy(state)
    drawn = np.random.default_rng(0)
    obs, action = drawn.uniform(-1, 1, (500, 1)), drawn.uniform(-1, 1, (500, 1))
    rows = np.column_stack([obs, action, obs - action, obs + 0.1 * action, np.zeros(500)]).astype(np.float32)
    real = RealRows(rows, np.zeros(500, np.int32), np.arange(500), np.array([500]))
    _, after, metrics = train_heads(config, LAYOUT)(
        constant_model([0.0], [0]), state, ring_of(6), real, {"model/batches": 900.0}, 60
    )
    assert int(after.critic_opt[0].count) == 900
    for a, b in zip(
        jax.tree.leaves((before.actor, before.target_critics)),
        jax.tree.leaves((after.actor, after.target_critics)),
        strict=True,
    ):
        assert np.array_equal(a, b)
    for old, new in zip(before.critics, after.critics, strict=True):
        assert np.array_equal(old[-1].w[:, 0], new[-1].w[:, 0])  # the value's own weights have no gradient
    step = LAYOUT.unpack(jnp.asarray(rows))
    (_, reward, next_obs), _ = augmented_terms(after.critics, step, jnp.zeros(500))
    assert float(reward.mean()) < 0.05
    assert float(next_obs.mean()) < 0.05
    assert metrics["agent/head_loss"] > float((reward + next_obs).mean())


AGENTS = {"sac": sac, "redq": redq, "maper": maper}
every_agent = pytest.mark.parametrize("kind", AGENTS)


UPDATES = 1500


@functools.cache
def learner(kind):
    """One compiled training for all probes of an agent."""
    options = AgentConfig(
        hidden_sizes=(32, 32), learning_rate=3e-3, gamma=0.9, temperature=1e-3, tau=0.05, num_critics=4
    )
    agent = AGENTS[kind](Config(agent=options), LAYOUT)

    def learn(state, rows, keys):
        return jax.lax.scan(lambda s, x: (agent.improve(s, x[0], None, x[1])[0], None), state, (rows, keys))[0]

    return agent, jax.jit(learn)


def solve(kind, step):
    """Train on random transitions of a probe; `step(obs, action)` gives reward, next_obs, terminated."""
    agent, learn = learner(kind)
    drawn = np.random.default_rng(0)
    obs = drawn.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (UPDATES, 64)).astype(np.float32)
    action = drawn.uniform(-1, 1, (UPDATES, 64)).astype(np.float32)
    reward, next_obs, terminated = step(obs, action)
    rows = np.stack([obs, action, *(np.broadcast_to(c, obs.shape) for c in (reward, next_obs, terminated))], axis=-1)
    each = 2 if kind == "redq" else UPDATES  # REDQ's actor moves once a call
    rows = rows.astype(np.float32).reshape(-1, each, 64, rows.shape[-1])
    keys = jax.random.split(jax.random.key(1), len(rows))
    state = learn(agent.init(jax.random.key(0)), rows, keys)

    def value(o, a=0.0):
        return float(critic_values(state.critics, jnp.full((1, 1), o), jnp.full((1, 1), a)).mean())

    def mode(o):
        return float(agent.mode(state.actor, jnp.full((1, 1), o))[0, 0])

    return value, mode


@every_agent
def test_probe_1_a_constant_reward_has_its_value(kind):
    value, _ = solve(kind, lambda o, a: (np.ones_like(o), o, np.ones_like(o)))
    assert value(0.0) == pytest.approx(1.0, abs=0.05)


@every_agent
def test_probe_2_the_value_follows_the_observation(kind):
    value, _ = solve(kind, lambda o, a: (o, o, np.ones_like(o)))
    for o in (-1.0, 0.0, 1.0):
        assert value(o) == pytest.approx(o, abs=0.1)


@every_agent
def test_probe_3_a_delayed_reward_is_discounted(kind):
    # Observation 0 leads to 1 without reward; 1 ends with reward 1.
    def step(o, a):
        last = o > 0.75
        return np.where(last, 1.0, 0.0), np.ones_like(o), np.where(last, 1.0, 0.0)

    value, _ = solve(kind, step)
    assert value(1.0) == pytest.approx(1.0, abs=0.05)
    assert value(0.0) == pytest.approx(0.9, abs=0.08)


@every_agent
def test_probe_4_the_policy_finds_the_best_action(kind):
    _, mode = solve(kind, lambda o, a: (-np.square(a - 0.5), o, np.ones_like(o)))
    assert mode(0.0) == pytest.approx(0.5, abs=0.15)


@every_agent
def test_probe_5_the_policy_depends_on_the_observation(kind):
    _, mode = solve(kind, lambda o, a: (-np.square(a - 0.8 * o), o, np.ones_like(o)))
    for o in (-1.0, -0.5, 0.5, 1.0):
        assert mode(o) == pytest.approx(0.8 * o, abs=0.15)
