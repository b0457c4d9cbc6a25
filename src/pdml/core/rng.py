"""Addressed randomness: a draw depends on the seed, its purpose and the step, and on nothing that came before.

So the same seed gives the same run whatever is logged, evaluated or resumed.
"""

from enum import IntEnum

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


class Purpose(IntEnum):
    """What a draw is for. The numbers never change: they are part of what a seed means."""

    AGENT_INIT = 1
    MODEL_INIT = 2
    WARMUP = 3
    EPISODE = 4
    ACT = 5
    IMPROVE = 6
    REAL_ROWS = 7
    HOLDOUT = 8
    MODEL_ROWS = 9
    STARTS = 10
    IMAGINE = 11
    RESERVOIR = 12
    EVALUATION = 13
    EVALUATION_ACT = 14
    IMAGINED_ROWS = 15
    REFINE = 16
    TD_SCORES = 17
    SHIFT_NOISE = 18
    MISALIGN = 19
    ADAPTATION_INIT = 20
    MODEL_SCORES = 21
    PROBE_EPISODE = 22
    PROBE_ACT = 23
    PROBE_RESERVOIR = 24
    PREDICT = 25
    ENDING_INIT = 26
    ENDING_ROWS = 27
    BOOTSTRAP = 28
    EXPLORATION = 29
    CRITIC_EPISODE = 30
    CRITIC_ACT = 31


def _fold(seed: jax.Array, purpose: jax.Array, step: jax.Array) -> PRNGKeyArray:
    root = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(jax.random.fold_in(root, purpose), step)


_folded = jax.jit(_fold)


def key(seed: int, purpose: Purpose, step: int = 0) -> PRNGKeyArray:
    """Return the device key of an address."""
    return _folded(np.uint32(seed), np.uint32(purpose), np.uint32(step))


def generator(seed: int, purpose: Purpose, step: int = 0, part: int = 0) -> np.random.Generator:
    """Return the host generator of an address.

    Args:
        part: A second coordinate, such as the epoch of a fit.
    """
    return np.random.Generator(np.random.Philox(key=[seed, int(purpose)], counter=[0, 0, part, step]))


def env_seed(seed: int, purpose: Purpose, step: int, part: int = 0) -> int:
    """Return a seed for an environment's reset."""
    return int(generator(seed, purpose, step, part).integers(2**31))
