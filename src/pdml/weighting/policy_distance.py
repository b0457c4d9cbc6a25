r"""Estimates of the policy shift $\xi_{\pi_i}$: how far a historical policy is from the current one.

[Wang et al. 2023, Sec. 4.1, Eq. (6)]. Policies are compared before the tanh, which changes no total variation.
"""

from collections.abc import Callable
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pdml.config.schema import MixtureConfig
from pdml.core.rng import Purpose, generator

Estimator = Callable[[Float[Array, "states two_a"], Float[Array, "policies states two_a"], Int[Array, ""]], Array]
"""From the outputs of the current policy and of others on states, of which the first `count` are meant, to shifts."""

SAMPLES = 8
"""Actions of the current policy a state, for the Monte-Carlo estimate."""


def double_kl(
    mean: Float[Array, "*b a"],
    log_std: Float[Array, "*b a"],
    other_mean: Float[Array, "*k a"],
    other_log_std: Float[Array, "*k a"],
) -> Float[Array, "*k"]:
    r"""$2\,\mathrm{KL}(\pi_c \| \pi_i) = \sum_d e^{2\Delta} - 1 - 2\Delta + (\mu_c-\mu_i)^2/\sigma_i^2$.

    With $\Delta = \ln\sigma_c - \ln\sigma_i$: no determinant, no cancellation.

    Departs from the paper, whose printed expression mixes the two directions, and from its released code, which
    puts the standard deviation in the place of the covariance.
    """
    delta = log_std - other_log_std
    distance = (mean - other_mean) * jnp.exp(-other_log_std)
    return (jnp.expm1(2.0 * delta) - 2.0 * delta + jnp.square(distance)).sum(axis=-1)


def pinsker(kl: Float[Array, "policies states"]) -> Float[Array, "policies states"]:
    r"""$\mathrm{TV} \le \sqrt{\mathrm{KL}/2}$, as in the paper; not below 1 for distant policies, but ordered."""
    return jnp.sqrt(0.5 * kl)


def bretagnolle_huber(kl: Float[Array, "policies states"]) -> Float[Array, "policies states"]:
    r"""$\mathrm{TV} \le \sqrt{1 - e^{-\mathrm{KL}}}$, which stays below 1."""
    return jnp.sqrt(-jnp.expm1(-kl))


def total_variation(
    mean: Float[Array, "states a"],
    log_std: Float[Array, "states a"],
    other_mean: Float[Array, "policies states a"],
    other_log_std: Float[Array, "policies states a"],
    noise: Float[Array, "samples states a"],
) -> Float[Array, "policies states"]:
    r"""$\mathrm{TV} = \mathbb{E}_{a \sim \pi_c} [1 - \pi_i(a)/\pi_c(a)]_+$, over given standard normal draws."""
    total = jnp.zeros(other_mean.shape[:2])
    for draw in noise:
        action = mean + jnp.exp(log_std) * draw
        other = (action[None] - other_mean) * jnp.exp(-other_log_std)
        log_ratio = 0.5 * (jnp.square(draw)[None] - jnp.square(other)) + log_std[None] - other_log_std
        total += jnp.maximum(-jnp.expm1(log_ratio.sum(axis=-1)), 0.0)
    return total / len(noise)


@lru_cache(maxsize=4)
def estimator(config: MixtureConfig, action_size: int, seed: int) -> Estimator:
    r"""Build the estimate that the configuration names: a mean over states of a bound or estimate of each.

    The Monte-Carlo draws are the same for all policies and the whole run: differences between policies are then not
    those of the draws.
    """
    bound = {"pinsker": pinsker, "bretagnolle-huber": bretagnolle_huber}.get(config.shift)
    samples = SAMPLES if bound is None else 0
    drawn = generator(seed, Purpose.SHIFT_NOISE).standard_normal((samples, config.reservoir, action_size))
    noise = drawn.astype(np.float32)

    def shift(
        current: Float[Array, "states two_a"], others: Float[Array, "policies states two_a"], count: Int[Array, ""]
    ) -> Float[Array, " policies"]:
        mean, log_std = jnp.split(current, 2, axis=-1)
        other_mean, other_log_std = jnp.split(others, 2, axis=-1)
        if config.std_as_covariance:  # a variance of sigma is a standard deviation of its root
            log_std, other_log_std = 0.5 * log_std, 0.5 * other_log_std
        if bound is None:
            values = total_variation(mean, log_std, other_mean, other_log_std, jnp.asarray(noise[:, : len(mean)]))
        else:
            twice = double_kl(mean[None], log_std[None], other_mean, other_log_std)
            values = bound(0.5 * jnp.maximum(twice, 0.0))
        filled = jnp.arange(values.shape[-1]) < count
        return jnp.where(filled[None], values, 0.0).sum(axis=-1) / count.astype(values.dtype)

    return shift
