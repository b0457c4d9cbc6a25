"""Evaluation: whole episodes in environments of their own, stepped together with one batched policy call."""

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np

from pdml.core import signals
from pdml.core.rng import Purpose, env_seed

BatchPolicy = Callable[[np.ndarray, int], np.ndarray]
"""(observations of all environments, time in the episode) -> actions in [-1, 1]."""


class EpisodeResult(NamedTuple):
    """Return and length of one episode."""

    total: float
    length: int


def evaluate(
    envs: list[gymnasium.Env], policy: BatchPolicy, seed: int, step: int, episodes: int
) -> list[EpisodeResult]:
    """Run some episodes, as many at once as there are environments.

    Starting states are drawn anew for each evaluation, from seeds that depend on the run's seed, the step and the
    episode only. The batch keeps its size when episodes end, so the policy is compiled once.
    """
    results: list[EpisodeResult] = []
    for first in range(0, episodes, len(envs)):
        wave = envs[: episodes - first]
        results += _wave(wave, lambda obs, time: policy(_padded(obs, len(envs)), time), seed, step, first)
    return results


def _padded(obs: np.ndarray, length: int) -> np.ndarray:
    """Return observations filled up with zeros, so that the batch has one shape."""
    return obs if len(obs) == length else np.concatenate([obs, np.zeros((length - len(obs), obs.shape[1]), np.float32)])


def _wave(envs: list[gymnasium.Env], policy: BatchPolicy, seed: int, step: int, first: int) -> list[EpisodeResult]:
    """Run one episode in each environment."""
    obs = np.stack(
        [env.reset(seed=env_seed(seed, Purpose.EVALUATION, step, first + i))[0] for i, env in enumerate(envs)]
    ).astype(np.float32)
    total, length = np.zeros(len(envs)), np.zeros(len(envs), int)
    running = np.ones(len(envs), bool)
    time = 0
    while running.any():
        actions = policy(obs.copy(), time)
        for i in np.flatnonzero(running):
            next_obs, reward, terminated, truncated, _ = envs[i].step(actions[i])
            obs[i] = next_obs
            total[i] += float(reward)
            length[i] += 1
            running[i] = not (terminated or truncated)
        time += 1
        signals.check(patience=5.0)
    return [EpisodeResult(float(r), int(n)) for r, n in zip(total, length, strict=True)]
