"""Gymnasium environments in the form that learning needs: flat float32 observations, actions in [-1, 1], checked."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import FlattenObservation, RescaleAction, TimeLimit, TransformObservation

from pdml.config.tasks import PYTHON, TaskSizes, listed_task, suggest
from pdml.core.errors import RunError, UserError
from pdml.envs import watchdog
from pdml.envs.spaces import Spaces, examine


def make_env(env_id: str, max_episode_steps: int = 0, timeout: float = 0.0, **kwargs: Any) -> gymnasium.Env:
    """Make an environment with actions in [-1, 1] and flat observations; the paper's tasks have the paper's.

    Args:
        max_episode_steps: See `adapt`, as for `timeout`.
        kwargs: Passed to the constructor, for example `render_mode`.
    """
    task = listed_task(env_id)
    if task is None:
        return adapt(make_plain(env_id, **kwargs), env_id, max_episode_steps, timeout)
    version = env_id.rpartition("-")[2]
    env = make_plain(env_id, **task.kwargs.get(version, {}), **kwargs)
    keep = task.keep.get(version)
    if keep is not None:
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        kept = gymnasium.spaces.Box(space.low[:keep], space.high[:keep], (keep,), np.float64)
        env = TransformObservation(env, lambda obs: obs[:keep], kept)
    env = adapt(env, env_id, max_episode_steps, timeout)
    if env.observation_space.shape != (task.obs_size,) or env.action_space.shape != (task.action_size,):
        raise UserError(
            f"env = '{env_id}': spaces {env.observation_space.shape}, {env.action_space.shape} "
            f"instead of ({task.obs_size},), ({task.action_size},); check the versions of gymnasium and mujoco"
        )
    return env


def make_plain(env_id: str, **kwargs: Any) -> gymnasium.Env:
    """Make an environment as Gymnasium does, or say in one line why it cannot be made."""
    if env_id.startswith(PYTHON):
        raise UserError(f"env = '{env_id}': was a Python object; only pdml.Agent.load(path, env=...) takes one")
    if env_id.startswith("dm_control/"):
        _register_dm_control(env_id)
    module, _, name = env_id.rpartition(":")
    if not module and env_id not in gymnasium.registry:
        raise UserError(f"env = '{env_id}': no such environment; {suggest(env_id, list(gymnasium.registry))}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
        except ModuleNotFoundError as error:
            first = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
            if module and first.name and f"{module}.".startswith(f"{first.name}."):
                raise UserError(f"env = '{env_id}': there is no module '{module}' to import it from") from None
            reason = error
        except gymnasium.error.UnregisteredEnv:
            raise UserError(f"env = '{env_id}': module '{module}' does not register '{name}'") from None
        except Exception as error:
            reason = error
    said = " ".join(str(reason).split()) or type(reason).__name__
    raise UserError(f"env = '{env_id}': Gymnasium cannot make it ({said})") from reason


def _register_dm_control(env_id: str) -> None:
    """Register the tasks of DeepMind Control with Gymnasium."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a missing display
        try:
            gymnasium.register_envs(import_module("shimmy"))
        except ImportError:
            how = "pip install 'pdml[dmc]' (in a checkout, '.[dmc]')"
            if sys.version_info >= (3, 13):
                how += " on Python 3.11 or 3.12: its labmaze has no wheel for later ones"
            raise UserError(f"env = '{env_id}': DeepMind Control is an extra; {how}") from None


def has_time_limit(env: gymnasium.Env) -> bool:
    """Say whether a wrapper or the registration truncates the episodes of an environment."""
    return own_time_limit(env) is not None


def own_time_limit(env: gymnasium.Env) -> int | None:
    """Return the time limit of an environment, in steps, as a wrapper or the registration declares it."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit):
            return layer._max_episode_steps  # pyright: ignore[reportPrivateUsage] (it has no public name)
        layer = layer.env
    return env.spec.max_episode_steps if env.spec is not None else None


def sizes_of(spaces: Spaces, env: gymnasium.Env) -> TaskSizes:
    """Return what the defaults of an environment depend on."""
    return TaskSizes(*spaces.layout, time_limited=has_time_limit(env))


def adapt(env: gymnasium.Env, name: str, max_episode_steps: int = 0, timeout: float = 0.0) -> gymnasium.Env:
    """Give any environment the form that learning needs.

    Args:
        name: For messages.
        max_episode_steps: Truncate episodes here, in addition to the environment's own ends; 0: do not.
        timeout: Seconds that a step or a reset may take before the process is ended; 0: no limit.
    """
    examine(env.observation_space, env.action_space, name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="overflow encountered in cast")  # of infinite bounds
        if not isinstance(env.observation_space, gymnasium.spaces.Box) or len(env.observation_space.shape) != 1:
            env = FlattenObservation(env)
        env = RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return Guarded(env, max_episode_steps, timeout)


class EnvironmentFault(RunError):  # noqa: N818
    """The environment raised an error, or returned something that cannot be learned from."""


class Guarded(gymnasium.Wrapper):
    """Checks every reset and step: names a fault with its step, ends the process at a hang, truncates long episodes."""

    def __init__(self, env: gymnasium.Env, max_episode_steps: int, timeout: float):
        super().__init__(env)
        self._shape, self._timeout, self._limit = env.observation_space.shape, timeout, max_episode_steps
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        self._steps = 0
        obs, info = self._call(lambda: self.env.reset(seed=seed, options=options), "obs, info")
        return self._checked(obs), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        self._steps += 1
        parts = "obs, reward, terminated, truncated, info"
        obs, reward, terminated, truncated, info = self._call(lambda: self.env.step(action), parts)
        try:
            value = float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFault(f"{self._where()} returned {reward!r} as reward, not a number") from None
        if not np.isfinite(value):
            raise EnvironmentFault(f"{self._where()} returned a reward that is not finite ({value})")
        if self._steps == self._limit and not (terminated or truncated):
            truncated = True
            warnings.warn(f"an episode was truncated by max_episode_steps = {self._limit}", stacklevel=2)
        return self._checked(obs), value, bool(terminated), bool(truncated), info

    def _call(self, call: Callable[[], Any], parts: str) -> Any:
        try:
            with watchdog.limit(self._timeout, f"{self._where()} took longer than env_timeout = {self._timeout} s"):
                result = call()
        except Exception as error:
            raise EnvironmentFault(f"{self._where()} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, tuple) or len(result) != len(parts.split(", ")):
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvironmentFault(f"{self._where()} returned {found}, not ({parts})")
        return result

    def _checked(self, obs: Any) -> np.ndarray:
        try:
            array = np.array(obs, np.float32)
        except (TypeError, ValueError):
            raise EnvironmentFault(f"{self._where()} returned an observation that is not numeric") from None
        if array.shape != self._shape:
            raise EnvironmentFault(f"{self._where()} returned an observation of shape {array.shape}, not {self._shape}")
        if not np.isfinite(array).all():
            entry = int(np.flatnonzero(~np.isfinite(array))[0])
            raise EnvironmentFault(f"{self._where()} returned {array[entry]} in entry {entry} of its observation")
        return array

    def _where(self) -> str:
        return f"the environment, at step {self._steps} of an episode," if self._steps else "the environment, at reset,"
