"""What every agent is made of: the seam that an agent fills, the state of soft actor-critic, and its value functions.

An agent is a part: pure functions closed over their hyper-parameters. Actions lie in [-1, 1].
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from pdml.core.nets import Mlp, gaussian, mlp, mode_action, squash
from pdml.core.pytree import pytree
from pdml.core.transition import Transition
from pdml.core.types import PolicyHead, SampleAction

DeviceMetrics = dict[str, Float[Array, ""]]
"""Metrics of updates, still on the device."""

Critics = tuple[Mlp, ...]


@runtime_checkable
class InitAgent(Protocol):
    """Initialises an agent."""

    def __call__(self, key: PRNGKeyArray, /) -> Any:
        """Return the state before the first update."""
        ...


@runtime_checkable
class ModeAction(Protocol):
    """Chooses the deterministic actions of a policy, in [-1, 1]."""

    def __call__(self, actor: Any, obs: Float[Array, "b obs"], /) -> Float[Array, "b a"]:
        """Return an action for each observation."""
        ...


@runtime_checkable
class Improve(Protocol):
    """Updates an agent once per minibatch."""

    def __call__(
        self,
        state: Any,
        batches: Float[Array, "updates b width"],
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
        /,
    ) -> tuple[Any, DeviceMetrics, Float[Array, "updates b"] | None]:
        """Return the state after the updates, their mean metrics, and a priority per row (None: the agent has none).

        Args:
            batches: Packed transitions.
            importance: The weight of each row in the losses; None: all rows have the same.
        """
        ...


class AgentParts(NamedTuple):
    """The seam that every agent fills; its state is a record of all that changes while it learns."""

    init: InitAgent
    sample: SampleAction
    mode: ModeAction
    improve: Improve | None
    """None: the agent learns in update phases between blocks."""
    head: PolicyHead = gaussian
    """Mean and log standard deviation of the policy before the tanh."""


@pytree
class SACState:
    """All that soft actor-critic and its variants change while they learn."""

    actor: Mlp
    critics: Critics
    target_critics: Critics
    log_alpha: Float[Array, ""]
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState
    last_losses: Float[Array, "two terms"]
    """The critics' loss terms of the last two updates, where an agent balances them; else there are no terms."""


def critic_values(
    critics: Critics, obs: Float[Array, "b obs"], action: Float[Array, "b action"]
) -> Float[Array, "critics b"]:
    """Return every critic's value of each state and action: its first output."""
    x = jnp.concatenate([obs, action], axis=-1)
    return jnp.stack([mlp(critic, x)[:, 0] for critic in critics])


def soft_value(
    state: SACState, critics: Critics, obs: Float[Array, "b obs"], noise: Float[Array, "b action"], log_scale: float
) -> Float[Array, " b"]:
    r"""$\min_j Q_j(s, a) - \alpha \log \pi(a|s)$ with an action sampled from the policy."""
    action, log_prob = squash(*gaussian(state.actor, obs), noise)
    value = critic_values(critics, obs, action).min(axis=0)
    return value - jnp.exp(state.log_alpha) * (log_prob - log_scale)


def soft_target(
    state: SACState,
    critics: Critics,
    batch: Transition,
    noise: Float[Array, "b action"],
    gamma: float,
    log_scale: float = 0.0,
) -> Float[Array, " b"]:
    r"""$y = r + \gamma (1-d) [\min_j \bar Q_j(s', a') - \alpha \log \pi(a'|s')]$ over the given target critics.

    Selected with `where`, so that a value that is not finite cannot reach a terminal transition.
    """
    value = soft_value(state, critics, batch.next_obs, noise, log_scale)
    return batch.reward + gamma * jnp.where(batch.terminated > 0.5, 0.0, value)


def td_errors(
    state: SACState, batch: Transition, noise: Float[Array, "b action"], gamma: float, log_scale: float = 0.0
) -> Float[Array, " b"]:
    """Return the soft target of the first two target critics minus the mean value of the first two critics."""
    target = soft_target(state, state.target_critics[:2], batch, noise, gamma, log_scale)
    return target - critic_values(state.critics[:2], batch.obs, batch.action).mean(axis=0)


def value_gradients(state: SACState, obs: Float[Array, "b obs"]) -> Float[Array, "critics b obs"]:
    """Return the gradient, with respect to the state, of each critic's and target critic's value.

    The action is the policy's mode, held fixed.
    """
    action = mode_action(gaussian, state.actor, obs)

    def gradient(critic: Mlp) -> Float[Array, "b obs"]:
        def total(at: Float[Array, "b obs"]) -> Float[Array, ""]:
            return critic_values((critic,), at, action).sum()

        return jax.grad(total)(obs)

    return jnp.stack([gradient(critic) for critic in (*state.critics, *state.target_critics)])
