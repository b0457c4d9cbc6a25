"""The environment of a run, as a run needs it."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pdml.config.schema import Config
from pdml.config.tasks import find_task, is_listed
from pdml.core.errors import UserError
from pdml.envs.gym import make_env, make_plain
from pdml.envs.spaces import Spaces, examine
from pdml.envs.termination_fns import Known, known


class Problem(NamedTuple):
    """The environment of a run: its spaces, what is known of it, and how to make it."""

    spaces: Spaces
    known: Known
    make: Callable[[], gymnasium.Env] | None
    """The one that is learned from; None: somebody else steps it."""
    fresh: Callable[[], gymnasium.Env] | None
    """Others of the same kind, for evaluation; None: there are none."""
    lent: bool = False
    """The environments are somebody else's: there is one of each kind, and they are not closed."""

    def others(self) -> Callable[[], gymnasium.Env]:
        """Return how to make more environments for diagnoses, or say that there are none."""
        if self.fresh is None or self.lent:
            raise UserError("diagnose: needs environments of its own; give an id or a factory as env")
        return self.fresh


def problem_of(config: Config, functions: dict[str, Any] | None = None) -> Problem:
    """Return the environment that a configuration names.

    Args:
        functions: See `pdml.envs.termination_fns.known`.
    """

    def make() -> gymnasium.Env:
        return make_env(config.env, config.max_episode_steps, config.env_timeout)

    spaces = spaces_of(config.env)
    return Problem(spaces, known(config, spaces, functions or {}), make, make)


def spaces_of(env_id: str) -> Spaces:
    """Return the spaces of an environment; one that is not listed is made for it."""
    if is_listed(env_id):
        task = find_task(env_id)
        bound = np.full(task.action_size, task.action_bound)
        return Spaces(task.obs_size, -bound, bound)
    with closing(make_plain(env_id)) as env:
        return examine(env.observation_space, env.action_space, env_id)
