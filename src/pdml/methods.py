"""The recipe page: every method as a short function that names its parts."""

from collections.abc import Callable
from typing import NamedTuple

from pdml.agents import Agent, sac
from pdml.config import Config
from pdml.dynamics import Dynamics, ensemble
from pdml.imagination import Termination, branched
from pdml.transition import Layout
from pdml.weighting import Weighting, policy_mixture, uniform


class Recipe(NamedTuple):
    """The parts of a method, in the order in which a block uses them."""

    weighting: Weighting
    dynamics: Dynamics
    imagine: Callable[..., tuple]
    agent: Agent


def mbpo(config: Config, layout: Layout, terminated: Termination) -> Recipe:
    """MBPO [Janner et al. 2019]."""
    agent = sac(config.agent, layout)
    return Recipe(
        weighting=uniform(),
        dynamics=ensemble(config.dynamics, layout, config.seed),
        imagine=branched(config, layout, agent.sample, terminated),
        agent=agent,
    )


def pdml(config: Config, layout: Layout, terminated: Termination) -> Recipe:
    """PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy."""
    return mbpo(config, layout, terminated)._replace(weighting=policy_mixture(config.mixture))


RECIPES: dict[str, Callable[[Config, Layout, Termination], Recipe]] = {"pdml": pdml, "mbpo": mbpo}
"""By name; each has its line in `pdml.config.METHODS`."""
