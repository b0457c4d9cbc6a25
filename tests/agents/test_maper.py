"""MaPER: terms, priorities and balance by hand, importance, and the training of the critics' predictions."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_batches import LAYOUT, batch, forward
from rings import ring_of

from pdml.agents.maper import augmented_terms, balance, maper, predicted_reward, train_heads
from pdml.config.schema import AgentConfig, Config
from pdml.core import signals
from pdml.core.pytree import copy
from pdml.core.transition import pack
from pdml.data.replay import RealRows


def test_maper_terms_priority_balance_and_target_by_hand():
    agent = maper(Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(16,))), LAYOUT)
    state = agent.init(jax.random.key(0))
    assert state.critics[0][-1].b.shape == (3,)  # value, reward, next state
    step, target = batch(0.2, [0.1, 0.2, -0.3, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0), jnp.asarray([1.0, 2.0, 3.0, 4.0])
    x = np.concatenate([np.asarray(step.obs), np.asarray(step.action)], axis=1)
    out = np.stack([forward(critic, x) for critic in state.critics])
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


@pytest.mark.slow
def test_heads_are_trained_as_often_as_the_model_and_leave_actor_targets_and_the_values_output_alone():
    config = Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(32,), learning_rate=3e-3))
    agent = maper(config, LAYOUT)
    state = agent.init(jax.random.key(0))
    before = copy(state)
    rng = np.random.default_rng(0)
    obs, action = rng.uniform(-1, 1, (500, 1)), rng.uniform(-1, 1, (500, 1))
    rows = np.column_stack([obs, action, obs - action, obs + 0.1 * action, np.zeros(500)]).astype(np.float32)
    real = RealRows(rows, np.zeros(500, np.int32), np.arange(500), np.array([500]))
    model = object()
    same, after, metrics = train_heads(config, LAYOUT)(model, state, ring_of(6), real, {"model/batches": 900.0}, 60)
    assert same is model
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


def test_a_request_to_stop_abandons_the_training_of_heads():
    config = Config(method="maper-mbpo", agent=AgentConfig(hidden_sizes=(16,)))
    state = maper(config, LAYOUT).init(jax.random.key(0))
    real = RealRows(np.zeros((50, 5), np.float32), np.zeros(50, np.int32), np.arange(50), np.array([50]))
    refine = train_heads(config, LAYOUT)
    with signals.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(signals.Stopped, match="SIGTERM"):
            refine(object(), state, ring_of(6), real, {"model/batches": 1e12}, 60)
