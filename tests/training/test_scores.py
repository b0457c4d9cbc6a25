"""Scores of real rows: values by hand, in the rows' own order, over more than one chunk."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import start, tiny_of

from pdml.agents.sac import critic_values, soft_target
from pdml.config.schema import change
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, key
from pdml.models.ensemble import Targets, apply_members, normalise

CONFIG = change(tiny_of("maper-mbpo-model"), {"dynamics.num_elites": 1})
ENV, LAYOUT, PARTS = start(CONFIG)
AGENT = PARTS.recipe.agent.init(key(0, Purpose.AGENT_INIT))
MODEL = PARTS.recipe.world.dynamics.init(key(0, Purpose.MODEL_INIT))
ROWS = np.random.default_rng(0).standard_normal((5000, LAYOUT.width)).astype(np.float32)
ROWS[:, -1] = ROWS[:, -1] > 1.0
STEP = LAYOUT.unpack(jnp.asarray(ROWS))


def test_values_are_the_least_of_the_critics():
    expected = np.asarray(critic_values(AGENT.critics, STEP.obs, STEP.action)).min(axis=0)
    np.testing.assert_allclose(PARTS.scoring.values(AGENT, ROWS), expected, rtol=1e-4, atol=1e-5)


def test_td_errors_belong_to_their_rows():
    """On terminal rows there is no noise: the error is the reward minus the mean value."""
    found = PARTS.scoring.td_errors(AGENT, ROWS, key(0, Purpose.TD_SCORES))
    value = np.asarray(critic_values(AGENT.critics, STEP.obs, STEP.action)).mean(axis=0)
    ended = ROWS[:, -1] > 0.5
    np.testing.assert_allclose(found[ended], ROWS[ended, 5] - value[ended], rtol=1e-3, atol=1e-4)
    quiet = soft_target(AGENT, AGENT.target_critics, STEP, jnp.zeros((5000, 1)), CONFIG.agent.gamma)
    assert np.corrcoef(found[~ended], (np.asarray(quiet) - value)[~ended])[0, 1] > 0.5


def test_model_errors_belong_to_their_rows():
    x = normalise(MODEL.normaliser, jnp.concatenate([STEP.obs, STEP.action], axis=1))
    mean = np.asarray(apply_members(MODEL.network.members[:1], x[None])[0])[:, :5]
    expected = ((mean - LAYOUT.targets(ROWS)) ** 2).mean(axis=1)
    found = PARTS.scoring.model_errors(MODEL, ROWS, key(0, Purpose.MODEL_SCORES))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    mean_of, scale = np.float32([3.0, 0.0, 1.0, -2.0, 0.5]), np.float32([0.01, 1.0, 10.0, 2.0, 0.5])
    for direct in (False, True):
        model = replace(MODEL, targets=Targets(jnp.asarray(mean_of), jnp.asarray(scale), direct))
        expected = ((mean_of + scale * mean - LAYOUT.targets(ROWS, direct)) ** 2).mean(axis=1)
        found = PARTS.scoring.model_errors(model, ROWS, key(0, Purpose.MODEL_SCORES))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_scores_of_diverged_critics_stop_the_run_by_name():
    broken = replace(AGENT, critics=jax.tree.map(lambda leaf: leaf * jnp.nan, AGENT.critics))
    with pytest.raises(Diverged, match="critics or the model have diverged"):
        PARTS.scoring.values(broken, ROWS)
