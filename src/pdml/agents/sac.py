"""Soft actor-critic [Haarnoja et al. 2018]."""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from pdml.agents.actor_critic import actor_critic, critic_loss, least
from pdml.agents.base import AgentParts, DeviceMetrics, SACState
from pdml.config.schema import Config
from pdml.core.transition import Layout


def sac(config: Config, layout: Layout) -> AgentParts:
    """Soft actor-critic with twin critics and a learned (or fixed) temperature."""
    core = actor_critic(config, layout, num_critics=2)

    def update(
        state: SACState, rows: Float[Array, "b width"], noise: Float[Array, "2 b action"]
    ) -> tuple[SACState, DeviceMetrics]:
        batch = layout.unpack(rows)

        # targets
        target = core.soft_target(state, state.target_critics, batch, noise[0])

        # critics
        (error, value), grads = jax.value_and_grad(critic_loss, has_aux=True)(state.critics, batch, target)
        state = core.move_critics(state, grads)

        # actor, temperature
        state, metrics = core.move_actor(state, batch.obs, noise[1], least)
        return state, {"agent/critic_loss": error, "agent/value": value, **metrics}

    def improve(
        state: SACState,
        batches: Float[Array, "updates b width"],
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
        /,
    ) -> tuple[SACState, DeviceMetrics, None]:
        """Update once per minibatch. All noise is drawn before the loop, which is faster."""
        assert importance is None, "soft actor-critic learns from uniform minibatches"
        updates, rows, _ = batches.shape
        noise = jax.random.normal(key, (updates, 2, rows, layout.action_size))
        state, metrics = jax.lax.scan(lambda s, x: update(s, *x), state, (batches, noise))
        return state, {name: value.mean() for name, value in metrics.items()}, None

    return AgentParts(core.init, core.sample, core.mode, improve)
