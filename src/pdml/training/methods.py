"""The recipe page: every method as a short function that names its parts."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, PRNGKeyArray

from pdml.agents import maper, redq, sac
from pdml.agents.base import AgentParts, value_gradients
from pdml.config.methods import METHODS
from pdml.config.schema import Config
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.core.types import KnownParts, Metrics, TerminationProbability
from pdml.data.minibatches import MinibatchSampler, PrioritisedMinibatches, UniformMinibatches
from pdml.data.model_buffer import empty_buffer
from pdml.data.refine import Refine, refine_nothing
from pdml.data.replay import RealRows
from pdml.dhmbpo.fit import standardised_model
from pdml.dhmbpo.learner import double_horizon_agent, empty_state_buffer, update_phase
from pdml.dhmbpo.rollouts import StepRules
from pdml.models import ampo, losses
from pdml.models.fit import DynamicsModel, ensemble
from pdml.models.learned_termination import learned_termination
from pdml.models.rollouts import branched
from pdml.training.recipe import ModelParts, Parts, Recipe, compiled
from pdml.weighting.base import Weighting, applied_to, uniform
from pdml.weighting.by_policy import exponential_decay, policy_mixture
from pdml.weighting.by_row import highest_values, temporal_difference, temporal_difference_and_model


def mbpo_recipe(
    config: Config,
    layout: Layout,
    known: KnownParts,
    *,
    weighting: Weighting | None = None,
    dynamics: DynamicsModel | None = None,
    agent: AgentParts | None = None,
    minibatches: Callable[[Config, int], MinibatchSampler] = UniformMinibatches,
    refine: Refine = refine_nothing,
) -> Recipe:
    """MBPO [Janner et al. 2019]; the methods that build on it say what they change."""
    agent = agent or sac.sac(config, layout)
    dynamics = dynamics or ensemble(config, layout, losses.nll(config))
    dynamics, terminates = with_termination(config, layout, dynamics, known)
    model = ModelParts(
        weighting=applied_to(weighting or uniform(), config.weigh),
        dynamics=dynamics,
        terminates=terminates,
        empty_buffer=empty_buffer,
        rollouts=branched(config, layout, agent.sample, terminates, known.reward),
        refine=refine,
    )
    return Recipe(agent, minibatches, model)


def pdml_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy.

    Its ablations are the same recipe with `weigh` set to the model or to the starts.
    """
    return mbpo_recipe(config, layout, known, weighting=policy_mixture(config.mixture))


def decay_mbpo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """PDML's mixture by age [Wang et al. 2023, Sec. 5]."""
    return mbpo_recipe(config, layout, known, weighting=exponential_decay(config.mixture))


def per_mbpo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """MBPO with transitions weighted by temporal-difference error [Schaul et al. 2016]."""
    return mbpo_recipe(config, layout, known, weighting=temporal_difference(config.priority))


def recall_mbpo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """MBPO on the real transitions of the highest value [Goyal et al. 2019, as Wang et al. 2023 use it]."""
    return mbpo_recipe(config, layout, known, weighting=highest_values(config.priority))


def maper_mbpo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """MaPER [Oh et al. 2022]: MBPO with model-augmented critics and prioritised minibatches of the agent."""
    return mbpo_recipe(
        config,
        layout,
        known,
        agent=maper.maper(config, layout),
        minibatches=PrioritisedMinibatches,
        refine=maper.train_heads(config, layout),
    )


def maper_mbpo_model_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """MaPER as a weighting of model learning, the words of [Wang et al. 2023]."""
    return mbpo_recipe(config, layout, known, weighting=temporal_difference_and_model(config.priority))


def ampo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """AMPO [Shen et al. 2020]: MBPO whose model is adapted to imagined inputs after each block's rollouts."""
    dynamics = ampo.with_adaptation(config, ensemble(config, layout, losses.nll(config)))
    return mbpo_recipe(config, layout, known, dynamics=dynamics, refine=ampo.ampo_refinement(config, layout))


def vagram_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """VaGraM [Voelcker et al. 2022]: MBPO with a value-gradient-weighted model loss."""
    loss = losses.vagram(config, layout, value_gradients)
    return mbpo_recipe(config, layout, known, dynamics=ensemble(config, layout, loss))


def dhmbpo_recipe(config: Config, layout: Layout, known: KnownParts, *, weighting: Weighting | None = None) -> Recipe:
    """DHMBPO [Kubo et al. 2025]: long rollouts find the states, short differentiable ones train critics and actor."""
    dynamics, terminates = with_termination(config, layout, standardised_model(config, layout), known)
    model = ModelParts(
        weighting=applied_to(weighting or uniform(), config.weigh),
        dynamics=dynamics,
        terminates=terminates,
        empty_buffer=empty_state_buffer,
        rollouts=None,
        refine=refine_nothing,
    )
    phase = update_phase(config, layout, StepRules(terminates, known.reward))
    return Recipe(double_horizon_agent(config, layout), UniformMinibatches, model, phase)


def pdml_dhmbpo_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """DHMBPO whose model and long rollouts follow the current policy, as PDML's."""
    return dhmbpo_recipe(config, layout, known, weighting=policy_mixture(config.mixture))


def redq_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """REDQ [Chen et al. 2021]."""
    return Recipe(redq.redq(config, layout), UniformMinibatches, None)


def sac_recipe(config: Config, layout: Layout, known: KnownParts) -> Recipe:
    """SAC [Haarnoja et al. 2018]."""
    return Recipe(sac.sac(config, layout), UniformMinibatches, None)


RECIPES: dict[str, Callable[[Config, Layout, KnownParts], Recipe]] = {
    "pdml": pdml_recipe,
    "mbpo": mbpo_recipe,
    "decay_mbpo": decay_mbpo_recipe,
    "per_mbpo": per_mbpo_recipe,
    "recall_mbpo": recall_mbpo_recipe,
    "maper_mbpo": maper_mbpo_recipe,
    "maper_mbpo_model": maper_mbpo_model_recipe,
    "ampo": ampo_recipe,
    "vagram": vagram_recipe,
    "dhmbpo": dhmbpo_recipe,
    "pdml_dhmbpo": pdml_dhmbpo_recipe,
    "redq": redq_recipe,
    "sac": sac_recipe,
}
"""By `pdml.config.methods.Method.recipe`."""


@lru_cache(maxsize=4)
def wire(config: Config, layout: Layout, known: KnownParts) -> Parts:
    """Build and compile the method of a configuration; runs of the same configuration share what is compiled."""
    return compiled(config, layout, RECIPES[METHODS[config.method].recipe](config, layout, known))


def with_termination(
    config: Config, layout: Layout, dynamics: DynamicsModel, known: KnownParts
) -> tuple[DynamicsModel, TerminationProbability]:
    """Return the model and how likely its steps terminate: by the known rule, or by a classifier fitted with it."""
    rule = known.terminated
    if rule is not None:
        return dynamics, lambda model, obs, action, next_obs: rule(obs, action, next_obs).astype(jnp.float32)
    classifier = learned_termination(config, layout)

    def init(key_of_model: PRNGKeyArray) -> Any:
        return replace(dynamics.init(key_of_model), ending=classifier.init(key(config.seed, Purpose.ENDING_INIT)))

    def fit(
        model: Any, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int, /
    ) -> tuple[Any, Metrics]:
        model, fitted = dynamics.fit(model, real, weights, agent, step)
        ending, metrics = classifier.fit(model.ending, real, step)
        return replace(model, ending=ending), fitted | metrics

    def terminates(model: Any, obs: Array, action: Array, next_obs: Array, /) -> Array:
        return classifier.probability(model.ending, obs, action, next_obs)

    return dynamics._replace(init=init, fit=fit), terminates
