"""The environment of a run: its spaces, which parts of it are known, and how to make it."""

from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pdml.config.schema import Settings
from pdml.config.tasks import Task, TaskSizes, generic, listed_task, refuse_versions
from pdml.core.errors import UserError
from pdml.core.types import KnownParts
from pdml.envs.gym import make_env, make_plain, sizes_of
from pdml.envs.spaces import Spaces, examine
from pdml.envs.user_fns import known_parts


class EnvSpec(NamedTuple):
    """The environment of a run: its spaces, which parts of it are known, and how to make it."""

    spaces: Spaces
    known: KnownParts
    sizes: TaskSizes
    """What metadata.json records, so that a run can be read where its environment is not installed."""
    make: Callable[[], gymnasium.Env] | None
    """Makes the training environment; None: the caller steps it."""
    make_eval: Callable[[], gymnasium.Env] | None
    """Makes environments for evaluation; None: there are none."""
    borrowed: bool = False
    """The environments belong to the caller: there is one of each kind, and they are never closed."""

    def recorded(self) -> dict[str, Any]:
        """Return what metadata.json records of the environment: enough to read a run without it."""
        low, high = self.spaces.low.tolist(), self.spaces.high.tolist()
        return {
            "spaces": {"obs_size": self.spaces.obs_size, "low": low, "high": high},
            "task": self.sizes._asdict(),
        }

    def make_more(self) -> Callable[[], gymnasium.Env]:
        """Return the function that makes further environments, for diagnoses, or say that there are none."""
        if self.make_eval is None or self.borrowed:
            raise UserError("diagnose: needs environments of its own; give an id or a factory as env")
        return self.make_eval


def spec_of(settings: Settings, functions: dict[str, Any] | None = None) -> EnvSpec:
    """Return the environment whose id the settings have.

    Args:
        functions: See `pdml.envs.user_fns.known_parts`.
    """
    config, timeout = settings.learning, settings.run.env_timeout

    def make() -> gymnasium.Env:
        return make_env(config.env, config.max_episode_steps, timeout)

    spaces, sizes = _look_at(config.env)
    return EnvSpec(spaces, known_parts(config, spaces, functions or {}), sizes, make, make)


def spaces_of(env_id: str) -> Spaces:
    """Return the spaces of an environment; one that is not listed is made for it."""
    return _look_at(env_id)[0]


@cache
def task_for(env_id: str) -> Task:
    """Return the task of an environment; one that is not listed is made once, to learn what its defaults depend on.

    Only training and checking call this. What reads a finished run takes the recorded sizes: `pdml.config.files`.
    """
    task = listed_task(env_id)
    if task is not None:
        return task
    refuse_versions(env_id)
    return generic(*_look_at(env_id)[1])


def _look_at(env_id: str) -> tuple[Spaces, TaskSizes]:
    """Return the spaces of an environment and what its defaults depend on, from the table or from a new environment."""
    task = listed_task(env_id)
    if task is not None:
        bound = np.full(task.action_size, task.action_bound)
        return Spaces(task.obs_size, -bound, bound), TaskSizes(task.obs_size, task.action_size, time_limited=True)
    with closing(make_plain(env_id)) as env:
        spaces = examine(env.observation_space, env.action_space, env_id)
        return spaces, sizes_of(spaces, env)
