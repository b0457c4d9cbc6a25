"""The updates of DHMBPO: critics, actor and temperature learn from training rollouts.

[Kubo et al. 2025]. An update moves the critics towards the soft return of the rollouts, and the actor along the
gradient of that return through model and reward.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pdml.agents.base import DeviceMetrics
from pdml.config.schema import Config
from pdml.core.nets import Mlp
from pdml.core.optim import descend, polyak
from pdml.core.pytree import pytree
from pdml.core.transition import Layout
from pdml.dhmbpo.model import StandardisedModel
from pdml.dhmbpo.networks import Dropout, norm_mlp
from pdml.dhmbpo.rollouts import (
    NormalisedActor,
    StepRules,
    TrainingRollout,
    actor_head,
    sample_noise,
    soft_return,
    training_rollout,
)
from pdml.models.ensemble import normalise
from pdml.weighting.policy_distance import double_kl

CRITIC_NORM_EPS = 1e-5
"""The eps of the critics' layer norms."""

LEAST_NORM = 1e-12
"""Below this, a gradient is taken for zero."""

CRITIC_METRICS = ("agent/critic_loss", "agent/value")
ALL_METRICS = (*CRITIC_METRICS, "agent/actor_loss", "agent/actor_gradient", "agent/entropy", "agent/temperature")
HELD_BACK = "agent/held_back"
"""The metric that `double.kl_bound` adds."""

StackedCritics = Mlp
"""All critics in one `Mlp`, with a leading axis for them."""


@pytree
class DoubleState:
    """All of the agent that changes while it learns; each update phase starts new optimisers, unless they are kept."""

    actor: NormalisedActor
    """The policy that acts."""
    critics: StackedCritics
    target_critics: StackedCritics
    log_alpha: Float[Array, ""]
    bounds: Float[Array, "2"]
    """Least and largest value, estimated from rewards."""
    bounded: Float[Array, ""]
    """1 once the bounds have been estimated."""
    trained: Any = ()
    """The actor's layers that updates move, where the acting ones are their average; else empty."""
    collecting: Any = ()
    """In an update phase that bounds the divergence from the policy that collected the last block: that policy."""
    moments: Any = ()
    """The optimisers, where they are kept from one update phase to the next; else empty."""

    @property
    def trained_actor(self) -> NormalisedActor:
        """The actor that updates move."""
        return replace(self.actor, layers=self.trained) if self.trained else self.actor


class Optimisers(NamedTuple):
    """The optimisers of an update phase."""

    actor: optax.OptState
    critics: optax.OptState
    alpha: optax.OptState


def scaled_values(
    critics: StackedCritics,
    state: DoubleState,
    obs: Float[Array, "b obs"],
    action: Float[Array, "b a"],
    dropout: Dropout | None = None,
) -> Float[Array, "critics b"]:
    """Return every critic's value: outputs of -1 and 1 are scaled to the value bounds."""
    x = jnp.concatenate([normalise(state.actor.normaliser, obs), action], axis=-1)
    shared = jnp.broadcast_to(x[None], (len(critics[0].b), *x.shape))
    low, high = state.bounds
    outputs = norm_mlp(critics, shared, (CRITIC_NORM_EPS,) * (len(critics) - 1), dropout)[:, :, 0]
    return outputs * (0.5 * (high - low)) + 0.5 * (high + low)


def choose_critics(critics: StackedCritics, chosen: Int[Array, " few"]) -> StackedCritics:
    """Take a few of the critics, by numbers that may be traced."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf[number] for number in chosen]), critics)


def update_bounds(state: DoubleState, rollout: TrainingRollout, config: Config) -> DoubleState:
    """Move the value bounds towards quantiles of soft rewards, each taken as if it were received forever.

    Of longer rollouts the first `near` steps count: later ones lie more often beyond the end of an episode.
    """
    options = config.double
    soft_reward = rollout.reward[: options.near] - jnp.exp(state.log_alpha) * rollout.log_prob[:-1][: options.near]
    quantiles = jnp.asarray([options.bound_quantile, 1.0 - options.bound_quantile], jnp.float32)
    seen = jnp.quantile(soft_reward, quantiles) / (1.0 - config.agent.gamma)
    if options.zero_bounds:
        seen = jnp.stack([jnp.minimum(seen[0], 0.0), jnp.maximum(seen[1], 0.0)])
    rate = jnp.where(state.bounded > 0.5, options.bound_rate, 1.0)
    return replace(state, bounds=state.bounds + rate * (seen - state.bounds), bounded=jnp.ones(()))


def critic_target(
    state: DoubleState, critics: StackedCritics, rollout: TrainingRollout, gamma: float
) -> Float[Array, " b"]:
    """Return the soft return, bootstrapped with the minimum of the given critics, clipped to the value bounds."""
    last = scaled_values(critics, state, rollout.last_obs, rollout.last_action).min(axis=0)
    clipped = jnp.clip(last, state.bounds[0], state.bounds[1])
    return soft_return(rollout, clipped, jnp.exp(state.log_alpha), gamma, first_entropy=0.0)


def actor_loss(state: DoubleState, rollout: TrainingRollout, gamma: float) -> Float[Array, ""]:
    """Return minus the mean soft return, bootstrapped with the mean of all critics."""
    last = scaled_values(state.critics, state, rollout.last_obs, rollout.last_action).mean(axis=0)
    return -soft_return(rollout, last, jnp.exp(state.log_alpha), gamma, first_entropy=1.0).mean()


@runtime_checkable
class Update(Protocol):
    """Makes one update from training rollouts that start in the given states."""

    def __call__(
        self,
        state: DoubleState,
        opts: Optimisers,
        model: StandardisedModel,
        obs: Float[Array, "b obs"],
        key: PRNGKeyArray,
        /,
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        """Return the agent and its optimisers after the update, and metrics."""
        ...


class Updates(NamedTuple):
    """The two kinds of updates."""

    all_networks: Update
    """Critics, actor and temperature."""
    critics_only: Update


@runtime_checkable
class CriticStep(Protocol):
    """Moves the critics by one gradient step, and their targets after them."""

    def __call__(
        self,
        state: DoubleState,
        opts: Optimisers,
        rollout: TrainingRollout,
        obs: Float[Array, "b obs"],
        key: PRNGKeyArray,
        /,
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        """Return the agent and its optimisers after the step, and metrics."""
        ...


def optimiser(config: Config) -> optax.GradientTransformation:
    """Build the optimiser of critics and temperature, and of an actor without a limit."""
    return optax.adam(config.agent.learning_rate)


def actor_optimiser(config: Config) -> optax.GradientTransformation:
    """Build the optimiser of the actor."""
    limit = config.double.actor_clip
    return optax.chain(optax.clip_by_global_norm(limit), optimiser(config)) if limit else optimiser(config)


def new_optimisers(config: Config, state: DoubleState) -> Optimisers:
    """Return optimisers that have not seen a gradient."""
    adam = optimiser(config)
    actor = actor_optimiser(config).init(cast(Any, state.trained_actor.layers))
    return Optimisers(actor, adam.init(cast(Any, state.critics)), adam.init(state.log_alpha))


@runtime_checkable
class ActorStep(Protocol):
    """Moves the trained actor by one gradient step, and the acting one after it."""

    def __call__(
        self, state: DoubleState, opts: Optimisers, grads: Mlp, obs: Float[Array, "b obs"], /
    ) -> tuple[DoubleState, Optimisers, Bool[Array, ""]]:
        """Return the agent and its optimisers after the step, and whether it reduced the divergence.

        Args:
            grads: Of the actor's loss.
            obs: The states that training rollouts started from.
        """
        ...


def guarded_actor_step(config: Config) -> ActorStep:
    """Build the step of the actor.

    Where the divergence from the collecting policy is bounded and beyond its bound, the step reduces the divergence
    instead of the loss. Its gradient is brought to the length of the loss's, since both share Adam's moments.
    """
    chain, double = actor_optimiser(config), config.double

    def move_actor(
        state: DoubleState, opts: Optimisers, grads: Mlp, obs: Float[Array, "b obs"], /
    ) -> tuple[DoubleState, Optimisers, Bool[Array, ""]]:
        actor, is_beyond = state.trained_actor, jnp.zeros((), bool)
        if state.collecting:

            def divergence(layers: Mlp) -> Float[Array, ""]:
                return policy_divergence(state.collecting, replace(actor, layers=layers), obs)

            found, back = jax.value_and_grad(divergence)(actor.layers)
            is_beyond = found > double.kl_bound
            factor = optax.tree.norm(grads) / jnp.maximum(optax.tree.norm(back), LEAST_NORM)
            grads = jax.tree.map(lambda ahead, back: jnp.where(is_beyond, factor * back, ahead), grads, back)
        layers, opt = descend(chain, grads, opts.actor, actor.layers)
        acting = polyak(state.actor.layers, layers, double.actor_average) if state.trained else layers
        trained = layers if state.trained else ()
        state = replace(state, actor=replace(state.actor, layers=acting), trained=trained)
        return state, opts._replace(actor=opt), is_beyond

    return move_actor


def policy_divergence(before: NormalisedActor, after: NormalisedActor, obs: Float[Array, "b obs"]) -> Float[Array, ""]:
    r"""Return the mean $D_\mathrm{KL}(\pi_\mathrm{before} \| \pi_\mathrm{after})$; the tanh does not change it."""
    return 0.5 * double_kl(*actor_head(before, obs), *actor_head(after, obs)).mean()


def make_critic_step(config: Config, adam: optax.GradientTransformation) -> CriticStep:
    """Build the step of all critics towards the target of a random few of the target critics."""
    options = config.agent

    def move_critics(
        state: DoubleState,
        opts: Optimisers,
        rollout: TrainingRollout,
        obs: Float[Array, "b obs"],
        key: PRNGKeyArray,
        /,
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        subset_key, dropout_key = jax.random.split(key)
        chosen = jax.random.permutation(subset_key, options.num_critics)[: options.subset]
        target = critic_target(state, choose_critics(state.target_critics, chosen), rollout, options.gamma)
        rates = (config.double.critic_dropout,) * len(options.hidden_sizes)
        dropout = Dropout(rates, jax.random.bits(dropout_key, (), jnp.uint32))

        def loss(critics: StackedCritics) -> tuple[Array, Array]:
            found = scaled_values(critics, state, obs, rollout.action, dropout)
            return jnp.square(found - target[None]).mean(axis=1).sum(), found.mean()

        (error, value), grads = jax.value_and_grad(loss, has_aux=True)(state.critics)
        critics, opt = descend(adam, grads, opts.critics, state.critics)
        targets = polyak(state.target_critics, critics, options.tau)
        state = replace(state, critics=critics, target_critics=targets)
        return state, opts._replace(critics=opt), {"agent/critic_loss": error, "agent/value": value}

    return move_critics


def updates(config: Config, layout: Layout, rules: StepRules) -> Updates:
    """Build the updates."""
    options, double = config.agent, config.double
    move_critics = make_critic_step(config, optimiser(config))
    move_actor = guarded_actor_step(config)

    def all_networks(
        state: DoubleState, opts: Optimisers, model: StandardisedModel, obs: Float[Array, "b obs"], key: PRNGKeyArray, /
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        # rollout
        noise_key, critic_key = jax.random.split(key)
        actor, noise = state.trained_actor, sample_noise(config, layout, double.near + 1, noise_key)

        def roll_out(layers: Mlp) -> TrainingRollout:  # the rest is frozen: no work goes into its gradients
            return training_rollout(replace(actor, layers=layers), model, rules, obs, noise)

        rollout, pull_back = jax.vjp(roll_out, actor.layers)

        # value bounds
        state = update_bounds(state, rollout, config)

        # critics
        state, opts, metrics = move_critics(state, opts, rollout, obs, critic_key)

        # actor
        loss, slopes = jax.value_and_grad(lambda rollout: actor_loss(state, rollout, options.gamma))(rollout)
        (grads,) = pull_back(slopes)
        state, opts, is_held_back = move_actor(state, opts, grads, obs)

        # temperature
        entropy, log_alpha, alpha_opt = -rollout.log_prob[0].mean(), state.log_alpha, opts.alpha
        if options.temperature is None:  # gradient of alpha (entropy - target entropy) by log(alpha)
            slope = jnp.exp(log_alpha) * (entropy - options.target_entropy)
            log_alpha, alpha_opt = descend(optimiser(config), slope, alpha_opt, log_alpha)

        metrics |= {"agent/actor_loss": loss, "agent/actor_gradient": optax.tree.norm(grads)}
        metrics |= {"agent/entropy": entropy, "agent/temperature": jnp.exp(log_alpha)}
        metrics |= {HELD_BACK: is_held_back.astype(jnp.float32)}
        return replace(state, log_alpha=log_alpha), opts._replace(alpha=alpha_opt), metrics

    def critics_only(
        state: DoubleState, opts: Optimisers, model: StandardisedModel, obs: Float[Array, "b obs"], key: PRNGKeyArray, /
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        noise_key, critic_key = jax.random.split(key)
        noise = sample_noise(config, layout, (double.critic_near or double.near) + 1, noise_key)
        rollout = training_rollout(state.trained_actor, model, rules, obs, noise)
        return move_critics(update_bounds(state, rollout, config), opts, rollout, obs, critic_key)

    return Updates(all_networks, critics_only)
