"""Agents: what acts and learns from minibatches. Soft actor-critic [Haarnoja et al. 2018] and REDQ [Chen et al. 2021].

An agent is a part: pure functions closed over their hyper-parameters. Actions live in [-1, 1].
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core.nets import Mlp, choose, gaussian, init_xavier, mlp, squash
from pdml.core.optim import descend
from pdml.core.pytree import copy, pytree
from pdml.core.transition import Layout, Transition

Metrics = dict[str, Float[Array, ""]]
Critics = tuple[Mlp, ...]


class Agent(NamedTuple):
    """The seam every agent fills; `state` is its record of all that changes while it learns."""

    init: Callable[[PRNGKeyArray], Any]
    sample: Callable[[Any, Float[Array, "b obs"], PRNGKeyArray], Float[Array, "b action"]]
    mode: Callable[[Any, Float[Array, "b obs"]], Float[Array, "b action"]]
    improve: Callable[..., tuple[Any, Metrics, Float[Array, "updates b"] | None]] | None
    """From the state, minibatches [updates, b, width], their importance [updates, b] (None: alike) and a key to the
    state after, metrics, and a priority for each row (None: the agent has none). None: it learns by a lesson."""
    head: Callable[[Any, Float[Array, "b obs"]], tuple[Float[Array, "b a"], Float[Array, "b a"]]] = gaussian
    """Mean and log standard deviation of the policy before the tanh."""


class Lesson(NamedTuple):
    """The seam of agents that learn once a block."""

    begin: Callable[[Any, Any], list[Any]]
    """From agent and model to the agent as it begins a lesson, and its optimisers."""
    teach: Callable[..., tuple[Any, Any, dict[str, float]]]
    """From agent, model, imagined states, how to draw real states of a shape with a generator, the step, and for how
    many steps updates are owed, to agent and imagined states after, and metrics."""
    jitted: dict[str, Callable[..., Any]]
    """The compiled functions inside `teach`, for measurements."""


@pytree
class SACState:
    """All that soft actor-critic and its relatives change while they learn."""

    actor: Mlp
    critics: Critics
    target_critics: Critics
    log_alpha: Float[Array, ""]
    actor_opt: optax.OptState
    critic_opt: optax.OptState
    alpha_opt: optax.OptState
    last_losses: Float[Array, "two terms"]
    """The critics' loss terms of the last two updates, where an agent balances by them; else no terms."""


def critic_values(
    critics: Critics, obs: Float[Array, "b obs"], action: Float[Array, "b action"]
) -> Float[Array, "critics b"]:
    """Return every critic's value of each state and action, its first output."""
    x = jnp.concatenate([obs, action], axis=-1)
    return jnp.stack([mlp(critic, x)[:, 0] for critic in critics])


def soft_value(
    state: SACState, critics: Critics, obs: Float[Array, "b obs"], noise: Float[Array, "b action"], log_scale: float
) -> Float[Array, " b"]:
    r"""$\min_j Q_j(s, a) - \alpha \log \pi(a|s)$ with an action of the policy."""
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

    Selected with `where`, so that a value that is not finite cannot reach a terminal row.
    """
    value = soft_value(state, critics, batch.next_obs, noise, log_scale)
    return batch.reward + gamma * jnp.where(batch.terminated > 0.5, 0.0, value)


def td_errors(
    state: SACState, batch: Transition, noise: Float[Array, "b action"], gamma: float, log_scale: float = 0.0
) -> Float[Array, " b"]:
    """Return the soft target by the first two target critics, minus the mean value of the first two critics."""
    target = soft_target(state, state.target_critics[:2], batch, noise, gamma, log_scale)
    return target - critic_values(state.critics[:2], batch.obs, batch.action).mean(axis=0)


def value_gradients(state: SACState, obs: Float[Array, "b obs"]) -> Float[Array, "critics b obs"]:
    """Return the gradient by the state of each critic's and target critic's value of the policy's mode, held fixed."""
    action = jnp.tanh(gaussian(state.actor, obs)[0])

    def gradient(critic: Mlp) -> Float[Array, "b obs"]:
        return jax.grad(lambda at: critic_values((critic,), at, action).sum())(obs)

    return jnp.stack([gradient(critic) for critic in (*state.critics, *state.target_critics)])


class Core(NamedTuple):
    """What soft actor-critic and its relatives share."""

    init: Callable[[PRNGKeyArray], SACState]
    sample: Callable[..., Array]
    mode: Callable[..., Array]
    move_critics: Callable[[SACState, Any], SACState]
    """Take one step of the critics along their gradient, and let the targets follow."""
    move_actor: Callable[..., tuple[SACState, Metrics]]
    """From the state, observations, noise, how critics combine, and importance: one step of actor and temperature."""
    soft_target: Callable[[SACState, Critics, Transition, Array], Float[Array, " b"]]


def least(values: Float[Array, "critics b"]) -> Float[Array, " b"]:
    """Combine critics by their minimum, as soft actor-critic."""
    return values.min(axis=0)


def mean(values: Float[Array, "critics b"]) -> Float[Array, " b"]:
    """Combine critics by their mean, as REDQ's actor."""
    return values.mean(axis=0)


def actor_critic(config: Config, layout: Layout, num_critics: int, critic_outputs: int = 1, terms: int = 0) -> Core:
    """Build what agents with a squashed Gaussian actor, critics and a temperature have in common.

    Args:
        critic_outputs: Outputs of a critic, the first being its value.
        terms: Terms of the critics' loss that are remembered.
    """
    options = config.agent
    actor_sizes = (layout.obs_size, *options.hidden_sizes, 2 * layout.action_size)
    critic_sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, critic_outputs)
    adam = optax.adam(options.learning_rate)
    log_scale = config.log_action_scale

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

    def sample(actor: Mlp, obs: Float[Array, "b obs"], key: PRNGKeyArray) -> Float[Array, "b action"]:
        mean, log_std = gaussian(actor, obs)
        return squash(mean, log_std, jax.random.normal(key, mean.shape))[0]

    def mode(actor: Mlp, obs: Float[Array, "b obs"]) -> Float[Array, "b action"]:
        return jnp.tanh(gaussian(actor, obs)[0])

    def move_critics(state: SACState, grads: Any) -> SACState:
        critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
        targets = jax.tree.map(lambda t, c: t + options.tau * (c - t), state.target_critics, critics)
        return replace(state, critics=critics, target_critics=targets, critic_opt=critic_opt)

    def actor_loss(
        actor: Mlp, state: SACState, obs: Array, noise: Array, combine: Callable, importance: Array | None
    ) -> tuple[Array, Array]:
        r"""$\mathbb{E}[\alpha \log \pi(a|s) - Q(s, a)]$, Q being the critics' minimum or mean."""
        action, log_prob = squash(*gaussian(actor, obs), noise)
        log_prob = log_prob - log_scale
        value = combine(critic_values(state.critics, obs, action))
        return average(jnp.exp(state.log_alpha) * log_prob - value, importance), log_prob

    def move_actor(
        state: SACState, obs: Array, noise: Array, combine: Callable, importance: Array | None = None
    ) -> tuple[SACState, Metrics]:
        (loss, log_prob), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, state, obs, noise, combine, importance
        )
        actor, actor_opt = descend(adam, grads, state.actor_opt, state.actor)
        log_alpha, alpha_opt = state.log_alpha, state.alpha_opt
        if options.temperature is None:  # gradient of -log(alpha) (log pi + target entropy)
            counted = 1.0 if importance is None else importance.mean()
            gap = average(log_prob, importance) + options.target_entropy * counted
            log_alpha, alpha_opt = descend(adam, -gap, alpha_opt, log_alpha)
        state = replace(state, actor=actor, actor_opt=actor_opt, log_alpha=log_alpha, alpha_opt=alpha_opt)
        metrics = {
            "agent/actor_loss": loss,
            "agent/entropy": -log_prob.mean(),
            "agent/temperature": jnp.exp(log_alpha),
        }
        return state, metrics

    def target(state: SACState, critics: Critics, batch: Transition, noise: Array) -> Float[Array, " b"]:
        return soft_target(state, critics, batch, noise, options.gamma, log_scale)

    return Core(init, sample, mode, move_critics, move_actor, target)


def average(values: Float[Array, " b"], importance: Float[Array, " b"] | None) -> Float[Array, ""]:
    """Return the mean, of rows that count alike or by their importance."""
    return values.mean() if importance is None else (importance * values).mean()


def critic_loss(critics: Critics, batch: Transition, target: Float[Array, " b"]) -> tuple[Array, Array]:
    """Return half the mean squared Bellman error, summed over critics, and the mean value."""
    values = critic_values(critics, batch.obs, batch.action)
    return 0.5 * jnp.square(values - target[None]).mean(axis=1).sum(), values.mean()


def sac(config: Config, layout: Layout) -> Agent:
    """Soft actor-critic with twin critics and a learned (or fixed) temperature."""
    core = actor_critic(config, layout, num_critics=2)

    def update(state: SACState, rows: Float[Array, "b width"], noise: Float[Array, "2 b action"]):
        batch = layout.unpack(rows)
        target = core.soft_target(state, state.target_critics, batch, noise[0])
        (error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        state = core.move_critics(state, grads)
        state, metrics = core.move_actor(state, batch.obs, noise[1], least)
        return state, {"agent/critic_loss": error, "agent/value": value, **metrics}

    def improve(
        state: SACState, batches: Float[Array, "updates b width"], importance: None, key: PRNGKeyArray
    ) -> tuple[SACState, Metrics, None]:
        """Update once on each batch in turn; noise is drawn at once, outside the loop, which is faster."""
        updates, rows, _ = batches.shape
        noise = jax.random.normal(key, (updates, 2, rows, layout.action_size))
        state, metrics = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise))
        return state, {name: value.mean() for name, value in metrics.items()}, None

    return Agent(core.init, core.sample, core.mode, improve)


def redq(config: Config, layout: Layout) -> Agent:
    """Randomised ensembled double Q-learning.

    Each update moves all critics towards the target of a random few of the target critics; the actor and the
    temperature move once after the last update, on the mean of all critics.
    """
    core = actor_critic(config, layout, config.agent.num_critics)

    def update(
        state: SACState, rows: Float[Array, "b width"], noise: Float[Array, "b action"], chosen: Int[Array, " subset"]
    ):
        batch = layout.unpack(rows)
        target = core.soft_target(state, choose(state.target_critics, chosen), batch, noise)
        (error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        return core.move_critics(state, grads), {"agent/critic_loss": error, "agent/value": value}

    def improve(
        state: SACState, batches: Float[Array, "updates b width"], importance: None, key: PRNGKeyArray
    ) -> tuple[SACState, Metrics, None]:
        """Update the critics once on each batch in turn, then the actor once on the last."""
        updates, rows, _ = batches.shape
        subset_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (updates + 1, rows, layout.action_size))
        order = jax.vmap(lambda k: jax.random.permutation(k, config.agent.num_critics))
        chosen = order(jax.random.split(subset_key, updates))[:, : config.agent.subset]
        state, metrics = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise[:-1], chosen))
        state, moved = core.move_actor(state, layout.unpack(batches[-1]).obs, noise[-1], mean)
        return state, {name: value.mean() for name, value in metrics.items()} | moved, None

    return Agent(core.init, core.sample, core.mode, improve)
