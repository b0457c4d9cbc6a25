"""Environments and prior transitions that are passed as Python objects, in the form that a run needs."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from pdml.config.schema import Config, Settings
from pdml.config.tasks import PYTHON, Task, TaskSizes, generic
from pdml.core.batching import as_batch
from pdml.core.errors import UserError, nearest
from pdml.envs.env_spec import EnvSpec, spec_of, task_for
from pdml.envs.gym import adapt, sizes_of
from pdml.envs.spaces import Spaces, examine, other_bounds
from pdml.envs.user_fns import known_parts

Env = str | gymnasium.Env | Callable[[], gymnasium.Env] | tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""An id (or `module:Id`), an environment, a function that makes one, or, for `act` and `observe`, a pair of spaces."""

PRIOR_FIELDS = ("obs", "action", "reward", "next_obs", "terminated")


def name_and_task(env: Env) -> tuple[str, Task]:
    """Return the name of an environment in the settings, and the task that its defaults come from."""
    if isinstance(env, str):
        return env, task_for(env)
    if isinstance(env, tuple):
        return f"{PYTHON}spaces", generic(*_sizes_of_pair(_pair(env)))
    made = env if isinstance(env, gymnasium.Env) else _first_of(env)
    name = type(made.unwrapped).__name__
    sizes = sizes_of(examine(made.observation_space, made.action_space, name), made)
    if made is not env:
        made.close()
    return f"{PYTHON}{name}", generic(*sizes)


def _first_of(env: Any) -> gymnasium.Env:
    """Call a factory, and check that a second call makes another environment."""
    made, other = _made(env), _made(env)
    if made.unwrapped is other.unwrapped:
        raise UserError("env: the function returns the same environment each time; it must make a new one")
    other.close()
    return made


def _pair(env: tuple[Any, ...]) -> Spaces:
    if len(env) != 2 or not all(isinstance(space, gymnasium.Space) for space in env):
        raise UserError("env: a pair must be (observation space, action space)")
    return examine(env[0], env[1], "spaces")


def _sizes_of_pair(spaces: Spaces) -> TaskSizes:
    """Return the sizes of an environment that the caller steps: its episodes end where the caller ends them."""
    return TaskSizes(*spaces.layout, time_limited=True)


def _made(env: Any) -> gymnasium.Env:
    """Call a factory."""
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise UserError("env: is a vector of environments; one environment is needed, or a function that makes one")
    if not callable(env):
        raise UserError(f"env = {env!r}: must be an id, an environment, a function that makes one, or a pair of spaces")
    try:
        made = env()
    except Exception as error:
        said = " ".join(str(error).split())
        raise UserError(f"env: the function failed ({type(error).__name__}: {said})") from error
    if not isinstance(made, gymnasium.Env):
        raise UserError(f"env: the function returned {type(made).__name__}, not a gymnasium.Env")
    return made


def refuse_idle(env: Env, given: Mapping[str, Any]) -> None:
    """Raise if a setting is given that only an environment reads, where the caller steps their own."""
    if not isinstance(env, tuple):
        return
    for name in ("max_episode_steps", "env_timeout"):
        if given.get(name):
            raise UserError(f"{name} = {given[name]!r}: does nothing with a pair of spaces; you step the environment")


def spec_for(env: Env, eval_env: gymnasium.Env | None, settings: Settings, functions: dict[str, Any]) -> EnvSpec:
    """Return an environment, in whatever form it was passed, as a run needs it."""
    _check_eval_env(env, eval_env)
    if isinstance(env, str):
        return spec_of(settings, functions)
    config = settings.learning
    if isinstance(env, tuple):
        spaces = _pair(env)
        return EnvSpec(spaces, known_parts(config, spaces, functions), _sizes_of_pair(spaces), None, None)
    name = config.env.removeprefix(PYTHON)

    def adapted(made: gymnasium.Env) -> gymnasium.Env:
        return adapt(made, name, config.max_episode_steps, settings.run.env_timeout)

    if not isinstance(env, gymnasium.Env):
        with closing(_made(env)) as first:
            spaces = examine(first.observation_space, first.action_space, name)
            sizes = sizes_of(spaces, first)

        def make() -> gymnasium.Env:
            return adapted(_made(env))

        return EnvSpec(spaces, known_parts(config, spaces, functions), sizes, make, make)
    spaces = examine(env.observation_space, env.action_space, name)
    known, sizes = known_parts(config, spaces, functions), sizes_of(spaces, env)
    if eval_env is None:
        warn("env is an environment without eval_env=: training episodes are reported in the place of evaluations")
        return EnvSpec(spaces, known, sizes, lambda: adapted(env), None, borrowed=True)
    if examine(eval_env.observation_space, eval_env.action_space, "eval_env").layout != spaces.layout:
        raise UserError("eval_env: its spaces are not those of env")
    return EnvSpec(spaces, known, sizes, lambda: adapted(env), lambda: adapted(eval_env), borrowed=True)


def _check_eval_env(env: Env, eval_env: Any) -> None:
    """Raise unless an environment for evaluation, if there is one, goes with that for training."""
    if eval_env is None:
        return
    if not isinstance(env, gymnasium.Env):
        raise UserError("eval_env: goes with an environment as env only; from an id or a function, more are made")
    if not isinstance(eval_env, gymnasium.Env):
        raise UserError("eval_env: must be an environment, as env is")
    if eval_env.unwrapped is env.unwrapped:
        raise UserError("eval_env: must be another environment than env, or evaluation would disturb learning")


def absent_spec(spaces: Spaces, settings: Settings, functions: dict[str, Any], task: Task | None = None) -> EnvSpec:
    """Return the environment of a run that had a Python object as environment, where it was not passed again.

    Args:
        spaces: As the run recorded them.
        task: As the run recorded it; by default the settings tell whether there is a time limit.
    """
    config = settings.learning
    limit = config.max_episode_steps if task is None else task.max_episode_steps
    sizes = TaskSizes(*spaces.layout, time_limited=limit == 0)
    return EnvSpec(spaces, known_parts(config, spaces, functions), sizes, None, None)


def require_spaces(spaces: Spaces, recorded: Spaces, path: Path) -> None:
    """Raise unless an environment has the sizes and the bounds of actions that a run recorded."""
    now, run = spaces.layout, recorded.layout
    if now != run:
        raise UserError(
            f"env: observations of size {now.obs_size} and actions of size {now.action_size} do not fit the run "
            f"'{path}', which has {run.obs_size} and {run.action_size}"
        )
    other = other_bounds(spaces, recorded)
    if other is not None:
        own, its = other
        raise UserError(f"env: actions in {own} do not fit the run '{path}', which has them in {its}")


def packed(prior: Mapping[str, Any], spaces: Spaces, config: Config) -> np.ndarray:
    """Return prior transitions as rows, or say what is wrong with them."""
    _require_fields(prior)
    sizes = {"obs": spaces.obs_size, "action": len(spaces.low), "next_obs": spaces.obs_size}
    parts = []
    for name in PRIOR_FIELDS:
        size = sizes.get(name, 1)
        part = as_batch(prior[name] if name in sizes else _column(prior[name]), size, f"prior.{name}")
        if parts and len(part) != len(parts[0]):
            raise UserError(f"prior.{name}: has {len(part)} rows, prior.obs has {len(parts[0])}")
        if not np.isfinite(part).all():
            raise UserError(f"prior.{name}: has numbers that are not finite")
        if name == "terminated" and not np.isin(part, (0.0, 1.0)).all():
            raise UserError("prior.terminated: must be true or false, 1 or 0")
        parts.append(spaces.from_env(part) if name == "action" else part)
    if len(parts[0]) == 0:
        raise UserError("prior: has no rows")
    if len(parts[0]) > config.replay_capacity - 2 * config.model_every:
        raise UserError(f"prior: {len(parts[0])} rows do not fit into replay_capacity = {config.replay_capacity}")
    return np.concatenate(parts, axis=1).astype(np.float32)


def _require_fields(prior: Any) -> None:
    """Raise unless prior transitions have all fields and no others."""
    if not isinstance(prior, Mapping):
        raise UserError(f"prior: must be a dict of arrays by the names {', '.join(PRIOR_FIELDS)}")
    for name in prior:
        if name not in PRIOR_FIELDS:
            raise UserError(
                f"prior: unknown field {name}{nearest(name, PRIOR_FIELDS)}; it has {', '.join(PRIOR_FIELDS)}"
            )
    for name in PRIOR_FIELDS:
        if name not in prior:
            raise UserError(f"prior: has no {name}; {', '.join(PRIOR_FIELDS)} are needed")


def _column(values: Any) -> Any:
    """Return numbers as a column; ragged lists stay as they are, for `as_batch` to refuse."""
    try:
        return np.asarray(values).reshape(-1, 1)
    except ValueError:
        return values


def warn(line: str) -> None:
    """Warn the caller of `pdml.Agent`; to be called from a function that the agent's method calls directly."""
    warnings.warn(line, stacklevel=4)
