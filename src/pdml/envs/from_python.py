"""What a person hands over as Python objects, environments and transitions, made into what a run needs."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from pdml.config.schema import Config
from pdml.config.tasks import PYTHON, Task, generic
from pdml.core.errors import UserError, nearest
from pdml.envs.env_spec import Problem, problem_of
from pdml.envs.gym import adapt, has_time_limit
from pdml.envs.spaces import Spaces, examine
from pdml.envs.termination_fns import known
from pdml.runs import directory
from pdml.runs.policy import as_batch

Env = str | gymnasium.Env | Callable[[], gymnasium.Env] | tuple[gymnasium.Space, gymnasium.Space]
"""An id (`module:Id` too), an environment, a function that makes one, or, for `act` and `observe`, a pair of spaces."""

PRIOR_FIELDS = ("obs", "action", "reward", "next_obs", "terminated")


def describe(env: Env) -> tuple[str, Task | None]:
    """Return the name of an environment and, where its id does not tell, the settings that go with it."""
    if isinstance(env, str):
        return env, None
    if isinstance(env, tuple):
        return f"{PYTHON}spaces", generic(*_pair(env).layout, time_limited=True)
    made = env if isinstance(env, gymnasium.Env) else _made_anew(env)
    name = type(made.unwrapped).__name__
    spaces, limited = examine(made.observation_space, made.action_space, name), has_time_limit(made)
    if made is not env:
        made.close()
    return f"{PYTHON}{name}", generic(*spaces.layout, limited)


def _made_anew(env: Any) -> gymnasium.Env:
    """Call a factory, and see that it makes another one each time."""
    made, other = _made(env), _made(env)
    if made.unwrapped is other.unwrapped:
        raise UserError("env: the function returns the same environment each time; it must make a new one")
    other.close()
    return made


def _pair(env: tuple) -> Spaces:
    if len(env) != 2 or not all(isinstance(space, gymnasium.Space) for space in env):
        raise UserError("env: a pair must be (observation space, action space)")
    return examine(env[0], env[1], "spaces")


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


def problem_for(env: Env, eval_env: gymnasium.Env | None, config: Config, functions: dict[str, Any]) -> Problem:
    """Return an environment that was handed over, in whatever form, as a run needs it."""
    if eval_env is not None and not isinstance(env, gymnasium.Env):
        raise UserError("eval_env: goes with an environment as env only; of an id or a function others are made")
    if eval_env is not None and not isinstance(eval_env, gymnasium.Env):
        raise UserError("eval_env: must be an environment, as env is")
    if isinstance(env, str):
        return problem_of(config, functions)
    if isinstance(env, tuple):
        spaces = _pair(env)
        return Problem(spaces, known(config, spaces, functions), None, None)
    name = config.env.removeprefix(PYTHON)

    def adapted(made: gymnasium.Env) -> gymnasium.Env:
        return adapt(made, name, config.max_episode_steps, config.env_timeout)

    if not isinstance(env, gymnasium.Env):
        first = _made(env)
        spaces = examine(first.observation_space, first.action_space, name)
        first.close()
        return Problem(
            spaces, known(config, spaces, functions), lambda: adapted(_made(env)), lambda: adapted(_made(env))
        )
    spaces = examine(env.observation_space, env.action_space, name)
    facts = known(config, spaces, functions)
    if eval_env is None:
        warn("env is an environment without eval_env=: training episodes are reported in the place of evaluations")
        return Problem(spaces, facts, lambda: adapted(env), None, lent=True)
    if eval_env is env:
        raise UserError("eval_env: must be another environment than env, or evaluation would disturb learning")
    if examine(eval_env.observation_space, eval_env.action_space, "eval_env").layout != spaces.layout:
        raise UserError("eval_env: its spaces are not those of env")
    return Problem(spaces, facts, lambda: adapted(env), lambda: adapted(eval_env), lent=True)


def absent(path: Path, config: Config, functions: dict[str, Any]) -> Problem:
    """Return the environment of a run whose environment was a Python object that is not at hand."""
    kept = directory.spaces_of(path)
    spaces = Spaces(kept["obs_size"], np.array(kept["low"]), np.array(kept["high"]))
    return Problem(spaces, known(config, spaces, functions), None, None)


def require_sizes(spaces: Spaces, path: Path) -> None:
    """Raise unless an environment has as many observations and actions as that of a run."""
    kept = directory.spaces_of(path)
    run, now = (kept["obs_size"], len(kept["low"])), (spaces.obs_size, len(spaces.low))
    if run != now:
        raise UserError(
            f"env: {now[0]} observed numbers and {now[1]} in an action do not fit the run '{path}', which has {run[0]} "
            f"and {run[1]}"
        )


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
        parts.append(spaces.inward(part) if name == "action" else part)
    if len(parts[0]) == 0:
        raise UserError("prior: has no rows")
    if len(parts[0]) > config.replay_capacity - 2 * config.model_every:
        raise UserError(f"prior: {len(parts[0])} rows do not fit into replay_capacity = {config.replay_capacity}")
    return np.concatenate(parts, axis=1).astype(np.float32)


def _require_fields(prior: Any) -> None:
    """Raise unless prior transitions have all fields, and no other."""
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
    """Return numbers as a column; what is none is left as it is, to be named."""
    try:
        return np.asarray(values).reshape(-1, 1)
    except ValueError:
        return values


def warn(line: str) -> None:
    """Say something once that a person should know and that is no error."""
    warnings.warn(line, stacklevel=4)
