"""Evaluation: whole episodes in environments of their own, stepped together with one batched policy call."""

from collections.abc import Callable
from typing import NamedTuple

import gymnasium
import numpy as np

from pdml.core import signals
from pdml.core.batching import padded
from pdml.core.rng import Purpose, env_seed

MOST_ENVS = 64
"""Environments that are open at a time, however many episodes there are."""

BatchPolicy = Callable[[np.ndarray, int], np.ndarray]
"""(observations of all environments, time step in the episode) -> actions in [-1, 1]."""


class EpisodeResult(NamedTuple):
    """Return and length of one episode."""

    total: float
    length: int


class Evaluator:
    """Evaluates policies in environments that it makes once and keeps until it is closed.

    Args:
        make_env: Makes one environment.
        num_envs: Environments to step together, of which at most `MOST_ENVS` are made; as many as there are episodes
            is fastest.
        borrowed: The environment belongs to the caller: there is only one, and `close` leaves it open.
    """

    def __init__(self, make_env: Callable[[], gymnasium.Env], num_envs: int, borrowed: bool = False):
        self._borrowed = borrowed
        self._envs = [make_env() for _ in range(min(num_envs, 1 if borrowed else MOST_ENVS))]

    def __call__(self, policy: BatchPolicy, seed: int, step: int, episodes: int) -> list[EpisodeResult]:
        """Run some episodes of a policy; see `evaluate`."""
        return evaluate(self._envs, policy, seed, step, episodes)

    def close(self) -> None:
        """Close the environments, unless they are borrowed."""
        for env in [] if self._borrowed else self._envs:
            env.close()


def evaluate(
    envs: list[gymnasium.Env], policy: BatchPolicy, seed: int, step: int, episodes: int
) -> list[EpisodeResult]:
    """Run some episodes, as many at once as there are environments.

    Each evaluation has its own initial states: their seeds depend on the run's seed, the step and the episode only. The
    batch keeps its size when episodes end, so the policy is compiled once.
    """
    results: list[EpisodeResult] = []
    for first in range(0, episodes, len(envs)):
        wave = envs[: episodes - first]
        results += _wave(wave, lambda obs, time: policy(padded(obs, len(envs)), time), seed, step, first)
    return results


def _wave(envs: list[gymnasium.Env], policy: BatchPolicy, seed: int, step: int, first: int) -> list[EpisodeResult]:
    """Run one episode in each environment."""
    obs = np.stack(
        [env.reset(seed=env_seed(seed, Purpose.EVALUATION, step, first + i))[0] for i, env in enumerate(envs)]
    ).astype(np.float32)
    total, length = np.zeros(len(envs)), np.zeros(len(envs), int)
    running = np.ones(len(envs), bool)
    time = 0
    while running.any():
        actions = policy(obs, time)
        for i in np.flatnonzero(running):
            next_obs, reward, terminated, truncated, _ = envs[i].step(actions[i])
            obs[i] = next_obs
            total[i] += float(reward)
            length[i] += 1
            running[i] = not (terminated or truncated)
        time += 1
        signals.stop_if_asked(patience=5.0)
    return [EpisodeResult(float(r), int(n)) for r, n in zip(total, length, strict=True)]
