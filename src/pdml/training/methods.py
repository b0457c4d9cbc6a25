"""The recipe page: every method as a short function that names its parts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from pdml.agents import maper as maper_agent
from pdml.agents.sac import Agent, Lesson
from pdml.agents.sac import redq as redq_agent
from pdml.agents.sac import sac as sac_agent
from pdml.config.schema import Config
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.data import minibatches
from pdml.data.replay import RealRows
from pdml.dhmbpo import learner
from pdml.dhmbpo.model import standardised
from pdml.dhmbpo.rollouts import Knowledge
from pdml.envs.termination_fns import Known
from pdml.models import learned_termination, losses
from pdml.models.ampo import adapt, adapted
from pdml.models.ensemble import ModelState
from pdml.models.fit import Dynamics, ensemble
from pdml.models.rollouts import Ending, Imagined, branched, empty
from pdml.weighting import by_policy

Refine = Callable[
    [ModelState, Any, Imagined, RealRows, dict[str, float], int], tuple[ModelState, Any, dict[str, float]]
]
"""From model, agent, ring, real rows, the fit's metrics and the step: what a block still changes after its branches."""


class World(NamedTuple):
    """The parts of a learned model, in the order in which a block uses them."""

    weighting: by_policy.Weighting
    dynamics: Dynamics
    ending: Ending
    empty: Callable[[Config, Layout], Imagined]
    """What is imagined before anything is; from a run's own configuration, since recipes do not know its length."""
    imagine: Callable[..., tuple] | None
    """None: the agent's lesson imagines."""
    refine: Refine


class Recipe(NamedTuple):
    """The parts of a method; without a world it is model-free."""

    world: World | None
    mixing: Callable[[Config, int], minibatches.Mixing]
    """From the configuration and the number of real rows in a minibatch."""
    agent: Agent
    lesson: Lesson | None = None
    """How the agent learns where it does so once a block; None: it learns after every step."""


def nothing(model: ModelState, agent: Any, ring: Imagined, real: RealRows, fitted: dict[str, float], step: int):
    """Refine nothing."""
    return model, agent, {}


def with_ends(config: Config, layout: Layout, dynamics: Dynamics, known: Known) -> tuple[Dynamics, Ending]:
    """Return the model and how likely it is that steps end an episode: as is known, or by a part of the model."""
    rule = known.terminated
    if rule is not None:
        return dynamics, lambda model, obs, action, next_obs: rule(obs, action, next_obs).astype(jnp.float32)
    part = learned_termination.learned(config, layout)

    def init(draw: PRNGKeyArray) -> Any:
        return replace(dynamics.init(draw), ending=part.init(key(config.seed, Purpose.ENDING_INIT)))

    def fit(state: Any, real: RealRows, weights: np.ndarray, agent: Any, step: int) -> tuple[Any, dict[str, float]]:
        state, metrics = dynamics.fit(state, real, weights, agent, step)
        ended, told = part.fit(state.ending, real, step)
        return replace(state, ending=ended), metrics | told

    def ends(model: Any, obs: Array, action: Array, next_obs: Array) -> Array:
        return part.probability(model.ending, obs, action, next_obs)

    return dynamics._replace(init=init, fit=fit), ends


def mbpo(
    config: Config,
    layout: Layout,
    known: Known,
    *,
    weigh: by_policy.Weighting | None = None,
    dynamics: Dynamics | None = None,
    agent: Agent | None = None,
    mix: Callable[[Config, int], minibatches.Mixing] = minibatches.Uniform,
    refine: Refine = nothing,
) -> Recipe:
    """MBPO [Janner et al. 2019]; the methods that build on it say what they change."""
    agent = agent or sac_agent(config, layout)
    dynamics = dynamics or ensemble(config, layout, losses.nll(config))
    dynamics, ends = with_ends(config, layout, dynamics, known)
    world = World(
        weighting=by_policy.applied_to(weigh or by_policy.uniform(), config.weigh),
        dynamics=dynamics,
        ending=ends,
        empty=empty,
        imagine=branched(config, layout, agent.sample, ends, known.reward),
        refine=refine,
    )
    return Recipe(world, mix, agent)


def pdml(config: Config, layout: Layout, known: Known) -> Recipe:
    """PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy.

    Its ablations are the same recipe with `weigh` set to the model or to the starts.
    """
    return mbpo(config, layout, known, weigh=by_policy.policy_mixture(config.mixture))


def decay_mbpo(config: Config, layout: Layout, known: Known) -> Recipe:
    """PDML's mixture by age [Wang et al. 2023, Sec. 5]."""
    return mbpo(config, layout, known, weigh=by_policy.exponential_decay(config.mixture))


def per_mbpo(config: Config, layout: Layout, known: Known) -> Recipe:
    """MBPO with rows weighed by temporal-difference error [Schaul et al. 2016]."""
    return mbpo(config, layout, known, weigh=by_policy.temporal_difference(config.priority))


def recall_mbpo(config: Config, layout: Layout, known: Known) -> Recipe:
    """MBPO on the real rows of the highest value [Goyal et al. 2019, as Wang et al. 2023 use it]."""
    return mbpo(config, layout, known, weigh=by_policy.highest_values(config.priority))


def maper_mbpo(config: Config, layout: Layout, known: Known) -> Recipe:
    """MaPER [Oh et al. 2022]: MBPO with model-augmented critics and prioritised minibatches of the agent."""
    agent, refine = maper_agent.maper(config, layout), maper_agent.train_heads(config, layout)
    return mbpo(config, layout, known, agent=agent, mix=minibatches.Prioritised, refine=refine)


def maper_mbpo_model(config: Config, layout: Layout, known: Known) -> Recipe:
    """MaPER as a weighting of model learning, the words of [Wang et al. 2023]."""
    return mbpo(config, layout, known, weigh=by_policy.temporal_difference_and_model(config.priority))


def ampo(config: Config, layout: Layout, known: Known) -> Recipe:
    """AMPO [Shen et al. 2020]: MBPO whose model is adapted to imagined inputs after each block's branches."""
    dynamics = adapted(config, ensemble(config, layout, losses.nll(config)))
    return mbpo(config, layout, known, dynamics=dynamics, refine=adapt(config, layout))


def vagram(config: Config, layout: Layout, known: Known) -> Recipe:
    """VaGraM [Voelcker et al. 2022]: MBPO with a value-gradient-weighted model loss."""
    return mbpo(config, layout, known, dynamics=ensemble(config, layout, losses.vagram(config, layout)))


def dhmbpo(config: Config, layout: Layout, known: Known, *, weigh: by_policy.Weighting | None = None) -> Recipe:
    """DHMBPO [Kubo et al. 2025]: far rollouts find the states, near differentiable ones teach critics and actor."""
    dynamics, ends = with_ends(config, layout, standardised(config, layout), known)
    world = World(
        weighting=by_policy.applied_to(weigh or by_policy.uniform(), config.weigh),
        dynamics=dynamics,
        ending=ends,
        empty=learner.empty,
        imagine=None,
        refine=nothing,
    )
    lesson = learner.lesson(config, layout, Knowledge(ends, known.reward))
    return Recipe(world, minibatches.Uniform, learner.double_agent(config, layout), lesson)


def pdml_dhmbpo(config: Config, layout: Layout, known: Known) -> Recipe:
    """DHMBPO whose model and far rollouts follow the current policy, as PDML's."""
    return dhmbpo(config, layout, known, weigh=by_policy.policy_mixture(config.mixture))


def redq(config: Config, layout: Layout, known: Known) -> Recipe:
    """REDQ [Chen et al. 2021]."""
    return Recipe(None, minibatches.Uniform, redq_agent(config, layout))


def sac(config: Config, layout: Layout, known: Known) -> Recipe:
    """SAC [Haarnoja et al. 2018]."""
    return Recipe(None, minibatches.Uniform, sac_agent(config, layout))


RECIPES: dict[str, Callable[[Config, Layout, Known], Recipe]] = {
    "pdml": pdml,
    "mbpo": mbpo,
    "pdml-model-only": pdml,
    "pdml-starts-only": pdml,
    "decay-mbpo": decay_mbpo,
    "per-mbpo": per_mbpo,
    "recall-mbpo": recall_mbpo,
    "maper-mbpo": maper_mbpo,
    "maper-mbpo-model": maper_mbpo_model,
    "ampo": ampo,
    "vagram": vagram,
    "dhmbpo": dhmbpo,
    "pdml-dhmbpo": pdml_dhmbpo,
    "redq": redq,
    "sac": sac,
}
"""By name; each has its line in `pdml.config.schema.METHODS` and its page in docs/methods."""
