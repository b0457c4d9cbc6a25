"""What soft actor-critic and its variants share: a squashed Gaussian actor, critics with targets, a temperature."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from pdml.agents.base import Critics, DeviceMetrics, ModeAction, SACState, critic_values, soft_target
from pdml.config.schema import Config
from pdml.core.nets import Mlp, gaussian, init_xavier, mode_action, sample_action, squash
from pdml.core.optim import descend, polyak
from pdml.core.pytree import copy
from pdml.core.transition import Layout, Transition
from pdml.core.types import SampleAction

Combine = Callable[[Float[Array, "critics b"]], Float[Array, " b"]]
"""How the actor combines the values of the critics."""


def least(values: Float[Array, "critics b"]) -> Float[Array, " b"]:
    """Combine critics by their minimum, as soft actor-critic."""
    return values.min(axis=0)


def mean(values: Float[Array, "critics b"]) -> Float[Array, " b"]:
    """Combine critics by their mean, as REDQ's actor."""
    return values.mean(axis=0)


def average(values: Float[Array, " b"], importance: Float[Array, " b"] | None) -> Float[Array, ""]:
    """Return the mean over rows, each multiplied by its importance if there is any."""
    return values.mean() if importance is None else (importance * values).mean()


def critic_loss(
    critics: Critics, batch: Transition, target: Float[Array, " b"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return half the mean squared Bellman error, summed over critics, and the mean value."""
    values = critic_values(critics, batch.obs, batch.action)
    return 0.5 * jnp.square(values - target[None]).mean(axis=1).sum(), values.mean()


@runtime_checkable
class MoveActor(Protocol):
    """Takes one gradient step of actor and temperature."""

    def __call__(
        self,
        state: SACState,
        obs: Float[Array, "b obs"],
        noise: Float[Array, "b action"],
        combine: Combine,
        importance: Float[Array, " b"] | None = None,
        /,
    ) -> tuple[SACState, DeviceMetrics]:
        """Return the state after the step, and metrics."""
        ...


class Core(NamedTuple):
    """The parts that soft actor-critic and its variants are built from."""

    init: Callable[[PRNGKeyArray], SACState]
    sample: SampleAction
    mode: ModeAction
    soft_target: Callable[[SACState, Critics, Transition, Float[Array, "b action"]], Float[Array, " b"]]
    move_critics: Callable[[SACState, Critics], SACState]
    """Take one step of the critics along their gradient, then move the target critics towards them."""
    move_actor: MoveActor


def actor_critic(config: Config, layout: Layout, num_critics: int, critic_outputs: int = 1, terms: int = 0) -> Core:
    """Build what agents with a squashed Gaussian actor, critics and a temperature have in common.

    Args:
        critic_outputs: Outputs per critic; the first is its value.
        terms: Terms of the critics' loss that the state remembers.
    """
    options = config.agent
    actor_sizes = (layout.obs_size, *options.hidden_sizes, 2 * layout.action_size)
    critic_sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, critic_outputs)
    adam = optax.adam(options.learning_rate)

    def init(key: PRNGKeyArray) -> SACState:
        actor_key, *critic_keys = jax.random.split(key, num_critics + 1)
        actor = init_xavier(actor_key, actor_sizes)
        critics = tuple(init_xavier(k, critic_sizes) for k in critic_keys)
        temperature = options.first_temperature if options.temperature is None else options.temperature
        log_alpha = jnp.log(jnp.asarray(temperature, jnp.float32))
        return SACState(
            actor=actor,
            critics=critics,
            target_critics=copy(critics),
            log_alpha=log_alpha,
            actor_opt=adam.init(actor),
            critic_opt=adam.init(critics),
            alpha_opt=adam.init(log_alpha),
            last_losses=jnp.ones((2, terms)),
        )

    def target(
        state: SACState, critics: Critics, batch: Transition, noise: Float[Array, "b action"]
    ) -> Float[Array, " b"]:
        return soft_target(state, critics, batch, noise, options.gamma, config.log_action_scale)

    def move_critics(state: SACState, grads: Critics) -> SACState:
        critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
        target_critics = polyak(state.target_critics, critics, options.tau)
        return replace(state, critics=critics, target_critics=target_critics, critic_opt=critic_opt)

    sample, mode = partial(sample_action, gaussian), partial(mode_action, gaussian)
    return Core(init, sample, mode, target, move_critics, make_actor_step(config, adam))


def make_actor_step(config: Config, adam: optax.GradientTransformation) -> MoveActor:
    """Build the gradient step of actor and temperature."""
    options, log_scale = config.agent, config.log_action_scale

    def loss(
        actor: Mlp,
        state: SACState,
        obs: Float[Array, "b obs"],
        noise: Float[Array, "b action"],
        combine: Combine,
        importance: Float[Array, " b"] | None,
    ) -> tuple[Float[Array, ""], Float[Array, " b"]]:
        r"""$\mathbb{E}[\alpha \log \pi(a|s) - Q(s, a)]$, where Q is the critics' minimum or mean; and $\log \pi$."""
        action, log_prob = squash(*gaussian(actor, obs), noise)
        log_prob = log_prob - log_scale
        value = combine(critic_values(state.critics, obs, action))
        return average(jnp.exp(state.log_alpha) * log_prob - value, importance), log_prob

    def move_actor(
        state: SACState,
        obs: Float[Array, "b obs"],
        noise: Float[Array, "b action"],
        combine: Combine,
        importance: Float[Array, " b"] | None = None,
        /,
    ) -> tuple[SACState, DeviceMetrics]:
        # actor
        (error, log_prob), grads = jax.value_and_grad(loss, has_aux=True)(
            state.actor, state, obs, noise, combine, importance
        )
        actor, actor_opt = descend(adam, grads, state.actor_opt, state.actor)

        # temperature
        log_alpha, alpha_opt = state.log_alpha, state.alpha_opt
        if options.temperature is None:  # gradient of -log(alpha) (log pi + target entropy)
            counted = 1.0 if importance is None else importance.mean()
            gap = average(log_prob, importance) + options.target_entropy * counted
            log_alpha, alpha_opt = descend(adam, -gap, alpha_opt, log_alpha)

        state = replace(state, actor=actor, actor_opt=actor_opt, log_alpha=log_alpha, alpha_opt=alpha_opt)
        metrics = {
            "agent/actor_loss": error,
            "agent/entropy": -log_prob.mean(),
            "agent/temperature": jnp.exp(log_alpha),
        }
        return state, metrics

    return move_actor
