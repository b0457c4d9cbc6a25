"""The border to Gymnasium: environments with actions in [-1, 1], observations in float32, and the running episode."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.wrappers import FlattenObservation, RescaleAction, TimeLimit, TransformObservation
from jaxtyping import Float32

from pdml.config.tasks import PYTHON, find_task, is_listed, suggest
from pdml.core.errors import RunError, UserError
from pdml.core.rng import Purpose, env_seed
from pdml.envs import watchdog
from pdml.envs.spaces import examine


def make_env(env_id: str, max_episode_steps: int = 0, timeout: float = 0.0, **kwargs: Any) -> gymnasium.Env:
    """Make an environment with flat observations, those of the paper for its tasks, and actions in [-1, 1].

    Args:
        max_episode_steps: See `adapt`, as `timeout`.
        kwargs: Passed on to the constructor, for example `render_mode`.
    """
    if not is_listed(env_id):
        return adapt(make_plain(env_id, **kwargs), env_id, max_episode_steps, timeout)
    task = find_task(env_id)
    version = env_id.rpartition("-")[2]
    env = make_plain(env_id, **task.kwargs.get(version, {}), **kwargs)
    keep = task.keep.get(version)
    if keep is not None:
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        cut = gymnasium.spaces.Box(space.low[:keep], space.high[:keep], (keep,), np.float64)
        env = TransformObservation(env, lambda obs: obs[:keep], cut)
    env = adapt(env, env_id, max_episode_steps, timeout)
    if env.observation_space.shape != (task.obs_size,) or env.action_space.shape != (task.action_size,):
        raise UserError(
            f"env = '{env_id}': spaces {env.observation_space.shape}, {env.action_space.shape} "
            f"instead of ({task.obs_size},), ({task.action_size},); check the versions of gymnasium and mujoco"
        )
    return env


def make_plain(env_id: str, **kwargs: Any) -> gymnasium.Env:
    """Make an environment as Gymnasium does, or say in one line why it cannot."""
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
    """Let Gymnasium know the tasks of DeepMind Control."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a display that is missing
        try:
            gymnasium.register_envs(import_module("shimmy"))
        except ImportError:
            raise UserError(
                f"env = '{env_id}': DeepMind Control is an extra; pip install 'pdml[dmc]' (in a checkout, '.[dmc]')"
            ) from None


def has_time_limit(env: gymnasium.Env) -> bool:
    """Say whether a wrapper or the registration cuts the episodes of an environment."""
    if env.spec is not None and env.spec.max_episode_steps is not None:
        return True
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit):
            return True
        layer = layer.env
    return False


def adapt(env: gymnasium.Env, name: str, max_episode_steps: int = 0, timeout: float = 0.0) -> gymnasium.Env:
    """Give any environment the form that learning needs.

    Args:
        name: For messages.
        max_episode_steps: Cut episodes here, beside what the environment does itself; 0: do not.
        timeout: Seconds that a step or a reset may take before the process is ended; 0: any time.
    """
    examine(env.observation_space, env.action_space, name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="overflow encountered in cast")  # of bounds that are infinite
        if not isinstance(env.observation_space, gymnasium.spaces.Box) or len(env.observation_space.shape) != 1:
            env = FlattenObservation(env)
        env = RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    return Guarded(env, max_episode_steps, timeout)


class EnvironmentFault(RunError):  # noqa: N818
    """The environment raised, or gave something that cannot be learned from."""


class Guarded(gymnasium.Wrapper):
    """Names what an environment does wrong, at the step where it does it; lets it neither hang nor go on for ever."""

    def __init__(self, env: gymnasium.Env, max_episode_steps: int, timeout: float):
        super().__init__(env)
        self._shape, self._timeout, self._limit = env.observation_space.shape, timeout, max_episode_steps
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Begin an episode."""
        self._steps = 0
        obs, info = self._call(lambda: self.env.reset(seed=seed, options=options), "obs, info")
        return self._checked(obs), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
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
            warnings.warn(f"an episode was cut by max_episode_steps = {self._limit}", stacklevel=2)
        return self._checked(obs), value, bool(terminated), bool(truncated), info

    def _call(self, call: Callable[[], Any], parts: str) -> Any:
        try:
            with watchdog.limit(self._timeout, f"{self._where()} took longer than env_timeout = {self._timeout} s"):
                result = call()
        except Exception as error:
            raise EnvironmentFault(f"{self._where()} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, tuple) or len(result) != len(parts.split(", ")):
            found = f"{len(result)} things" if isinstance(result, tuple) else type(result).__name__
            raise EnvironmentFault(f"{self._where()} returned {found}, not ({parts})")
        return result

    def _checked(self, obs: Any) -> np.ndarray:
        try:
            array = np.array(obs, np.float32)
        except (TypeError, ValueError):
            raise EnvironmentFault(f"{self._where()} returned an observation that is not made of numbers") from None
        if array.shape != self._shape:
            raise EnvironmentFault(f"{self._where()} returned an observation of shape {array.shape}, not {self._shape}")
        if not np.isfinite(array).all():
            entry = int(np.flatnonzero(~np.isfinite(array))[0])
            raise EnvironmentFault(f"{self._where()} returned {array[entry]} in entry {entry} of its observation")
        return array

    def _where(self) -> str:
        return f"the environment, at step {self._steps} of an episode," if self._steps else "the environment, at reset,"


@dataclass
class Episode:
    """The running training episode: enough to begin it again and come to the same state."""

    number: int = -1
    obs: Float32[np.ndarray, " obs"] = field(default_factory=lambda: np.zeros(0, np.float32))
    actions: list[np.ndarray] = field(default_factory=list)
    total: float = 0.0
    foreign: bool = False
    """Somebody else steps its environment, so nobody here can bring it back."""


class Step(NamedTuple):
    """What one real step gave."""

    obs: Float32[np.ndarray, " obs"]
    action: Float32[np.ndarray, " action"]
    reward: float
    next_obs: Float32[np.ndarray, " obs"]
    terminated: bool
    finished: tuple[float, int] | None
    """Return and length, if the episode ended with this step (by itself or by its time limit)."""


def begin(env: gymnasium.Env, seed: int, number: int) -> Episode:
    """Reset the environment for an episode, with a seed of its own."""
    obs, _ = env.reset(seed=env_seed(seed, Purpose.EPISODE, number))
    return Episode(number, np.asarray(obs, np.float32))


def advance(
    env: gymnasium.Env, seed: int, episode: Episode, action: Float32[np.ndarray, " action"]
) -> tuple[Episode, Step]:
    """Take one step and begin the next episode where this one ends."""
    next_obs, reward, terminated, truncated, _ = env.step(action)
    episode, step = follow(episode, action, np.asarray(next_obs, np.float32), float(reward), terminated, truncated)
    return (episode if step.finished is None else begin(env, seed, episode.number)), step


def follow(
    episode: Episode,
    action: Float32[np.ndarray, " action"],
    next_obs: Float32[np.ndarray, " obs"],
    reward: float,
    terminated: bool,
    truncated: bool,
) -> tuple[Episode, Step]:
    """Return the episode after a step, the next one (not yet begun) where it ended, and the step."""
    actions, total = episode.actions, episode.total + reward
    actions.append(action)
    ended = terminated or truncated
    step = Step(episode.obs, action, reward, next_obs, bool(terminated), (total, len(actions)) if ended else None)
    if ended:
        return Episode(episode.number + 1, foreign=episode.foreign), step
    return Episode(episode.number, next_obs, actions, total, episode.foreign), step


def reproduce(
    env: gymnasium.Env, seed: int, episode: Episode, seen: Float32[np.ndarray, "n obs"]
) -> tuple[Episode, bool]:
    """Bring a fresh environment to the state of a saved episode by its seed and its actions.

    Args:
        seen: The observations before the last n actions.

    Returns:
        The episode and true; or, at the first observation that is not as it was, a new episode and false.
    """
    expected = [None] * (len(episode.actions) - len(seen)) + [*seen, episode.obs]
    again = begin(env, seed, episode.number)
    for obs, action in zip(expected, [*episode.actions, None], strict=True):
        if obs is not None and not np.array_equal(again.obs, obs):
            return begin(env, seed, episode.number + 1), False
        if action is not None:
            again.obs = np.asarray(env.step(action)[0], np.float32)
    return episode, True
