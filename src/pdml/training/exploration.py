"""Noise of the actions that a policy takes in the environment."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float32

from pdml.core.rng import Purpose, generator
from pdml.envs.episode import Episode

PINK_STEPS = 1000
"""Steps of one piece of pink noise; longer episodes have several, one after the other."""


def pink_noise(seed: int, episode: Episode, action_size: int) -> Float32[np.ndarray, " action"]:
    """Return the noise of an episode's next step [Eberhard et al. 2023]: standard normal, correlated over the episode.

    It depends on the seed, the episode and its step alone, so a resumed run continues the same noise.
    """
    piece, step = divmod(len(episode.actions), PINK_STEPS)
    return _piece(seed, episode.number, piece, action_size)[:, step]


@lru_cache(maxsize=1)  # all steps of an episode ask for the same
def _piece(seed: int, number: int, piece: int, action_size: int) -> Float32[np.ndarray, "action steps"]:
    rng = generator(seed, Purpose.EXPLORATION, number, piece)
    return pink_sequence(rng, action_size).astype(np.float32)


def pink_sequence(rng: np.random.Generator, count: int, length: int = PINK_STEPS) -> np.ndarray:
    """Return sequences whose power falls with 1/frequency, of variance 1 at every step.

    A sum of waves with normal amplitudes. The constant wave is as strong as the slowest one.
    """
    power = 1.0 / np.maximum(np.arange(length // 2 + 1), 1)
    waves = np.sqrt(power) * (rng.standard_normal((count, len(power))) + 1j * rng.standard_normal((count, len(power))))
    ends = [0, -1] if length % 2 == 0 else [0]  # these waves have no phase
    waves[:, ends] = np.sqrt(2.0) * waves[:, ends].real
    variance = (4.0 * power.sum() - 2.0 * power[ends].sum()) / length**2
    return np.fft.irfft(waves, length, axis=1) / np.sqrt(variance)
