"""Weightings, model losses and agents compose: every pair of them works together."""

import functools

import jax
import numpy as np
import pytest
from tiny import go, known_of, tiny_of, with_model

from pdml.agents import maper, redq, sac
from pdml.agents.base import value_gradients
from pdml.config.fields import change
from pdml.data.minibatches import PrioritisedMinibatches, UniformMinibatches
from pdml.data.refine import refine_nothing
from pdml.envs.env_spec import spaces_of
from pdml.models import ampo, losses
from pdml.models.fit import ensemble
from pdml.training.methods import mbpo_recipe
from pdml.training.recipe import compiled
from pdml.weighting.base import uniform
from pdml.weighting.by_policy import exponential_decay, policy_mixture
from pdml.weighting.by_row import highest_values, temporal_difference, temporal_difference_and_model

WEIGHTINGS = {
    "pdml": lambda config: policy_mixture(config.mixture),
    "decay": lambda config: exponential_decay(config.mixture),
    "per": lambda config: temporal_difference(config.priority),
    "recall": lambda config: highest_values(config.priority),
    "maper-model": lambda config: temporal_difference_and_model(config.priority),
}
AGENTS = {"sac": sac.sac, "redq": redq.redq, "maper": maper.maper}
LOSSES = ("nll", "vagram", "ampo")


@functools.cache
def composed(loss, agent):
    """Wire one of nine combinations of model and agent; weightings are exchanged later."""
    settings = change(tiny_of({"nll": "pdml"}.get(loss, loss)), {"steps": 121})
    settings = change(settings, {"mixture.first_block": 2, "mixture.reservoir": 96, "agent.num_critics": 3})
    config, layout = settings.learning, spaces_of(settings.learning.env).layout
    model_loss = losses.vagram(config, layout, value_gradients) if loss == "vagram" else losses.nll(config)
    dynamics, heads = ensemble(config, layout, model_loss), maper.train_heads(config, layout)
    parts = {
        "dynamics": ampo.with_adaptation(config, dynamics) if loss == "ampo" else dynamics,
        "agent": AGENTS[agent](config, layout),
        "minibatches": PrioritisedMinibatches if agent == "maper" else UniformMinibatches,
        "refine": ampo.ampo_refinement(config, layout)
        if loss == "ampo"
        else heads
        if agent == "maper"
        else refine_nothing,
    }
    return settings, compiled(config, layout, mbpo_recipe(config, layout, known_of(settings), **parts))


PAIRS = [
    (loss, agent, [name for k, name in enumerate(WEIGHTINGS) if (i + j + k) % 3 == 0])
    for i, loss in enumerate(LOSSES)
    for j, agent in enumerate(AGENTS)
]
"""Every weighting meets every loss and every agent; every loss meets every agent."""


def test_every_pair_is_among_the_combinations():
    assert {(loss, name) for loss, _, names in PAIRS for name in names} == {(x, y) for x in LOSSES for y in WEIGHTINGS}
    assert {(agent, name) for _, agent, names in PAIRS for name in names} == {
        (x, y) for x in AGENTS for y in WEIGHTINGS
    }


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "agent", "names"), PAIRS)
def test_every_weighting_works_with_every_model_and_every_agent(loss, agent, names):
    settings, parts = composed(loss, agent)
    networks = {}
    for name in ("uniform", *names):
        weighting = uniform() if name == "uniform" else WEIGHTINGS[name](settings.learning)
        state = go(settings, with_model(parts, weighting=weighting))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.agent, state.model)))
        assert int(state.buffer.size) > 0
        networks[name] = np.asarray(state.model.network.members[0][0].w).tobytes()
    assert len(set(networks.values())) == 1 + len(names)  # in the fourth fit all have their own weights
