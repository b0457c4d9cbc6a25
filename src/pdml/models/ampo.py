r"""AMPO: unsupervised adaptation of the model's features from real to imagined inputs.

[Shen et al. 2020]. After the rollouts of a block, a copy of each network's hidden layers learns features of imagined
inputs that a critic cannot tell from the features of real inputs (Wasserstein-1). The next fit starts from there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.config.schema import AmpoConfig, Config
from pdml.core import signals
from pdml.core.batching import capacity_of
from pdml.core.nets import Mlp, hidden, init_truncated, mlp, silu
from pdml.core.optim import descend
from pdml.core.pytree import copy, pytree
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.core.types import Metrics
from pdml.data.model_buffer import ModelBuffer
from pdml.data.refine import Refine
from pdml.data.replay import RealRows
from pdml.models.ensemble import ModelState, Network, normalise
from pdml.models.fit import DynamicsModel

STEPS_PER_CALL = 50
"""Adaptation steps per call of the compiled function."""

Members = tuple[Mlp, ...]


@pytree
class AdaptationState:
    """What is kept from block to block: one critic per network, and both optimisers."""

    critics: Members
    critic_opt: optax.OptState
    feature_opt: optax.OptState


def features(member: Mlp, x: Float[Array, "b inputs"]) -> Float[Array, "b hidden"]:
    """Return the last hidden layer's activation."""
    return hidden(member, x, silu)


def gradient_penalty(critic: Mlp, between: Float[Array, "b hidden"]) -> Float[Array, ""]:
    r"""$\overline{(\|\nabla f(h)\| - 1)^2}$, one norm per row.

    Departs from the authors' code, which reduces over the rows instead of the features.
    """
    slopes = jax.grad(lambda h: mlp(critic, h).sum())(between)
    length = jnp.sqrt(1e-8 + jnp.square(slopes).sum(axis=1))
    return jnp.square(length - 1.0).mean()


def wasserstein_critic_loss(
    critics: Members, real: list[Array], imagined: list[Array], mix: Float[Array, "members b 1"], config: AmpoConfig
) -> Float[Array, ""]:
    """Return minus the estimated distance plus gradient penalty (mean over networks) plus weight decay (sum)."""
    loss = jnp.zeros(())
    for i, critic in enumerate(critics):
        between = imagined[i] + mix[i] * (real[i] - imagined[i])
        distance = mlp(critic, real[i]).mean() - mlp(critic, imagined[i]).mean()
        loss += (config.penalty * gradient_penalty(critic, between) - distance) / len(critics)
        loss += sum(0.5 * config.weight_decay * jnp.square(layer.w).sum() for layer in critic)
    return loss


def wasserstein(networks: tuple[Members, Members], critics: Members, x: Array, imagined_x: Array) -> Float[Array, ""]:
    """Return the estimated distance between features of real inputs (first copy) and imagined inputs (second copy)."""
    loss = jnp.zeros(())
    for i, critic in enumerate(critics):
        real, imagined = features(networks[0][i], x[i]), features(networks[1][i], imagined_x[i])
        loss += (mlp(critic, real).mean() - mlp(critic, imagined).mean()) / len(critics)
    return loss


def adaptation_steps(config: AmpoConfig, epoch: int) -> int:
    """Return the adaptation steps per block in an epoch."""
    if epoch > config.stop_epoch:
        return 0
    share = min(epoch / config.ramp_epochs, 1.0)
    return int(config.first_steps + share * (config.last_steps - config.first_steps))


def with_adaptation(config: Config, dynamics: DynamicsModel) -> DynamicsModel:
    """Give a model what adaptation keeps from block to block."""
    adam = optax.adam(config.ampo.learning_rate)
    sizes = (config.dynamics.hidden_sizes[-1], config.ampo.critic_size, 1)

    def init(key: PRNGKeyArray) -> ModelState:
        model = dynamics.init(key)
        keys = jax.random.split(jax.random.fold_in(key, int(Purpose.ADAPTATION_INIT)), config.dynamics.num_members)
        critics = tuple(init_truncated(k, sizes) for k in keys)
        pair = (model.network.members, model.network.members)
        state = AdaptationState(critics, adam.init(critics), adam.init(pair))
        return replace(model, adaptation=state)

    return dynamics._replace(init=jax.jit(init))


class _CriticLoop(NamedTuple):
    """The loop over the critic's steps before one step of the features."""

    networks: tuple[Members, Members]
    state: AdaptationState
    key: PRNGKeyArray
    x: Float[Array, "members b inputs"]
    imagined_x: Float[Array, "members b inputs"]


class _FeatureLoop(NamedTuple):
    """The loop over the steps of the features."""

    networks: tuple[Members, Members]
    state: AdaptationState
    total: Float[Array, ""]


AdaptationSteps = Callable[
    [
        ModelState,
        tuple[Members, Members],
        ModelBuffer,
        Float[Array, "capacity inputs"],
        Int[Array, ""],
        Int[Array, ""],
        PRNGKeyArray,
    ],
    _FeatureLoop,
]
"""From model, copies of its networks, model buffer, real inputs and their number, the number of steps and a key."""


def make_adaptation_steps(config: Config, inputs: int) -> AdaptationSteps:
    """Build some steps of the features, each after some steps of the critic."""
    options, members = config.ampo, config.dynamics.num_members
    adam = optax.adam(options.learning_rate)

    def draw_inputs(model: ModelState, rows: Array, size: Int[Array, ""], key: PRNGKeyArray) -> Array:
        """Draw standardised inputs, separately for each network."""
        index = jax.random.randint(key, (members * options.batch_size,), 0, size)
        return normalise(model.normaliser, rows[index, :inputs]).reshape(members, options.batch_size, inputs)

    def steps(
        model: ModelState,
        copies: tuple[Members, Members],
        buffer: ModelBuffer,
        real: Float[Array, "capacity inputs"],
        num_real: Int[Array, ""],
        count: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> _FeatureLoop:
        def train_critics(j: Array, loop: _CriticLoop) -> _CriticLoop:
            real_key, imagined_key, mix_key = jax.random.split(jax.random.fold_in(loop.key, j), 3)
            x = draw_inputs(model, real, num_real, real_key)
            imagined_x = draw_inputs(model, buffer.rows, buffer.size, imagined_key)
            mix = jax.random.uniform(mix_key, (members, options.batch_size, 1))
            source = [features(loop.networks[0][i], x[i]) for i in range(members)]
            target = [features(loop.networks[1][i], imagined_x[i]) for i in range(members)]
            grads = jax.grad(wasserstein_critic_loss)(loop.state.critics, source, target, mix, options)
            critics, critic_opt = descend(adam, grads, loop.state.critic_opt, loop.state.critics)
            state = replace(loop.state, critics=critics, critic_opt=critic_opt)
            return _CriticLoop(loop.networks, state, loop.key, x, imagined_x)

        def step(i: Array, loop: _FeatureLoop) -> _FeatureLoop:
            nothing = jnp.zeros((members, options.batch_size, inputs))
            start = _CriticLoop(loop.networks, loop.state, jax.random.fold_in(key, i), nothing, nothing)
            trained = jax.lax.fori_loop(0, options.critic_steps, train_critics, start)
            distance, grads = jax.value_and_grad(wasserstein)(
                loop.networks, trained.state.critics, trained.x, trained.imagined_x
            )
            networks, feature_opt = descend(adam, grads, trained.state.feature_opt, loop.networks)
            return _FeatureLoop(networks, replace(trained.state, feature_opt=feature_opt), loop.total + distance)

        return jax.lax.fori_loop(0, count, step, _FeatureLoop(copies, model.adaptation, jnp.zeros(())))

    return steps


def ampo_refinement(config: Config, layout: Layout) -> Refine:
    """Build the refinement of AMPO."""
    options, inputs = config.ampo, layout.obs_size + layout.action_size
    compiled = jax.jit(make_adaptation_steps(config, inputs), donate_argnums=1)

    def refine(
        model: ModelState, agent: Any, buffer: ModelBuffer, real: RealRows, fitted: Metrics, step: int, /
    ) -> tuple[ModelState, Any, Metrics]:
        """Adapt the features; the output layers, the agent and everything else of the model stay as they were."""
        steps = adaptation_steps(options, config.schedule.epoch(step))
        if steps == 0:
            return model, agent, {"model/adaptation_steps": 0.0, "model/feature_distance": float("nan")}
        rows = np.zeros((capacity_of(len(real.rows)), inputs), np.float32)
        rows[: len(real.rows)] = layout.inputs(real.rows)
        copies, total = (copy(model.network.members), copy(model.network.members)), 0.0
        for first in range(0, steps, STEPS_PER_CALL):
            call_key = jax.random.fold_in(key(config.seed, Purpose.REFINE, step), first)
            count = np.int32(min(STEPS_PER_CALL, steps - first))
            copies, state, distance = compiled(model, copies, buffer, rows, np.int32(len(real.rows)), count, call_key)
            model, total = replace(model, adaptation=state), total + float(distance)
            signals.stop_if_asked()
        network = Network(copies[1], model.network.bounds)
        metrics = {"model/adaptation_steps": float(steps), "model/feature_distance": total / steps}
        return replace(model, network=network), agent, metrics

    return refine
