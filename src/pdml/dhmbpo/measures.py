"""What an update phase did to the agent, measured on states of the state buffer. Nothing learns from it."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pdml.agents.base import DeviceMetrics
from pdml.config.schema import Config
from pdml.core.nets import mode_action, squash
from pdml.core.transition import Layout
from pdml.data.model_buffer import ModelBuffer
from pdml.dhmbpo.model import StandardisedModel
from pdml.dhmbpo.rollouts import NormalisedActor, StepRules, actor_head, sample_noise, take_step
from pdml.dhmbpo.updates import DoubleState, policy_divergence, scaled_values

LONGEST_RETURN = 1000
"""Most steps of the rollouts that values are compared with."""

NEGLIGIBLE = 0.01
"""Rollouts end where the discount is below this."""


def measure_phase(
    config: Config,
    layout: Layout,
    rules: StepRules,
    collecting: NormalisedActor,
    renewed: NormalisedActor,
    state: DoubleState,
    model: StandardisedModel,
    buffer: ModelBuffer,
    key: PRNGKeyArray,
) -> DeviceMetrics:
    """Return the metrics; one that is not finite, such as the return of a model that diverges, is no fault.

    Args:
        collecting: The policy that collected the last block.
        renewed: The same after the normaliser was renewed.
        state: The agent after the phase.
    """
    row_key, value_key = jax.random.split(key)
    obs = buffer.rows[jax.random.randint(row_key, (config.batch_size,), 0, buffer.size)]
    return {
        "agent/action_change": action_change(collecting, state.actor, obs),
        "agent/renewal_change": action_change(collecting, renewed, obs),
        "agent/divergence": policy_divergence(collecting, state.actor, obs),
        "agent/value_bias": value_bias(config, layout, rules, state, model, obs, value_key),
    }


def action_change(before: NormalisedActor, after: NormalisedActor, obs: Float[Array, "b obs"]) -> Float[Array, ""]:
    """Return the mean change of the deterministic action, whose entries lie in [-1, 1]."""
    return jnp.abs(mode_action(actor_head, after, obs) - mode_action(actor_head, before, obs)).mean()


def negligible_after(gamma: float) -> int:
    """Return after how many steps the discount is negligible."""
    return math.ceil(math.log(NEGLIGIBLE) / math.log(gamma)) if gamma > 0.0 else 1


def return_steps(gamma: float) -> int:
    """Return how many steps a return is summed over."""
    return min(LONGEST_RETURN, negligible_after(gamma))


def value_bias(
    config: Config,
    layout: Layout,
    rules: StepRules,
    state: DoubleState,
    model: StandardisedModel,
    obs: Float[Array, "b obs"],
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """Return the critics' mean value of the trained policy's actions, minus the soft return of long rollouts."""
    gamma, alpha, actor = config.agent.gamma, jnp.exp(state.log_alpha), state.trained_actor
    noise_of = jax.random.split(key, return_steps(gamma))

    def step(
        carry: tuple[Array, Array, Array, Array], key: PRNGKeyArray
    ) -> tuple[tuple[Array, Array, Array, Array], None]:
        """The discount is 0 after a termination; the entropy of the first action is not part of its value."""
        obs, discount, total, counted = carry
        noise = jax.tree.map(lambda leaf: leaf[0], sample_noise(config, layout, 1, key))
        taken = take_step(actor, model, rules, obs, noise)
        gain = taken.reward - counted * alpha * taken.log_prob
        total = total + jnp.where(discount > 0.0, discount * gain, 0.0)
        discount = jnp.where(taken.terminated, 0.0, gamma * discount)
        return (taken.next_obs, discount, total, jnp.ones(())), None

    first_noise = jax.tree.map(lambda leaf: leaf[0], sample_noise(config, layout, 1, noise_of[0]))
    action, _ = squash(*actor_head(actor, obs), first_noise.action)
    value = scaled_values(state.critics, state, obs, action).mean(axis=0)
    start = (obs, jnp.ones(len(obs)), jnp.zeros(len(obs)), jnp.zeros(()))
    (_, _, total, _), _ = jax.lax.scan(step, start, noise_of)
    return (value - total).mean()
