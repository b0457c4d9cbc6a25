"""Five probes whose answers are known, for every agent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agent_batches import LAYOUT

from pdml.agents.base import critic_values
from pdml.agents.maper import maper
from pdml.agents.redq import redq
from pdml.agents.sac import sac
from pdml.config.schema import AgentConfig, Config

pytestmark = pytest.mark.slow

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
    rng = np.random.default_rng(0)
    obs = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (UPDATES, 64)).astype(np.float32)
    action = rng.uniform(-1, 1, (UPDATES, 64)).astype(np.float32)
    reward, next_obs, terminated = step(obs, action)
    rows = np.stack([obs, action, *(np.broadcast_to(c, obs.shape) for c in (reward, next_obs, terminated))], axis=-1)
    each = 2 if kind == "redq" else UPDATES  # REDQ's actor moves once per call
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
