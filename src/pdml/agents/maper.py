r"""MaPER's agent: critics that also predict reward and next state, and priorities from all of their errors.

[Oh et al. 2022, code of the MBPO variant]. `pdml.data.minibatches` keeps the priorities.
"""

from dataclasses import replace
from typing import Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.agents.actor_critic import actor_critic, average, least
from pdml.agents.base import AgentParts, Critics, DeviceMetrics, SACState
from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.nets import mlp
from pdml.core.optim import descend
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout, Transition
from pdml.core.types import Metrics
from pdml.data.model_buffer import ModelBuffer
from pdml.data.replay import RealRows

HEAD_BATCHES = 32
"""Minibatches per call that trains the heads; the last call of a block uses fewer of them."""

M = TypeVar("M")
"""The state of a model."""


def augmented_terms(
    critics: Critics, batch: Transition, target: Float[Array, " b"]
) -> tuple[Float[Array, "3 b"], Float[Array, " b"]]:
    r"""Return, summed over critics, $(Q-y)^2$, $(\hat r - r)^2$ and $\|\hat s' - s'\|^2$; and the mean value."""
    x = jnp.concatenate([batch.obs, batch.action], axis=-1)
    outputs = jnp.stack([mlp(critic, x) for critic in critics])
    td = jnp.square(outputs[..., 0] - target[None]).sum(axis=0)
    reward = jnp.square(outputs[..., 1] - batch.reward[None]).sum(axis=0)
    state = jnp.square(outputs[..., 2:] - batch.next_obs[None]).sum(axis=(0, 2))
    return jnp.stack([td, reward, state]), outputs[..., 0].mean(axis=0)


def predicted_reward(critics: Critics, batch: Transition) -> Float[Array, " b"]:
    """Return the mean of the critics' rewards, which replaces the reward in the target."""
    x = jnp.concatenate([batch.obs, batch.action], axis=-1)
    return jnp.stack([mlp(critic, x)[:, 1] for critic in critics]).mean(axis=0)


def balance(last_losses: Float[Array, "2 terms"], temperature: float) -> Float[Array, " terms"]:
    r"""$c_x \propto \exp(L_x(t) / (T L_x(t-1)))$ with mean 1: terms that grow get a little more weight.

    As in the authors' code, the losses before the first update are taken to be 1.
    """
    before, now = last_losses
    return now.shape[0] * jax.nn.softmax(now / (temperature * before + 1e-9))


def maper(config: Config, layout: Layout) -> AgentParts:
    """Soft actor-critic with model-augmented critics.

    The reward in the target is the critics' own prediction. The critics' loss has three balanced terms. Importance
    multiplies the losses of critics, actor and temperature. The priority of a row is the mean of the critics' errors.
    """
    core = actor_critic(config, layout, num_critics=2, critic_outputs=2 + layout.obs_size, terms=3)

    def loss(
        critics: Critics,
        batch: Transition,
        target: Float[Array, " b"],
        balances: Float[Array, "3"],
        importance: Float[Array, " b"] | None,
    ) -> tuple[Float[Array, ""], tuple[Float[Array, "3 b"], Float[Array, ""]]]:
        terms, value = augmented_terms(critics, batch, target)
        means = jnp.stack([average(term, importance) for term in terms])
        return (balances * means).sum(), (terms, value.mean())

    def update(
        state: SACState,
        rows: Float[Array, "b width"],
        noise: Float[Array, "2 b action"],
        importance: Float[Array, " b"] | None,
    ) -> tuple[SACState, tuple[DeviceMetrics, Float[Array, " b"]]]:
        batch = layout.unpack(rows)

        # targets
        predicted = batch._replace(reward=predicted_reward(state.critics, batch))
        target = core.soft_target(state, state.target_critics, predicted, noise[0])

        # critics
        balances = balance(state.last_losses, config.priority.balance)
        (error, (terms, value)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.critics, batch, target, balances, importance
        )
        state = core.move_critics(state, grads)
        state = replace(state, last_losses=jnp.stack([state.last_losses[1], terms.mean(axis=1)]))

        # actor, temperature
        state, metrics = core.move_actor(state, batch.obs, noise[1], least, importance)
        return state, ({"agent/critic_loss": error, "agent/value": value, **metrics}, 0.5 * terms.sum(axis=0))

    def improve(
        state: SACState,
        batches: Float[Array, "updates b width"],
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
        /,
    ) -> tuple[SACState, DeviceMetrics, Float[Array, "updates b"]]:
        """Update once per minibatch."""
        updates, rows, _ = batches.shape
        noise = jax.random.normal(key, (updates, 2, rows, layout.action_size))
        state, (metrics, priorities) = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise, importance))
        return state, {name: value.mean() for name, value in metrics.items()}, priorities

    return AgentParts(core.init, core.sample, core.mode, improve)


@runtime_checkable
class RefineHeads(Protocol):
    """Trains the critics' predictions of reward and next state after a fit; leaves the model as it is."""

    def __call__(
        self, model: M, agent: SACState, buffer: ModelBuffer, real: RealRows, fitted: Metrics, step: int, /
    ) -> tuple[M, SACState, Metrics]:
        """Return model, agent and metrics.

        Args:
            fitted: Metrics of the fit, which say how many minibatches it used.
        """
        ...


def train_heads(config: Config, layout: Layout) -> RefineHeads:
    """Build MaPER's refinement: train the critics' reward and next state on as many minibatches as the model had.

    It uses the critics' own optimiser, as the authors do: the moments of the value's output decay meanwhile, and its
    first steps afterwards are larger. Departs from their code, which does it inside the model's training, on the rows
    of all seven networks, and balances the two terms. Here it follows the fit, uses as many minibatches of one
    network's size, and gives both terms the same weight.
    """
    adam = optax.adam(config.agent.learning_rate)
    rows_each = config.dynamics.batch_size

    def loss(critics: Critics, batch: Transition) -> Float[Array, ""]:
        terms, _ = augmented_terms(critics, batch, jnp.zeros(batch.reward.shape))
        return terms[1:].sum(axis=0).mean()

    def descend_all(
        agent: SACState, rows: Float[Array, "batches b width"], count: Int[Array, ""]
    ) -> tuple[SACState, Float[Array, ""]]:
        def step(i: Int[Array, ""], carry: tuple[SACState, Float[Array, ""]]) -> tuple[SACState, Float[Array, ""]]:
            state, total = carry
            error, grads = jax.value_and_grad(loss)(state.critics, layout.unpack(rows[i]))
            critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
            return replace(state, critics=critics, critic_opt=critic_opt), total + error

        return jax.lax.fori_loop(0, count, step, (agent, jnp.zeros(())))

    jitted = jax.jit(descend_all, donate_argnums=0)

    def refine(
        model: M, agent: SACState, buffer: ModelBuffer, real: RealRows, fitted: Metrics, step: int, /
    ) -> tuple[M, SACState, Metrics]:
        batches, done, total = int(fitted["model/batches"]), 0, 0.0
        while done < batches:
            count = min(HEAD_BATCHES, batches - done)
            rng = generator(config.seed, Purpose.REFINE, step, done)
            rows = real.rows[rng.integers(len(real.rows), size=(HEAD_BATCHES, rows_each))]
            agent, error = jitted(agent, rows, np.int32(count))
            total, done = total + float(error), done + count
            signals.stop_if_asked()
        return model, agent, {"agent/head_loss": total / batches}

    return refine
