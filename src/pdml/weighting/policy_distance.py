r"""Estimates of the policy shift $\xi_{\pi_i}$: how far a historical policy is from the current one.

[Wang et al. 2023, Sec. 4.1, Eq. (6)]. Policies are compared before the tanh, which changes no total variation.
"""

from functools import lru_cache
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pdml.config.schema import MixtureConfig
from pdml.core.rng import Purpose, generator

SAMPLES = 8
"""Actions of the current policy per state, for the Monte-Carlo estimate."""


@runtime_checkable
class Estimator(Protocol):
    """Estimates policy shifts from what policies put out on states: mean and log standard deviation side by side."""

    def __call__(
        self,
        current: Float[Array, "states two_a"],
        others: Float[Array, "policies states two_a"],
        count: Int[Array, ""],
        /,
    ) -> Float[Array, " policies"]:
        """Return the shift of each of the other policies from the current one, over the first `count` states."""
        ...


def double_kl(
    mean: Float[Array, "*b a"],
    log_std: Float[Array, "*b a"],
    other_mean: Float[Array, "*k a"],
    other_log_std: Float[Array, "*k a"],
) -> Float[Array, "*k"]:
    r"""$2\,\mathrm{KL}(\pi_c \| \pi_i) = \sum_d e^{2\Delta} - 1 - 2\Delta + (\mu_c-\mu_i)^2/\sigma_i^2$.

    With $\Delta = \ln\sigma_c - \ln\sigma_i$: no determinant, no cancellation.

    Departs from the paper, whose printed expression mixes the two directions, and from its released code, which
    uses the standard deviation in place of the covariance.
    """
    delta = log_std - other_log_std
    distance = (mean - other_mean) * jnp.exp(-other_log_std)
    return (jnp.expm1(2.0 * delta) - 2.0 * delta + jnp.square(distance)).sum(axis=-1)


def pinsker(kl: Float[Array, "policies states"]) -> Float[Array, "policies states"]:
    r"""$\mathrm{TV} \le \sqrt{\mathrm{KL}/2}$, as in the paper; it exceeds 1 for distant policies, but keeps order."""
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
    r"""$\mathrm{TV} = \mathbb{E}_{a \sim \pi_c} [1 - \pi_i(a)/\pi_c(a)]_+$, over given standard normal samples."""
    total = jnp.zeros(other_mean.shape[:2])
    for sample in noise:
        action = mean + jnp.exp(log_std) * sample
        other = (action[None] - other_mean) * jnp.exp(-other_log_std)
        log_ratio = 0.5 * (jnp.square(sample)[None] - jnp.square(other)) + log_std[None] - other_log_std
        total += jnp.maximum(-jnp.expm1(log_ratio.sum(axis=-1)), 0.0)
    return total / len(noise)


@lru_cache(maxsize=4)
def estimator(config: MixtureConfig, action_size: int, seed: int) -> Estimator:
    r"""Build the configured estimate: the mean over states of a bound or estimate of the total variation.

    The Monte-Carlo noise is the same for all policies and the whole run, so policies do not differ by their noise.
    """
    bound = {"pinsker": pinsker, "bretagnolle-huber": bretagnolle_huber}.get(config.shift)
    samples = SAMPLES if bound is None else 0
    rng = generator(seed, Purpose.SHIFT_NOISE)
    noise = rng.standard_normal((samples, config.reservoir, action_size)).astype(np.float32)

    def shift(
        current: Float[Array, "states two_a"],
        others: Float[Array, "policies states two_a"],
        count: Int[Array, ""],
        /,
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
