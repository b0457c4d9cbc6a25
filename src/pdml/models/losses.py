"""Model losses: what the ensemble minimises, and the error that stops its training."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.errors import Diverged
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.models.ensemble import Network, apply_members, split_output

BOUND_PENALTY = 0.01


class Loss(NamedTuple):
    """A part: a loss over minibatches. It may attach its own columns to each transition, beside inputs and targets."""

    carry: Callable[[RealRows, Any, int], Float[np.ndarray, "n carried"]]
    """From the real transitions, the agent and the real step, once per fit: the columns attached to each transition."""
    value: Callable[
        [
            Network,
            Float[Array, "members b inputs"],
            Float[Array, "members b outputs"],
            Float[Array, "members b carried"],
        ],
        Float[Array, ""],
    ]
    error: Callable[
        [Float[Array, "b outputs"], Float[Array, "b outputs"], Float[Array, "b carried"]], Float[Array, " b"]
    ]
    """Error of a network's means per row: decides early stopping and elites."""


def carry_nothing(real: RealRows, agent: Any, step: int) -> Float[np.ndarray, "n 0"]:
    """Attach nothing."""
    return np.zeros((len(real.rows), 0), np.float32)


def decayed(network: Network, weight_decay: tuple[float, ...]) -> Float[Array, ""]:
    """Return the L2 penalty of each layer's weights."""
    loss = jnp.zeros(())
    for member in network.members:
        for rate, layer in zip(weight_decay, member, strict=True):
            loss += 0.5 * rate * jnp.square(layer.w).sum()
    return loss


def squared_error(mean: Float[Array, "b outputs"], y: Float[Array, "b outputs"], carried: Array) -> Float[Array, " b"]:
    """Return the mean squared error of each row, without the variance."""
    return jnp.square(mean - y).mean(axis=1)


def nll(config: Config) -> Loss:
    r"""The negative log-likelihood of MBPO, $\sum_b \overline{(\mu-y)^2 e^{-\ell} + \ell}$, Eq. (7).

    With the L2 penalty of each layer's weights and a pull on the bounds. Departs from the paper's Eq. (7), which
    predicts the next state only: the target is [reward, change of state], and the mean is over rows and outputs, as in
    the code that it builds on.
    """
    weight_decay, train_bounds = config.dynamics.weight_decay, config.dynamics.train_bounds

    def value(network: Network, x: Array, y: Array, carried: Array) -> Float[Array, ""]:
        bounds = network.bounds if train_bounds else jax.lax.stop_gradient(network.bounds)
        loss = BOUND_PENALTY * (bounds.upper.sum() - bounds.lower.sum())
        for i, output in enumerate(apply_members(network.members, x)):
            mean, log_var = split_output(output, bounds)
            loss += (jnp.square(mean - y[i]) * jnp.exp(-log_var) + log_var).mean()
        return loss + decayed(network, weight_decay)

    return Loss(carry_nothing, value, squared_error)


ValueGradients = Callable[[Any, Float[Array, "b obs"]], Float[Array, "critics b obs"]]
"""From an agent and states: the gradient of each critic's value by the state."""


def vagram(config: Config, layout: Layout, value_gradients: ValueGradients) -> Loss:
    r"""Value-gradient-weighted loss of the mean, $\overline{g^2 (\hat s' - s')^2} + (\hat r - r)^2$.

    [Voelcker et al. 2022]. $g = \partial V_q / \partial s'$ at the true next state for each critic and target critic q,
    with the action fixed to the policy's mode. Gradients longer than a quantile of their lengths are clipped to it.
    They are those of the agent when the fit begins. The prediction does not depend on q, so the mean over q is taken
    first, and each transition carries one weight per entry of the state.

    Departs from the authors' code, where gradients add up over q, clipping has no effect and cached gradients belong
    to other rows. The squared weights are scaled to mean 1, so that MBPO's step size works; the quantile is over all
    transitions of the fit instead of a minibatch.
    """
    options, weight_decay = config.vagram, config.dynamics.weight_decay
    next_obs = slice(layout.obs_size + layout.action_size + 1, 2 * layout.obs_size + layout.action_size + 1)
    gradients = jax.jit(value_gradients)

    def carry(real: RealRows, agent: Any, step: int) -> Float[np.ndarray, "n obs"]:
        found = in_chunks(lambda obs, _: jnp.moveaxis(gradients(agent, obs), 0, 1), real.rows[:, next_obs])
        weights = gradient_weights(found, options.quantile)
        return weights + 1.0 if config.schedule.after_warmup(step) < options.mse_steps else weights

    def error(mean: Array, y: Array, carried: Array) -> Float[Array, " b"]:
        squared = jnp.square(mean - y)
        return (carried * squared[:, 1:]).mean(axis=1) + squared[:, 0]

    def value(network: Network, x: Array, y: Array, carried: Array) -> Float[Array, ""]:
        loss = decayed(network, weight_decay)
        for i, output in enumerate(apply_members(network.members, x)):
            loss += error(jnp.split(output, 2, axis=-1)[0], y[i], carried[i]).mean()
        return loss

    return Loss(carry, value, error)


def gradient_weights(gradients: Float[np.ndarray, "n critics obs"], quantile: float) -> Float[np.ndarray, "n obs"]:
    """Return the squared gradients, clipped at a quantile of their lengths, averaged over critics, scaled to mean 1.

    Where the quantile itself is 0 nothing is clipped; where no value depends on the state all weights are equal.
    """
    if not np.isfinite(gradients).all():
        raise Diverged("the gradient of a value function is not finite: the critics have diverged")
    squared = np.zeros((len(gradients), gradients.shape[2]), np.float32)
    for of_critic in np.moveaxis(gradients, 1, 0):
        length = np.linalg.norm(of_critic, axis=1, keepdims=True)
        longest = np.quantile(length, quantile)
        factor = np.where((longest > 0) & (length > longest), longest / np.maximum(length, 1e-30), 1.0)
        squared += np.square(of_critic * factor.astype(np.float32))
    mean = squared.mean(dtype=np.float64)
    return (squared / mean).astype(np.float32) if mean > 0 else np.ones_like(squared)
