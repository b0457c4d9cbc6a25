"""The running training episode: begin it, step it, and bring it back from its seed and actions."""

from dataclasses import dataclass, field
from typing import NamedTuple

import gymnasium
import numpy as np
from jaxtyping import Float32

from pdml.core.rng import Purpose, env_seed


@dataclass
class Episode:
    """The running training episode: its seed and actions are enough to reach the same state again."""

    number: int = -1
    obs: Float32[np.ndarray, " obs"] = field(default_factory=lambda: np.zeros(0, np.float32))
    actions: list[np.ndarray] = field(default_factory=list)
    total: float = 0.0
    foreign: bool = False
    """The caller steps the environment, so the episode cannot be reproduced here."""


class Step(NamedTuple):
    """One real step."""

    obs: Float32[np.ndarray, " obs"]
    action: Float32[np.ndarray, " action"]
    reward: float
    next_obs: Float32[np.ndarray, " obs"]
    terminated: bool
    finished: tuple[float, int] | None
    """Return and length of the episode if it ended with this step, terminated or truncated."""


def begin_episode(env: gymnasium.Env, seed: int, number: int) -> Episode:
    """Reset the environment for an episode, with a seed of its own."""
    obs, _ = env.reset(seed=env_seed(seed, Purpose.EPISODE, number))
    return Episode(number, np.asarray(obs, np.float32))


def advance_episode(
    env: gymnasium.Env, seed: int, episode: Episode, action: Float32[np.ndarray, " action"]
) -> tuple[Episode, Step]:
    """Take one step, and begin the next episode if this one ended."""
    next_obs, reward, terminated, truncated, _ = env.step(action)
    episode, step = follow_step(episode, action, np.asarray(next_obs, np.float32), float(reward), terminated, truncated)
    return (episode if step.finished is None else begin_episode(env, seed, episode.number)), step


def follow_step(
    episode: Episode,
    action: Float32[np.ndarray, " action"],
    next_obs: Float32[np.ndarray, " obs"],
    reward: float,
    terminated: bool,
    truncated: bool,
) -> tuple[Episode, Step]:
    """Return the episode after a step, and the step; if the episode ended, the next one, which is not begun yet.

    The list of the episode's actions is extended in place.
    """
    actions, total = episode.actions, episode.total + reward
    actions.append(action)
    ended = terminated or truncated
    step = Step(episode.obs, action, reward, next_obs, bool(terminated), (total, len(actions)) if ended else None)
    if ended:
        return Episode(episode.number + 1, foreign=episode.foreign), step
    return Episode(episode.number, next_obs, actions, total, episode.foreign), step


def reproduce_episode(
    env: gymnasium.Env, seed: int, episode: Episode, seen: Float32[np.ndarray, "n obs"]
) -> tuple[Episode, bool]:
    """Bring a fresh environment to the state of a saved episode: reset it with the same seed, repeat the actions.

    Args:
        seen: The observations before the last n actions.

    Returns:
        The episode and true; or, at the first observation that differs, a new episode and false.
    """
    expected = [None] * (len(episode.actions) - len(seen)) + [*seen, episode.obs]
    again = begin_episode(env, seed, episode.number)
    for obs, action in zip(expected, [*episode.actions, None], strict=True):
        if obs is not None and not np.array_equal(again.obs, obs):
            return begin_episode(env, seed, episode.number + 1), False
        if action is not None:
            again.obs = np.asarray(env.step(action)[0], np.float32)
    return episode, True
