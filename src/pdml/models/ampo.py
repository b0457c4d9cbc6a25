r"""Unsupervised model adaptation: bring the features of imagined inputs near those of real ones.

AMPO [Shen et al. 2020]. After the branches of a block, a copy of each network's hidden layers learns to give imagined
inputs features that a critic cannot tell from the features of real inputs (Wasserstein-1); the next fit starts there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.config.schema import AmpoConfig, Config
from pdml.core import signals
from pdml.core.nets import Mlp, hidden, init_truncated, mlp, silu
from pdml.core.optim import descend
from pdml.core.pytree import copy, pytree
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.models.ensemble import ModelState, Network, normalise
from pdml.models.fit import Dynamics, capacity_of
from pdml.models.rollouts import Imagined

STEPS_A_CALL = 50
"""Adaptation steps of one dispatch."""

Members = tuple[Mlp, ...]


@pytree
class AdaptationState:
    """What is kept from block to block: a critic for each network, and both optimisers."""

    critics: Members
    critic_opt: optax.OptState
    feature_opt: optax.OptState


def features(member: Mlp, x: Float[Array, "b inputs"]) -> Float[Array, "b hidden"]:
    """Return the last hidden layer's activation."""
    return hidden(member, x, silu)


def gradient_penalty(critic: Mlp, between: Float[Array, "b hidden"]) -> Float[Array, ""]:
    r"""$\overline{(\|\nabla f(h)\| - 1)^2}$, a norm for each row.

    Departs from the authors' code, which reduces over the rows instead of the features.
    """
    slopes = jax.grad(lambda h: mlp(critic, h).sum())(between)
    length = jnp.sqrt(1e-8 + jnp.square(slopes).sum(axis=1))
    return jnp.square(length - 1.0).mean()


def critic_loss(
    critics: Members, real: list[Array], imagined: list[Array], mix: Float[Array, "members b 1"], config: AmpoConfig
) -> Float[Array, ""]:
    """Return minus the estimated distance, with gradient penalty: the mean over networks; weight decay: the sum."""
    loss = jnp.zeros(())
    for i, critic in enumerate(critics):
        between = imagined[i] + mix[i] * (real[i] - imagined[i])
        distance = mlp(critic, real[i]).mean() - mlp(critic, imagined[i]).mean()
        loss += (config.penalty * gradient_penalty(critic, between) - distance) / len(critics)
        loss += sum(0.5 * config.weight_decay * jnp.square(layer.w).sum() for layer in critic)
    return loss


def wasserstein(networks: tuple[Members, Members], critics: Members, x: Array, imagined_x: Array) -> Float[Array, ""]:
    """Return the estimated distance between features of real inputs by one copy and of imagined inputs by the other."""
    loss = jnp.zeros(())
    for i, critic in enumerate(critics):
        real, imagined = features(networks[0][i], x[i]), features(networks[1][i], imagined_x[i])
        loss += (mlp(critic, real).mean() - mlp(critic, imagined).mean()) / len(critics)
    return loss


def num_steps(config: AmpoConfig, epoch: int) -> int:
    """Return the adaptation steps of a block in an epoch."""
    if epoch > config.stop_epoch:
        return 0
    share = min(epoch / config.ramp_epochs, 1.0)
    return int(config.first_steps + share * (config.last_steps - config.first_steps))


def adapted(config: Config, dynamics: Dynamics) -> Dynamics:
    """Give a model what adaptation keeps from block to block."""
    adam = optax.adam(config.ampo.learning_rate)
    sizes = (config.dynamics.hidden_sizes[-1], config.ampo.critic_size, 1)

    def init(draw: PRNGKeyArray) -> ModelState:
        model = dynamics.init(draw)
        keys = jax.random.split(jax.random.fold_in(draw, int(Purpose.ADAPTATION_INIT)), config.dynamics.num_members)
        critics = tuple(init_truncated(k, sizes) for k in keys)
        pair = (model.network.members, model.network.members)
        state = AdaptationState(critics, adam.init(critics), adam.init(pair))
        return replace(model, adaptation=state)

    return dynamics._replace(init=jax.jit(init))


def adapt(config: Config, layout: Layout) -> Callable[..., tuple]:
    """Build the refinement of AMPO."""
    options = config.ampo
    members, rows_each = config.dynamics.num_members, options.batch_size
    adam = optax.adam(options.learning_rate)
    inputs = layout.obs_size + layout.action_size

    def draw_inputs(model: ModelState, rows: Array, size: Int[Array, ""], key: PRNGKeyArray) -> Array:
        """Draw standardised inputs, for each network by itself."""
        index = jax.random.randint(key, (members * rows_each,), 0, size)
        return normalise(model.normaliser, rows[index, :inputs]).reshape(members, rows_each, inputs)

    def move(
        model: ModelState,
        copies: tuple[Members, Members],
        ring: Imagined,
        real: Float[Array, "capacity inputs"],
        num_real: Int[Array, ""],
        count: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[AdaptationState, tuple[Members, Members], Float[Array, ""]]:
        def train_critics(j: Array, carry):
            networks, state, step_key, _, _ = carry
            real_key, imagined_key, mix_key = jax.random.split(jax.random.fold_in(step_key, j), 3)
            x = draw_inputs(model, real, num_real, real_key)
            imagined_x = draw_inputs(model, ring.rows, ring.size, imagined_key)
            mix = jax.random.uniform(mix_key, (members, rows_each, 1))
            source = [features(networks[0][i], x[i]) for i in range(members)]
            target = [features(networks[1][i], imagined_x[i]) for i in range(members)]
            grads = jax.grad(critic_loss)(state.critics, source, target, mix, options)
            critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
            return networks, replace(state, critics=critics, critic_opt=critic_opt), step_key, x, imagined_x

        def step(i: Array, carry):
            networks, state, total = carry
            nothing = jnp.zeros((members, rows_each, inputs))
            start = (networks, state, jax.random.fold_in(key, i), nothing, nothing)
            _, state, _, x, imagined_x = jax.lax.fori_loop(0, options.critic_steps, train_critics, start)
            distance, grads = jax.value_and_grad(wasserstein)(networks, state.critics, x, imagined_x)
            networks, feature_opt = descend(adam, grads, state.feature_opt, networks)
            return networks, replace(state, feature_opt=feature_opt), total + distance

        networks, state, total = jax.lax.fori_loop(0, count, step, (copies, model.adaptation, jnp.zeros(())))
        return state, networks, total

    jitted = jax.jit(move, donate_argnums=1)

    def refine(
        model: ModelState, agent: Any, ring: Imagined, real: RealRows, fitted: dict[str, float], step: int
    ) -> tuple[ModelState, Any, dict[str, float]]:
        """Adapt; the heads, the agent and everything else of the model stay as they were."""
        epoch = (step - config.warmup_steps) // config.epoch_steps
        steps = num_steps(options, epoch)
        if steps == 0:
            return model, agent, {"model/adaptation_steps": 0.0, "model/feature_distance": float("nan")}
        rows = np.zeros((capacity_of(len(real.rows)), inputs), np.float32)
        rows[: len(real.rows)] = layout.inputs(real.rows)
        copies, total = (copy(model.network.members), copy(model.network.members)), 0.0
        for first in range(0, steps, STEPS_A_CALL):
            draw = jax.random.fold_in(key(config.seed, Purpose.REFINE, step), first)
            count = np.int32(min(STEPS_A_CALL, steps - first))
            state, copies, distance = jitted(model, copies, ring, rows, np.int32(len(real.rows)), count, draw)
            model, total = replace(model, adaptation=state), total + float(distance)
            signals.check()
        network = Network(copies[1], model.network.bounds)
        metrics = {"model/adaptation_steps": float(steps), "model/feature_distance": total / steps}
        return replace(model, network=network), agent, metrics

    return refine
