r"""MaPER on the policy's side: critics that also predict the step, and minibatches prioritised by all their errors.

[Oh et al. 2022, code of the MBPO variant]. `pdml.data.minibatches` keeps the priorities.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.agents.sac import Agent, Critics, Metrics, SACState, actor_critic, average, least
from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.nets import mlp
from pdml.core.optim import descend
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout, Transition
from pdml.data.replay import RealRows
from pdml.models.ensemble import ModelState
from pdml.models.rollouts import Imagined

HEAD_BATCHES = 32
"""Minibatches of a call that trains the heads; the last call of a block is cut short by its count."""


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
    """Return the mean of the critics' rewards, which stands for the reward in the target."""
    x = jnp.concatenate([batch.obs, batch.action], axis=-1)
    return jnp.stack([mlp(critic, x)[:, 1] for critic in critics]).mean(axis=0)


def balance(last_losses: Float[Array, "2 terms"], temperature: float) -> Float[Array, " terms"]:
    r"""$c_x \propto \exp(L_x(t) / (T L_x(t-1)))$ with mean 1: terms that grow count a little more.

    As in the authors' code, the losses before the first update are taken to be 1.
    """
    before, now = last_losses
    return now.shape[0] * jax.nn.softmax(now / (temperature * before + 1e-9))


def maper(config: Config, layout: Layout) -> Agent:
    """Soft actor-critic with model-augmented critics.

    The target's reward is the critics' own prediction of it, the critics' loss has three balanced terms, importance
    multiplies the losses of critics, actor and temperature, and a row's priority is the mean of the critics' errors.
    """
    core = actor_critic(config, layout, num_critics=2, critic_outputs=2 + layout.obs_size, terms=3)

    def loss(critics: Critics, batch: Transition, target: Array, balances: Array, importance: Array | None):
        terms, value = augmented_terms(critics, batch, target)
        means = jnp.stack([average(term, importance) for term in terms])
        return (balances * means).sum(), (terms, value.mean())

    def update(state: SACState, rows: Float[Array, "b width"], noise: Array, importance: Array | None):
        batch = layout.unpack(rows)
        dreamt = batch._replace(reward=predicted_reward(state.critics, batch))
        target = core.soft_target(state, state.target_critics, dreamt, noise[0])
        balances = balance(state.last_losses, config.priority.balance)
        (error, (terms, value)), grads = jax.value_and_grad(loss, has_aux=True)(
            state.critics, batch, target, balances, importance
        )
        state = core.move_critics(state, grads)
        state = replace(state, last_losses=jnp.stack([state.last_losses[1], terms.mean(axis=1)]))
        state, metrics = core.move_actor(state, batch.obs, noise[1], least, importance)
        return state, ({"agent/critic_loss": error, "agent/value": value, **metrics}, 0.5 * terms.sum(axis=0))

    def improve(
        state: SACState,
        batches: Float[Array, "updates b width"],
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
    ) -> tuple[SACState, Metrics, Float[Array, "updates b"]]:
        """Update once on each batch in turn."""
        updates, rows, _ = batches.shape
        noise = jax.random.normal(key, (updates, 2, rows, layout.action_size))
        state, (metrics, priorities) = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise, importance))
        return state, {name: value.mean() for name, value in metrics.items()}, priorities

    return Agent(core.init, core.sample, core.mode, improve)


def train_heads(config: Config, layout: Layout):
    """Build the refinement of MaPER: train the critics' reward and state on real rows, as often as the model was.

    With the critics' own optimiser, as the authors: the moments of the value's output fade meanwhile, and its first
    steps afterwards are larger. Departs from their code, which does it inside the model's training, on the rows of
    all seven networks, and balances the two terms: here it follows the fit, with as many minibatches of one network's
    size, and the terms count alike.
    """
    adam = optax.adam(config.agent.learning_rate)
    rows_each = config.dynamics.batch_size

    def loss(critics: Critics, batch: Transition) -> Array:
        terms, _ = augmented_terms(critics, batch, jnp.zeros(batch.reward.shape))
        return terms[1:].sum(axis=0).mean()

    def descend_all(
        agent: SACState, rows: Float[Array, "batches b width"], count: Int[Array, ""]
    ) -> tuple[SACState, Array]:
        def step(i: Array, carry: tuple[SACState, Array]) -> tuple[SACState, Array]:
            state, total = carry
            error, grads = jax.value_and_grad(loss)(state.critics, layout.unpack(rows[i]))
            critics, critic_opt = descend(adam, grads, state.critic_opt, state.critics)
            return replace(state, critics=critics, critic_opt=critic_opt), total + error

        return jax.lax.fori_loop(0, count, step, (agent, jnp.zeros(())))

    jitted = jax.jit(descend_all, donate_argnums=0)

    def refine(
        model: ModelState, agent: SACState, ring: Imagined, real: RealRows, fitted: dict[str, float], step: int
    ) -> tuple[ModelState, SACState, dict[str, float]]:
        batches, done, total = int(fitted["model/batches"]), 0, 0.0
        while done < batches:
            count = min(HEAD_BATCHES, batches - done)
            drawn = generator(config.seed, Purpose.REFINE, step, done)
            rows = real.rows[drawn.integers(len(real.rows), size=(HEAD_BATCHES, rows_each))]
            agent, error = jitted(agent, rows, np.int32(count))
            total, done = total + float(error), done + count
            signals.check()
        return model, agent, {"agent/head_loss": total / batches}

    return refine
