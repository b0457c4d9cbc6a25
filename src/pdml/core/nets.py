"""Multilayer perceptrons and the tanh-Gaussian policy head, in plain JAX."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.core.types import PolicyHead

LOG_STD_RANGE = (-20.0, 2.0)


class Layer(NamedTuple):
    """One affine map."""

    w: Float[Array, "inputs outputs"]
    b: Float[Array, " outputs"]


Mlp = tuple[Layer, ...]
Activation = Callable[[Array], Array]


def init_xavier(key: PRNGKeyArray, sizes: Sequence[int]) -> Mlp:
    """Initialise weights uniformly after Glorot, biases with zero."""
    keys = jax.random.split(key, len(sizes) - 1)
    layers = []
    for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        limit = (6.0 / (n + m)) ** 0.5
        layers.append(Layer(jax.random.uniform(k, (n, m), minval=-limit, maxval=limit), jnp.zeros((m,))))
    return tuple(layers)


def init_truncated(key: PRNGKeyArray, sizes: Sequence[int]) -> Mlp:
    r"""Initialise weights normally with $\sigma = 1/(2\sqrt{n})$, truncated at two $\sigma$; biases with zero."""
    keys = jax.random.split(key, len(sizes) - 1)
    layers = []
    for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True):
        w = jax.random.truncated_normal(k, -2.0, 2.0, (n, m)) / (2.0 * n**0.5)
        layers.append(Layer(w, jnp.zeros((m,))))
    return tuple(layers)


def mlp(params: Mlp, x: Float[Array, "b inputs"], activation: Activation = jax.nn.relu) -> Float[Array, "b outputs"]:
    """Apply the layers, the activation after each but the last."""
    return hidden(params, x, activation) @ params[-1].w + params[-1].b[None]


def hidden(params: Mlp, x: Float[Array, "b inputs"], activation: Activation) -> Float[Array, "b hidden"]:
    """Apply all layers but the last."""
    for layer in params[:-1]:
        x = activation(x @ layer.w + layer.b[None])
    return x


def choose(networks: tuple[Mlp, ...], chosen: Int[Array, " few"]) -> tuple[Mlp, ...]:
    """Select a few of many networks, by indices that may be traced; only the selected ones are copied."""
    branches = [lambda network=network: network for network in networks]
    return tuple(jax.lax.switch(chosen[i], branches) for i in range(len(chosen)))


@jax.custom_vjp
def silu(x: Array) -> Array:
    r"""$x\,\sigma(x)$, with the derivative kept from the forward pass.

    The same function as `jax.nn.silu`; on a CPU it makes a step of the ensemble about a tenth faster.
    """
    return silu_and_slope(x)[0]


def silu_and_slope(x: Array) -> tuple[Array, Array]:
    """Return the function and its derivative."""
    gate = 0.5 * (1.0 + jnp.tanh(0.5 * x))
    y = x * gate
    return y, gate + y * (1.0 - gate)


def _silu_backward(slope: Array, g: Array) -> tuple[Array]:
    return (g * slope,)


silu.defvjp(silu_and_slope, _silu_backward)


def gaussian(params: Mlp, obs: Float[Array, "b obs"]) -> tuple[Float[Array, "b a"], Float[Array, "b a"]]:
    """Return mean and log standard deviation of the policy before the tanh."""
    mean, log_std = jnp.split(mlp(params, obs), 2, axis=-1)
    return mean, jnp.clip(log_std, *LOG_STD_RANGE)


def squash(
    mean: Float[Array, "b a"], log_std: Float[Array, "b a"], noise: Float[Array, "b a"]
) -> tuple[Float[Array, "b a"], Float[Array, " b"]]:
    r"""Return $a = \tanh(\mu + \sigma\epsilon)$ and $\log\pi(a)$ in the space $[-1, 1]$.

    $\log(1 - \tanh^2 u) = 2(\log 2 - u - \mathrm{softplus}(-2u))$ stays finite where the tanh saturates.
    """
    u = mean + jnp.exp(log_std) * noise
    log_normal = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    log_slope = 2.0 * (jnp.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return jnp.tanh(u), (log_normal - log_slope).sum(axis=-1)


def sample_action(head: PolicyHead, actor: Any, obs: Float[Array, "b obs"], key: PRNGKeyArray) -> Float[Array, "b a"]:
    """Sample an action of a squashed Gaussian policy for each observation, in [-1, 1]."""
    mean, log_std = head(actor, obs)
    return squash(mean, log_std, jax.random.normal(key, mean.shape))[0]


def mode_action(head: PolicyHead, actor: Any, obs: Float[Array, "b obs"]) -> Float[Array, "b a"]:
    """Return the squashed mean of the policy for each observation: its deterministic action."""
    return jnp.tanh(head(actor, obs)[0])
