"""Scores of real transitions: values by hand, in the transitions' own order, over more than one chunk."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import new_parts, tiny_of

from pdml.agents.base import critic_values, soft_target
from pdml.core.errors import Diverged
from pdml.core.nets import Layer
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout, Transition
from pdml.models.ensemble import Targets, apply_members, normalise
from pdml.training.scores import RowScores

LAYOUT = Layout(4, 1)


class Scored(NamedTuple):
    """Transitions with the agent, the model and the functions that score them."""

    scores: RowScores
    agent: Any
    model: Any
    rows: np.ndarray
    steps: Transition


@pytest.fixture(scope="module")
def scored():
    """All rows are predicted by the first network: it is each of the elites."""
    parts = new_parts(tiny_of("maper-mbpo-model"))
    model = parts.model.dynamics.init(key(0, Purpose.MODEL_INIT))
    model = replace(model, elites=jnp.zeros_like(model.elites))
    rows = np.random.default_rng(0).standard_normal((5000, LAYOUT.width)).astype(np.float32)
    rows[:, -1] = rows[:, -1] > 1.0
    agent = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
    return Scored(parts.scores, agent, model, rows, LAYOUT.unpack(jnp.asarray(rows)))


def values_of(scored):
    return np.asarray(critic_values(scored.agent.critics, scored.steps.obs, scored.steps.action))


def test_values_are_the_minimum_of_the_critics(scored):
    found = scored.scores.values(scored.agent, scored.rows)
    np.testing.assert_allclose(found, values_of(scored).min(axis=0), rtol=1e-4, atol=1e-5)


def test_td_errors_belong_to_their_rows(scored):
    """On terminal rows there is no noise: the error is the reward minus the mean value."""
    agent, rows, gamma = scored.agent, scored.rows, tiny_of("maper-mbpo-model").learning.agent.gamma
    found = scored.scores.td_errors(agent, rows, key(0, Purpose.TD_SCORES))
    value, ended = values_of(scored).mean(axis=0), rows[:, -1] > 0.5
    np.testing.assert_allclose(found[ended], rows[ended, 5] - value[ended], rtol=1e-3, atol=1e-4)
    last = agent.actor[-1]  # narrowed until a sample is the mode: then no noise reaches the targets of other rows
    narrow = Layer(last.w.at[:, 1].set(0.0), last.b.at[1].set(-19.0))
    quiet = replace(agent, actor=(*agent.actor[:-1], narrow), log_alpha=jnp.asarray(np.log(1e-9)))
    found = scored.scores.td_errors(quiet, rows, key(0, Purpose.TD_SCORES))
    target = soft_target(quiet, quiet.target_critics, scored.steps, jnp.zeros((5000, 1)), gamma)
    np.testing.assert_allclose(found, np.asarray(target) - value, rtol=1e-3, atol=1e-4)
    assert np.abs(np.asarray(target) - rows[:, 5])[~ended].mean() > 0.01  # what is bootstrapped counts


def test_model_errors_belong_to_their_rows(scored):
    model, rows = scored.model, scored.rows
    x = normalise(model.normaliser, jnp.concatenate([scored.steps.obs, scored.steps.action], axis=1))
    mean = np.asarray(apply_members(model.network.members[:1], x[None])[0])[:, :5]
    expected = ((mean - LAYOUT.targets(rows)) ** 2).mean(axis=1)
    found = scored.scores.model_errors(model, rows, key(0, Purpose.MODEL_SCORES))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    mean_of, scale = np.float32([3.0, 0.0, 1.0, -2.0, 0.5]), np.float32([0.01, 1.0, 10.0, 2.0, 0.5])
    for direct in (False, True):
        scaled = replace(model, targets=Targets(jnp.asarray(mean_of), jnp.asarray(scale), direct))
        expected = ((mean_of + scale * mean - LAYOUT.targets(rows, direct)) ** 2).mean(axis=1)
        found = scored.scores.model_errors(scaled, rows, key(0, Purpose.MODEL_SCORES))
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_scores_of_diverged_critics_stop_the_run_by_name(scored):
    broken = replace(scored.agent, critics=jax.tree.map(lambda leaf: leaf * jnp.nan, scored.agent.critics))
    with pytest.raises(Diverged, match="critics or the model have diverged"):
        scored.scores.values(broken, scored.rows)
