"""The border to Gymnasium: environments with actions in [-1, 1], observations in float32, and the running episode."""

import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.wrappers import RescaleAction, TransformObservation
from jaxtyping import Float32

from pdml.errors import UserError
from pdml.randomness import Purpose, env_seed
from pdml.tasks import find_task


def make_env(env_id: str, **kwargs: Any) -> gymnasium.Env:
    """Make an environment with the observation of the paper and actions rescaled to [-1, 1].

    Args:
        kwargs: Passed on to the constructor, for example `render_mode`.
    """
    task = find_task(env_id)
    version = env_id.rpartition("-")[2]
    flags = task.kwargs.get(version, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*out of date.*")
        env = gymnasium.make(env_id, disable_env_checker=True, **flags, **kwargs)
    keep = task.keep.get(version)
    if keep is not None:
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        cut = gymnasium.spaces.Box(space.low[:keep], space.high[:keep], (keep,), np.float64)
        env = TransformObservation(env, lambda obs: obs[:keep], cut)
    env = RescaleAction(env, np.float32(-1.0), np.float32(1.0))
    if env.observation_space.shape != (task.obs_size,) or env.action_space.shape != (task.action_size,):
        raise UserError(
            f"env = '{env_id}': spaces {env.observation_space.shape}, {env.action_space.shape} "
            f"instead of ({task.obs_size},), ({task.action_size},); check the versions of gymnasium and mujoco"
        )
    return env


@dataclass
class Episode:
    """The running training episode: enough to begin it again and come to the same state."""

    number: int = -1
    obs: Float32[np.ndarray, " obs"] = field(default_factory=lambda: np.zeros(0, np.float32))
    actions: list[np.ndarray] = field(default_factory=list)
    total: float = 0.0


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
    next_obs, reward = np.asarray(next_obs, np.float32), float(reward)
    if not np.isfinite(next_obs).all() or not np.isfinite(reward):
        raise ValueError(f"the environment returned a number that is not finite (reward {reward}, obs {next_obs})")
    actions = episode.actions
    actions.append(action)
    total = episode.total + reward
    ended = terminated or truncated
    finished = (total, len(actions)) if ended else None
    result = Step(episode.obs, action, reward, next_obs, bool(terminated), finished)
    if ended:
        return begin(env, seed, episode.number + 1), result
    return Episode(episode.number, next_obs, actions, total), result


def reproduce(env: gymnasium.Env, seed: int, episode: Episode) -> None:
    """Bring a fresh environment to the state of a saved episode, by its seed and its actions."""
    again = begin(env, seed, episode.number)
    for action in episode.actions:
        obs, *_ = env.step(action)
        again.obs = np.asarray(obs, np.float32)
    if not np.array_equal(again.obs, episode.obs):
        raise ValueError("the environment does not reproduce its saved episode from its seed and actions")
