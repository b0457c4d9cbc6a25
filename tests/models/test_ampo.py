"""AMPO: the penalty and the schedule by hand, and features that come nearer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import LAYOUT, linear_system, uniform
from scipy import stats
from tiny import tiny_of

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.schema import AmpoConfig
from pdml.core.nets import Layer
from pdml.data.model_buffer import ModelBuffer
from pdml.models.ampo import (
    adaptation_steps,
    ampo_refinement,
    features,
    gradient_penalty,
    wasserstein_critic_loss,
    with_adaptation,
)
from pdml.models.ensemble import normalise
from pdml.models.fit import ensemble
from pdml.models.losses import nll


def test_penalty_has_a_norm_for_each_row():
    # f(h) = 3 relu(h_0) + 4 relu(h_1): slopes (3, 4), (3, 0), (0, 4), (0, 0) by the signs of h.
    critic = (Layer(jnp.eye(2), jnp.zeros(2)), Layer(jnp.asarray([[3.0], [4.0]]), jnp.zeros(1)))
    between = jnp.asarray([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert float(gradient_penalty(critic, between)) == pytest.approx(np.mean([16, 4, 9, 1]), rel=1e-3)


def test_critic_loss_is_minus_the_distance_with_penalty_and_decay():
    critic = (Layer(jnp.eye(2), jnp.zeros(2)), Layer(jnp.asarray([[3.0], [4.0]]), jnp.zeros(1)))
    real, imagined = [jnp.asarray([[2.0, 1.0]])], [jnp.asarray([[1.0, 1.0]])]
    options = AmpoConfig(penalty=10.0, weight_decay=0.1)
    found = wasserstein_critic_loss((critic,), real, imagined, jnp.full((1, 1, 1), 0.5), options)
    assert float(found) == pytest.approx(-3.0 + 10 * 16 + 0.05 * (2 + 25), rel=1e-4)


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ("Hopper-v5", {0: 400, 40: 400, 41: 0}),
        ("Walker2d-v5", {0: 1000, 80: 1000, 81: 0}),
        ("HalfCheetah-v5", {0: 100, 15: 550, 30: 1000, 31: 0}),
        ("Ant-v5", {0: 3000, 60: 3000, 61: 0}),
    ],
)
def test_schedule_is_that_of_the_authors(env, steps):
    options = defaults(env, "ampo").learning.ampo
    assert {epoch: adaptation_steps(options, epoch) for epoch in steps} == steps


def test_features_are_the_last_hidden_layer():
    member = (Layer(jnp.eye(2), jnp.ones(2)), Layer(jnp.full((2, 3), 7.0), jnp.zeros(3)))
    x = jnp.asarray([[0.5, -3.0]])
    np.testing.assert_allclose(np.asarray(features(member, x)), np.asarray(jax.nn.silu(x + 1.0)), rtol=1e-5)


def distance(a, b):
    """The Wasserstein-1 distance of each feature by itself, on average."""
    return np.mean([stats.wasserstein_distance(a[:, k], b[:, k]) for k in range(a.shape[1])])


@pytest.mark.slow
def test_adaptation_brings_the_features_nearer_and_leaves_output_layers_and_agent_alone():
    config = change(
        tiny_of("ampo"),
        {"ampo.first_steps": 400, "ampo.last_steps": 400, "ampo.batch_size": 64, "ampo.learning_rate": 1e-3},
    ).learning
    real = linear_system(600)
    dynamics = with_adaptation(config, ensemble(config, LAYOUT, nll(config)))
    model, fitted = dynamics.fit(dynamics.init(jax.random.key(0)), real, uniform(real), None, 60)
    shifted = real.rows.copy()
    shifted[:, :2] += 1.0  # imagined inputs come from elsewhere
    count = jnp.asarray(600, jnp.int32)
    buffer = ModelBuffer(jnp.asarray(shifted), count, jnp.asarray(0, jnp.int32), count)
    refine = ampo_refinement(config, LAYOUT)
    after, agent, metrics = refine(model, "agent", buffer, real, fitted, 60)
    assert agent == "agent"
    assert metrics["model/adaptation_steps"] == 400
    for old, new in zip(model.network.members, after.network.members, strict=True):
        assert np.array_equal(old[-1].w, new[-1].w)
        assert not np.array_equal(old[0].w, new[0].w)
    x, imagined_x = (normalise(model.normaliser, jnp.asarray(LAYOUT.inputs(rows))) for rows in (real.rows, shifted))
    for old, new in zip(model.network.members, after.network.members, strict=True):
        target = np.asarray(features(old, x))
        before, now = (distance(target, np.asarray(features(member, imagined_x))) for member in (old, new))
        assert now < 0.8 * before
    late, _, metrics = refine(model, "agent", buffer, real, fitted, 60 + 40 * 100)
    assert late is model
    assert metrics["model/adaptation_steps"] == 0.0
    assert np.isnan(metrics["model/feature_distance"])
