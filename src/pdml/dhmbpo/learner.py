r"""The agent of double-horizon learning, which learns once a block, through the model.

DHMBPO [Kubo et al. 2025]. All learning happens between blocks, so the policy of a block is one policy. Every
update begins near rollouts in states of far ones, moves the critics towards their return, and the actor along the
gradient of the return through model and reward.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.agents.sac import Agent, Lesson, Metrics
from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.nets import Mlp, squash
from pdml.core.optim import descend
from pdml.core.pytree import copy, pytree
from pdml.core.rng import Purpose, generator, key
from pdml.core.transition import Layout
from pdml.dhmbpo.model import SmoothModel
from pdml.dhmbpo.networks import Dropout, freeze, init_he, init_orthogonal, smooth_mlp
from pdml.dhmbpo.rollouts import (
    FarStats,
    Knowledge,
    Near,
    SmoothActor,
    draw,
    far_rollout,
    head,
    near_rollout,
    soft_return,
)
from pdml.models.ensemble import Normaliser, normalise
from pdml.models.rollouts import Imagined, blank_ring

NORM = 1e-5
"""The eps of the critics' layer norms."""

MOST_STARTS = 4
"""Batches of starts that a far rollout may use up to store as many states as without any end of an episode."""

Critics = Mlp
"""All critics, with an axis for them in front."""


@pytree
class DoubleState:
    """All of the agent that changes while it learns; optimisers are begun anew in every block."""

    actor: SmoothActor
    critics: Critics
    target_critics: Critics
    log_alpha: Float[Array, ""]
    bounds: Float[Array, "2"]
    """Least and largest value, as far as rewards tell."""
    bounded: Float[Array, ""]
    """1 once the bounds have been seen."""


class Opts(NamedTuple):
    """The optimisers of a block."""

    actor: Any
    critics: Any
    alpha: Any


def double_agent(config: Config, layout: Layout) -> Agent:
    """Build the agent; `lesson` is how it learns."""
    options = config.agent
    actor_sizes = (layout.obs_size, *options.hidden_sizes, 2 * layout.action_size)
    critic_sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, 1)

    def init(key: PRNGKeyArray) -> DoubleState:
        actor_key, critic_key = jax.random.split(key)
        blank = Normaliser(jnp.zeros((layout.obs_size,)), jnp.ones((layout.obs_size,)))
        critic_keys = jax.random.split(critic_key, options.num_critics)
        critics = jax.vmap(lambda key: init_he(key, critic_sizes, last=0.0))(critic_keys)
        temperature = options.first_temperature if options.temperature is None else options.temperature
        return DoubleState(
            actor=SmoothActor(init_orthogonal(actor_key, actor_sizes), blank),
            critics=critics,
            target_critics=copy(critics),
            log_alpha=jnp.log(jnp.asarray(temperature, jnp.float32)),
            bounds=jnp.zeros((2,)),
            bounded=jnp.zeros(()),
        )

    def sample(actor: SmoothActor, obs: Float[Array, "b obs"], key: PRNGKeyArray) -> Float[Array, "b a"]:
        mean, log_std = head(actor, obs)
        return squash(mean, log_std, jax.random.normal(key, mean.shape))[0]

    def mode(actor: SmoothActor, obs: Float[Array, "b obs"]) -> Float[Array, "b a"]:
        return jnp.tanh(head(actor, obs)[0])

    return Agent(init, sample, mode, None, head)


def values(
    critics: Critics,
    state: DoubleState,
    obs: Float[Array, "b obs"],
    action: Float[Array, "b a"],
    dropout: Dropout | None = None,
) -> Float[Array, "critics b"]:
    """Return each critic's value, scaled so that outputs from -1 to 1 reach from bound to bound."""
    x = jnp.concatenate([normalise(state.actor.normaliser, obs), action], axis=-1)
    each = jnp.broadcast_to(x[None], (len(critics[0].b), *x.shape))
    low, high = state.bounds
    outputs = smooth_mlp(critics, each, (NORM,) * (len(critics) - 1), dropout)[:, :, 0]
    return outputs * (0.5 * (high - low)) + 0.5 * (high + low)


def some(critics: Critics, chosen: Int[Array, " few"]) -> Critics:
    """Take a few critics out of all, by numbers that may be traced."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf[number] for number in chosen]), critics)


def follow_bounds(state: DoubleState, near: Near, config: Config) -> DoubleState:
    """Let the bounds of values follow the quantiles of soft rewards, as if each were paid for ever."""
    options = config.double
    soft = near.reward - jnp.exp(state.log_alpha) * near.log_prob[:-1]
    quantiles = jnp.asarray([options.bound_quantile, 1.0 - options.bound_quantile], jnp.float32)
    seen = jnp.quantile(soft, quantiles) / (1.0 - config.agent.gamma)
    rate = jnp.where(state.bounded > 0.5, options.bound_rate, 1.0)
    return replace(state, bounds=state.bounds + rate * (seen - state.bounds), bounded=jnp.ones(()))


def critic_target(state: DoubleState, critics: Critics, near: Near, gamma: float) -> Float[Array, " b"]:
    """Return the soft return of near rollouts, whose end the least of some critics values, within the bounds."""
    last = values(critics, state, near.last_obs, near.last_action).min(axis=0)
    bounded = jnp.clip(last, state.bounds[0], state.bounds[1])
    return soft_return(near, bounded, jnp.exp(state.log_alpha), gamma, first=0.0)


def actor_loss(state: DoubleState, near: Near, gamma: float) -> Float[Array, ""]:
    """Return minus the mean soft return of near rollouts, whose end the mean of all critics values."""
    last = values(state.critics, state, near.last_obs, near.last_action).mean(axis=0)
    return -soft_return(near, last, jnp.exp(state.log_alpha), gamma, first=1.0).mean()


class Updates(NamedTuple):
    """One update of all, or of the critics alone.

    Functions (state, optimisers, model, observations, key) -> (state, optimisers, metrics).
    """

    everything: Callable[..., tuple[DoubleState, Opts, Metrics]]
    critics: Callable[..., tuple[DoubleState, Opts, Metrics]]


def updates(config: Config, layout: Layout, known: Knowledge) -> Updates:
    """Build the updates."""
    options, steps = config.agent, config.double.near
    adam = optax.adam(options.learning_rate)

    def move_critics(state: DoubleState, opts: Opts, near: Near, obs: Array, key: PRNGKeyArray):
        """Move all critics towards the target of a random few of the target critics."""
        pair_key, drop_key = jax.random.split(key)
        chosen = jax.random.permutation(pair_key, options.num_critics)[: options.subset]
        target = critic_target(state, some(state.target_critics, chosen), near, options.gamma)
        rates = (config.double.critic_dropout,) * len(options.hidden_sizes)
        dropout = Dropout(rates, jax.random.bits(drop_key, (), jnp.uint32))

        def loss(critics: Critics) -> tuple[Array, Array]:
            found = values(critics, state, obs, near.action, dropout)
            return jnp.square(found - target[None]).mean(axis=1).sum(), found.mean()

        (error, value), grads = jax.value_and_grad(loss, has_aux=True)(state.critics)
        critics, opt = descend(adam, grads, opts.critics, state.critics)
        targets = jax.tree.map(lambda t, c: t + options.tau * (c - t), state.target_critics, critics)
        state = replace(state, critics=critics, target_critics=targets)
        return state, opts._replace(critics=opt), {"agent/critic_loss": error, "agent/value": value}

    def everything(state: DoubleState, opts: Opts, model: SmoothModel, obs: Array, key: PRNGKeyArray):
        """Roll out once, with its gradient; the critics move first, then actor and temperature."""
        step_key, critic_key = jax.random.split(key)
        actor, drawn = state.actor, draw(config, layout, steps + 1, step_key)

        def roll(layers: Mlp) -> Near:  # model, critics and normaliser are frozen: no work goes into their gradients
            return near_rollout(replace(actor, layers=layers), model, known, obs, drawn)

        near, pull = jax.vjp(roll, actor.layers)
        state = follow_bounds(state, near, config)
        state, opts, metrics = move_critics(state, opts, near, obs, critic_key)
        loss, slopes = jax.value_and_grad(lambda near: actor_loss(state, near, options.gamma))(near)
        (grads,) = pull(slopes)
        layers, actor_opt = descend(adam, grads, opts.actor, actor.layers)
        entropy, log_alpha, alpha_opt = -near.log_prob[0].mean(), state.log_alpha, opts.alpha
        if options.temperature is None:  # gradient of alpha (entropy - target entropy) by log(alpha)
            slope = jnp.exp(log_alpha) * (entropy - options.target_entropy)
            log_alpha, alpha_opt = descend(adam, slope, alpha_opt, log_alpha)
        state = replace(state, actor=replace(actor, layers=layers), log_alpha=log_alpha)
        metrics |= {"agent/actor_loss": loss, "agent/entropy": entropy, "agent/temperature": jnp.exp(log_alpha)}
        return state, Opts(actor_opt, opts.critics, alpha_opt), metrics

    def critics_alone(state: DoubleState, opts: Opts, model: SmoothModel, obs: Array, key: PRNGKeyArray):
        """Roll out without a gradient, for the critics."""
        step_key, critic_key = jax.random.split(key)
        near = near_rollout(state.actor, model, known, obs, draw(config, layout, steps + 1, step_key))
        return move_critics(follow_bounds(state, near, config), opts, near, obs, critic_key)

    return Updates(everything, critics_alone)


def several(config: Config, once: Callable[..., tuple], names: tuple[str, ...]) -> Callable[..., tuple]:
    """Build a number of updates from states of the ring, with the sums of their metrics."""

    def go(
        state: DoubleState, opts: Opts, model: SmoothModel, ring: Imagined, count: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[DoubleState, Opts, Metrics]:
        network = replace(model.network, members=freeze(model.network.members))
        frozen = replace(model, network=network)  # once for all updates

        def step(i: Array, carry: tuple[DoubleState, Opts, Metrics]) -> tuple[DoubleState, Opts, Metrics]:
            state, opts, sums = carry
            row_key, update_key = jax.random.split(jax.random.fold_in(key, i))
            obs = ring.rows[jax.random.randint(row_key, (config.batch_size,), 0, ring.size)]
            state, opts, metrics = once(state, opts, frozen, obs, update_key)
            return state, opts, {name: sums[name] + metrics[name] for name in names}

        return jax.lax.fori_loop(0, count, step, (state, opts, {name: jnp.zeros(()) for name in names}))

    return go


def ring_rows(config: Config) -> int:
    """Return how many states of far rollouts are kept."""
    return config.batch_size * max(config.double.far * config.double.retain, config.double.far + 1)


def empty(config: Config, layout: Layout) -> Imagined:
    """Return the ring of states without any."""
    return blank_ring(ring_rows(config), layout.obs_size, capacity=ring_rows(config))


CRITIC_METRICS = ("agent/critic_loss", "agent/value")
METRICS = (*CRITIC_METRICS, "agent/actor_loss", "agent/entropy", "agent/temperature")


def lesson(config: Config, layout: Layout, known: Knowledge) -> Lesson:
    """Build the learning of a block: critics alone first, which the new model has left behind, then everything."""
    options, batch = config.double, config.batch_size
    adam = optax.adam(config.agent.learning_rate)
    update = updates(config, layout, known)
    far = jax.jit(far_rollout(config, layout, known), donate_argnums=2)
    everything = jax.jit(several(config, update.everything, METRICS), donate_argnums=(0, 1))
    critics_alone = jax.jit(several(config, update.critics, CRITIC_METRICS), donate_argnums=(0, 1))

    def begin(state: DoubleState, model: SmoothModel) -> list[Any]:
        """Let the actor see states through the newest normaliser from now on, and forget all momentum."""
        state = replace(state, actor=replace(state.actor, normaliser=copy(model.normaliser)))
        return [state, Opts(*(adam.init(part) for part in (state.actor.layers, state.critics, state.log_alpha)))]

    def teach(
        state: DoubleState,
        model: SmoothModel,
        ring: Imagined,
        real_states: Callable[..., np.ndarray],
        step: int,
        owed: int,
    ) -> tuple[DoubleState, Imagined, dict[str, float]]:
        """Refresh the ring and update, turns about."""
        state, opts = begin(state, model)
        if options.clear:
            ring = replace(ring, position=jnp.zeros((), jnp.int32), size=jnp.zeros((), jnp.int32))
        drawn, root = generator(config.seed, Purpose.STARTS, step), key(config.seed, Purpose.IMPROVE, step)
        sums, counts, plan = dict.fromkeys(METRICS, 0.0), np.zeros(len(FarStats._fields)), turns(config, owed)
        for number, (alone, count) in enumerate(plan):
            far_key, update_key = jax.random.split(jax.random.fold_in(root, number))
            starts = real_states((MOST_STARTS, batch), drawn)
            ring, stats = far(state.actor, model, ring, starts, np.int32(batch * options.far), far_key)
            run = critics_alone if alone else everything
            state, opts, told = run(state, opts, model, ring, np.int32(count), update_key)
            counts += [int(value) for value in stats]
            for name, value in jax.device_get(told).items():
                if not np.isfinite(value):
                    raise Diverged(f"{name} is not finite: the agent has diverged")
                sums[name] += 0.0 if alone else float(value)
            signals.check()
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.actor)):
            raise Diverged("the policy is not finite: the agent has diverged")
        metrics = {name: total / sum(count for alone, count in plan if not alone) for name, total in sums.items()}
        metrics |= {"agent/least_value": float(state.bounds[0]), "agent/largest_value": float(state.bounds[1])}
        names = ("imagined/rows", "imagined/terminated", "imagined/batches")
        metrics |= dict(zip(names, counts.tolist(), strict=True)) | {"imagined/size": float(ring.size)}
        return state, ring, metrics

    jitted = {"far": far, "everything": everything, "critics_alone": critics_alone}
    return Lesson(begin, teach, jitted)


def turns(config: Config, owed: int) -> list[tuple[bool, int]]:
    """Return the turns of a block's learning: whether the critics learn alone, and how many updates.

    Args:
        owed: Real steps that updates are owed for.
    """
    alone, total = int(config.double.critic_share * config.model_every), owed * config.updates_per_step
    refresh = config.double.refresh
    first = [(True, alone)] if alone else []
    return first + [(False, min(refresh, total - done)) for done in range(0, total, refresh)]
