"""Agents: what acts and learns from minibatches. Here soft actor-critic [Haarnoja et al. 2018].

An agent is a part: pure functions closed over their hyper-parameters. Actions live in [-1, 1].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from pdml.config import AgentConfig
from pdml.descent import descend
from pdml.nets import Mlp, gaussian, init_xavier, mlp, squash
from pdml.transition import Layout, Transition
from pdml.tree import copy, pytree

Metrics = dict[str, Float[Array, ""]]


class Agent(NamedTuple):
    """The seam every agent fills; `state` is its record of all that changes while it learns."""

    init: Callable[[PRNGKeyArray], Any]
    sample: Callable[[Mlp, Float[Array, "b obs"], PRNGKeyArray], Float[Array, "b action"]]
    mode: Callable[[Mlp, Float[Array, "b obs"]], Float[Array, "b action"]]
    improve: Callable[[Any, Float[Array, "updates b width"], PRNGKeyArray], tuple[Any, Metrics]]


@pytree
class SACState:
    """All that soft actor-critic changes while it learns."""

    actor: Mlp
    critics: tuple[Mlp, ...]
    target_critics: tuple[Mlp, ...]
    log_alpha: Float[Array, ""]
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState


def critic_values(
    critics: tuple[Mlp, ...], obs: Float[Array, "b obs"], action: Float[Array, "b action"]
) -> Float[Array, "critics b"]:
    """Return every critic's value of each state and action."""
    x = jnp.concatenate([obs, action], axis=-1)
    return jnp.stack([mlp(critic, x)[:, 0] for critic in critics])


def soft_target(
    state: SACState, batch: Transition, noise: Float[Array, "b action"], gamma: float
) -> Float[Array, " b"]:
    r"""$y = r + \gamma (1-d) [\min_j \bar Q_j(s', a') - \alpha \log \pi(a'|s')]$.

    Selected with `where`, so that a value that is not finite cannot reach a terminal row.
    """
    action, log_prob = squash(*gaussian(state.actor, batch.next_obs), noise)
    value = critic_values(state.target_critics, batch.next_obs, action).min(axis=0)
    value = value - jnp.exp(state.log_alpha) * log_prob
    return batch.reward + gamma * jnp.where(batch.terminated > 0.5, 0.0, value)


def sac(config: AgentConfig, layout: Layout) -> Agent:
    """Soft actor-critic with twin critics and a learned (or fixed) temperature."""
    actor_sizes = (layout.obs_size, *config.hidden_sizes, 2 * layout.action_size)
    critic_sizes = (layout.obs_size + layout.action_size, *config.hidden_sizes, 1)
    adam = optax.adam(config.learning_rate)
    learned = config.temperature is None

    def init(key: PRNGKeyArray) -> SACState:
        actor_key, *critic_keys = jax.random.split(key, 3)
        actor = init_xavier(actor_key, actor_sizes)
        critics = tuple(init_xavier(k, critic_sizes) for k in critic_keys)
        log_alpha = jnp.log(jnp.asarray(1.0 if config.temperature is None else config.temperature, jnp.float32))
        return SACState(
            actor=actor,
            critics=critics,
            target_critics=copy(critics),
            log_alpha=log_alpha,
            actor_opt=adam.init(actor),
            critic_opt=adam.init(critics),
            alpha_opt=adam.init(log_alpha),
        )

    def sample(actor: Mlp, obs: Float[Array, "b obs"], key: PRNGKeyArray) -> Float[Array, "b action"]:
        mean, log_std = gaussian(actor, obs)
        return squash(mean, log_std, jax.random.normal(key, mean.shape))[0]

    def mode(actor: Mlp, obs: Float[Array, "b obs"]) -> Float[Array, "b action"]:
        return jnp.tanh(gaussian(actor, obs)[0])

    def critic_loss(critics: tuple[Mlp, ...], batch: Transition, target: Array) -> tuple[Array, Array]:
        """Half the mean squared Bellman error, summed over critics."""
        values = critic_values(critics, batch.obs, batch.action)
        return 0.5 * jnp.square(values - target[None]).mean(axis=1).sum(), values.mean()

    def actor_loss(actor: Mlp, state: SACState, obs: Array, noise: Array) -> tuple[Array, Array]:
        r"""$\mathbb{E}[\alpha \log \pi(a|s) - \min_j Q_j(s, a)]$."""
        action, log_prob = squash(*gaussian(actor, obs), noise)
        value = critic_values(state.critics, obs, action).min(axis=0)
        return (jnp.exp(state.log_alpha) * log_prob - value).mean(), log_prob.mean()

    def update(state: SACState, rows: Float[Array, "b width"], noise: Float[Array, "2 b action"]):
        batch = layout.unpack(rows)
        target = soft_target(state, batch, noise[0], config.gamma)
        (critic_error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
        targets = jax.tree.map(lambda t, c: t + config.tau * (c - t), state.target_critics, critics)
        state = SACState(state.actor, critics, targets, state.log_alpha, state.actor_opt, critic_opt, state.alpha_opt)

        (actor_error, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, state, batch.obs, noise[1]
        )
        actor, actor_opt = descend(adam, grads, state.actor_opt, state.actor)
        log_alpha, alpha_opt = state.log_alpha, state.alpha_opt
        if learned:  # gradient of -log(alpha) (log pi + target entropy)
            log_alpha, alpha_opt = descend(adam, -(log_prob + config.target_entropy), alpha_opt, log_alpha)
        state = SACState(actor, critics, targets, log_alpha, actor_opt, critic_opt, alpha_opt)
        metrics = {
            "agent/critic_loss": critic_error,
            "agent/value": value,
            "agent/actor_loss": actor_error,
            "agent/entropy": -log_prob,
            "agent/temperature": jnp.exp(log_alpha),
        }
        return state, metrics

    def improve(
        state: SACState, batches: Float[Array, "updates b width"], key: PRNGKeyArray
    ) -> tuple[SACState, Metrics]:
        """Update once on each batch in turn; noise is drawn at once, outside the loop, which is faster."""
        updates, rows, _ = batches.shape
        noise = jax.random.normal(key, (updates, 2, rows, layout.action_size))
        state, metrics = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise))
        return state, {name: value.mean() for name, value in metrics.items()}

    return Agent(init, sample, mode, improve)
