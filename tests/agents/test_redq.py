"""REDQ: random pairs of target critics, an actor that follows the mean, and SAC as its limit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_batches import LAYOUT, batch

from pdml.agents.base import critic_values
from pdml.agents.redq import redq
from pdml.agents.sac import sac
from pdml.config.schema import AgentConfig, Config
from pdml.core.nets import Layer
from pdml.core.transition import pack


def redq_config(num_critics, subset, **changes):
    agent = AgentConfig(hidden_sizes=(16,), num_critics=num_critics, subset=subset, **changes)
    return Config(method="redq", agent=agent)


def without_noise(state):
    """Narrow the policy until its samples are its mode; with a tiny temperature no draw then reaches a target."""
    last = state.actor[-1]
    return replace(state, actor=(*state.actor[:-1], Layer(last.w.at[:, 1].set(0.0), last.b.at[1].set(-19.0))))


@pytest.mark.slow
def test_redq_with_two_critics_and_both_in_the_subset_moves_its_critics_as_sac():
    config = redq_config(2, 2, temperature=1e-9)
    rows = pack(batch([0.2, 0.1, 0.0, -0.5], [0.1, 0.5, -0.2, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0))[None]
    after = []
    for agent in (redq(config, LAYOUT), sac(config, LAYOUT)):
        state = without_noise(agent.init(jax.random.key(0)))
        after.append(jax.jit(agent.improve)(state, rows, None, jax.random.key(1))[0])
    for a, b in zip(jax.tree.leaves(after[0].critics), jax.tree.leaves(after[1].critics), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_actors_of_redq_and_sac_follow_the_mean_and_the_least_of_the_critics():
    rows = pack(batch([0.2, 0.1, 0.0, -0.5], [0.1, 0.5, -0.2, 0.0], 2.0, [0.0, 0.5, -1.0, 3.0], 0.0))[None]
    for build, combine in ((redq, np.mean), (sac, np.min)):
        agent = build(redq_config(6, 2, temperature=1e-9), LAYOUT)
        state = without_noise(agent.init(jax.random.key(0)))
        after, metrics, _ = jax.jit(agent.improve)(state, rows, None, jax.random.key(1))
        obs = LAYOUT.unpack(rows[0]).obs
        values = np.asarray(critic_values(after.critics, obs, agent.mode(state.actor, obs)))
        assert float(metrics["agent/actor_loss"]) == pytest.approx(-combine(values, axis=0).mean(), rel=1e-4)


@pytest.mark.slow
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


@pytest.mark.slow
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
