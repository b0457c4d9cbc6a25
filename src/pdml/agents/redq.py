"""REDQ, randomised ensembled double Q-learning [Chen et al. 2021]."""

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.agents.actor_critic import actor_critic, critic_loss, mean
from pdml.agents.base import AgentParts, DeviceMetrics, SACState
from pdml.config.schema import Config
from pdml.core.nets import choose
from pdml.core.transition import Layout


def redq(config: Config, layout: Layout) -> AgentParts:
    """Soft actor-critic with many critics.

    Each update moves all critics towards the target of a random subset of the target critics. Actor and temperature
    move once, after the last update, by the mean of all critics.
    """
    num_critics, subset = config.agent.num_critics, config.agent.subset
    core = actor_critic(config, layout, num_critics)

    def shuffled(key: PRNGKeyArray) -> Int[Array, " critics"]:
        return jax.random.permutation(key, num_critics)

    def update(
        state: SACState, rows: Float[Array, "b width"], noise: Float[Array, "b action"], chosen: Int[Array, " subset"]
    ) -> tuple[SACState, DeviceMetrics]:
        batch = layout.unpack(rows)

        # targets
        target = core.soft_target(state, choose(state.target_critics, chosen), batch, noise)

        # critics
        (error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        return core.move_critics(state, grads), {"agent/critic_loss": error, "agent/value": value}

    def improve(
        state: SACState,
        batches: Float[Array, "updates b width"],
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
        /,
    ) -> tuple[SACState, DeviceMetrics, None]:
        """Update the critics once per minibatch, then the actor once on the last one."""
        assert importance is None, "REDQ learns from uniform minibatches"
        updates, rows, _ = batches.shape
        subset_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (updates + 1, rows, layout.action_size))
        chosen = jax.vmap(shuffled)(jax.random.split(subset_key, updates))[:, :subset]
        state, metrics = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise[:-1], chosen))

        # actor, temperature
        state, moved = core.move_actor(state, layout.unpack(batches[-1]).obs, noise[-1], mean)
        return state, {name: value.mean() for name, value in metrics.items()} | moved, None

    return AgentParts(core.init, core.sample, core.mode, improve)
