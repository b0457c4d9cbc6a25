"""Parts of another run's state that a new state takes over: its agent, its model, its real transitions."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float32

from pdml.config.schema import Config
from pdml.core.pytree import flatten, unflatten
from pdml.training.state import TrainState, add_prior

FRESH_IF_ABSENT = ("model.ending", "model.adaptation")
"""Parts of a model that only some methods and settings have: the learned termination, and what AMPO keeps."""


def take_agent(state: TrainState, arrays: dict[str, np.ndarray], config: Config) -> None:
    """Take over networks, targets, temperature and optimisers; the policy then acts in the warm-up too.

    A temperature that the settings fix stays as they say.

    Args:
        arrays: As `pdml.training.state.saved_state` names them. A `ValueError` says which do not fit.
    """
    agent = fitting_tree(state.agent, arrays, "agent")
    if config.agent.temperature is not None:
        agent = replace(agent, log_alpha=state.agent.log_alpha)
    state.agent, state.warm_started = agent, True


def take_model(state: TrainState, arrays: dict[str, np.ndarray]) -> None:
    """Take over networks, normalisers and elites, and the parts of `FRESH_IF_ABSENT` that both models have.

    Args:
        arrays: As `pdml.training.state.saved_state` names them. A `ValueError` says which do not fit.
    """
    state.model = fitting_tree(state.model, arrays, "model", FRESH_IF_ABSENT)


def take_rows(state: TrainState, rows: Float32[np.ndarray, "n width"], learned: int) -> None:
    """Store real transitions as the prior block.

    Args:
        learned: How many of them the agent that was taken over has learned from.
    """
    add_prior(state, rows)
    state.prior_learned = learned


def skip_warmup_actions(state: TrainState, count: int) -> None:
    """Let the uniform actions of the warm-up begin behind those that the other run may have taken."""
    state.warmup_offset = count


def fitting_tree(template: Any, arrays: dict[str, np.ndarray], prefix: str, optional: tuple[str, ...] = ()) -> Any:
    """Rebuild a tree like the template from saved arrays, or raise a `ValueError` that names what does not fit.

    Args:
        optional: Beginnings of names. What begins so is as in the template unless both have it.
    """
    own = flatten(template, prefix)
    found = {name: array for name, array in arrays.items() if name.startswith((f"{prefix}.", f"{prefix}["))}
    for part in optional:
        its = {name for name in found if name.startswith(part)}
        mine = {name: array for name, array in own.items() if name.startswith(part)}
        if not its or not mine:
            found = {name: array for name, array in found.items() if name not in its} | mine
    more = sorted(found.keys() - own.keys())
    if more and own.keys() <= found.keys():
        raise ValueError(f"it also has {more[0]}")
    return unflatten(template, found, prefix)
