r"""The rollouts of DHMBPO: long distribution rollouts provide states, short training rollouts provide gradients.

[Kubo et al. 2025]. Both follow the current policy in the model. Each row is stepped by one network per step.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core.nets import Mlp, squash
from pdml.core.pytree import pytree
from pdml.core.transition import Layout
from pdml.core.types import StepFunction, TerminationProbability
from pdml.data.model_buffer import ModelBuffer, append, compact
from pdml.dhmbpo.model import ModelNoise, StandardisedModel, imagined_step
from pdml.dhmbpo.networks import norm_mlp
from pdml.models.ensemble import Normaliser, normalise

LEAST_STD = 1e-5
"""Of the policy before the tanh."""


@pytree
class NormalisedActor:
    """A policy of raw observations: its layers, and the normaliser of its last update phase."""

    layers: Mlp
    normaliser: Normaliser


def actor_head(
    actor: NormalisedActor, obs: Float[Array, "b obs"], /
) -> tuple[Float[Array, "b a"], Float[Array, "b a"]]:
    """Return mean and log standard deviation of the policy before the tanh."""
    mean, raw_std = jnp.split(norm_mlp(actor.layers, normalise(actor.normaliser, obs)), 2, axis=-1)
    return mean, jnp.log(jax.nn.softplus(raw_std) + LEAST_STD)


class StepRules(NamedTuple):
    """What imagined steps need besides the model: how likely they terminate, and their reward where it is known."""

    termination: TerminationProbability
    reward: StepFunction | None = None
    """None: the model predicts the reward."""


class RolloutNoise(NamedTuple):
    """The randomness of a rollout, step by step."""

    model: ModelNoise
    action: Float[Array, "steps b a"]
    """Standard normal noise of the policy."""
    termination: Float[Array, "steps b"]
    """Uniform in [0, 1): a step terminates where it is below the probability."""


def sample_noise(config: Config, layout: Layout, steps: int, key: PRNGKeyArray) -> RolloutNoise:
    """Sample the noise of all steps of a rollout at once, which is faster."""
    rows, members, (normal_key, uniform_key) = config.batch_size, config.dynamics.num_members, jax.random.split(key)
    state, action = jnp.split(
        jax.random.normal(normal_key, (steps, rows, layout.obs_size + layout.action_size)), [layout.obs_size], axis=2
    )
    termination, order = jnp.split(jax.random.uniform(uniform_key, (steps, rows + members)), [rows], axis=1)
    return RolloutNoise(ModelNoise(jnp.argsort(order, axis=1), state), action, termination)


class RolloutStep(NamedTuple):
    """One imagined step."""

    action: Float[Array, "b a"]
    log_prob: Float[Array, " b"]
    reward: Float[Array, " b"]
    next_obs: Float[Array, "b obs"]
    terminated: Bool[Array, " b"]


def take_step(
    actor: NormalisedActor,
    model: StandardisedModel,
    rules: StepRules,
    obs: Float[Array, "b obs"],
    noise: RolloutNoise,
) -> RolloutStep:
    """Take one step of the policy in the model; differentiable, except for whether it terminates.

    Args:
        noise: Of this step alone, without the axis of steps.
    """
    action, log_prob = squash(*actor_head(actor, obs), noise.action)
    reward, next_obs = imagined_step(model, obs, action, noise.model)
    if rules.reward is not None:
        reward = rules.reward(obs, action, next_obs)
    terminated = noise.termination < jax.lax.stop_gradient(rules.termination(model, obs, action, next_obs))
    return RolloutStep(action, log_prob, reward, next_obs, terminated)


class TrainingRollout(NamedTuple):
    """Training rollouts: H steps, and the state and action after them."""

    reward: Float[Array, "H b"]
    log_prob: Float[Array, "H1 b"]
    alive: Float[Array, "H1 b"]
    """1 up to and including the step that terminates: its reward counts, nothing after it does."""
    action: Float[Array, "b a"]
    """The first action."""
    last_obs: Float[Array, "b obs"]
    last_action: Float[Array, "b a"]


def training_rollout(
    actor: NormalisedActor,
    model: StandardisedModel,
    rules: StepRules,
    obs: Float[Array, "b obs"],
    noise: RolloutNoise,
) -> TrainingRollout:
    """Follow the policy for H steps.

    Args:
        noise: Of H + 1 steps; the last is for the action after the rollout.
    """

    def step(
        carry: tuple[Array, Array], noise: RolloutNoise
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array, Array]]:
        obs, alive = carry
        taken = take_step(actor, model, rules, obs, noise)
        kept = taken.reward, taken.log_prob, alive, taken.action
        return (taken.next_obs, jnp.where(taken.terminated, 0.0, alive)), kept

    start = (obs, jnp.ones(len(obs)))
    step_noise = jax.tree.map(lambda leaf: leaf[:-1], noise)
    (last_obs, last_alive), (reward, log_prob, alive, actions) = jax.lax.scan(step, start, step_noise, unroll=True)
    last_action, last_log_prob = squash(*actor_head(actor, last_obs), noise.action[-1])
    return TrainingRollout(
        reward,
        jnp.concatenate([log_prob, last_log_prob[None]]),
        jnp.concatenate([alive, last_alive[None]]),
        actions[0],
        last_obs,
        last_action,
    )


def soft_return(
    rollout: TrainingRollout,
    last_value: Float[Array, " b"],
    alpha: Float[Array, ""],
    gamma: float,
    first_entropy: float,
) -> Float[Array, " b"]:
    r"""$\sum_{t<H} \gamma^t m_t (r_t - \alpha \log\pi_t) + \gamma^H m_H (Q - \alpha \log\pi_H)$.

    Selected with `where`: nothing after a termination counts, even if it is not finite. Nor does it count in the
    gradient, as long as it is finite.

    Args:
        last_value: $Q$ of the state and action after the rollout.
        first_entropy: Factor of the first action's entropy. 1 for the actor; 0 for the critics, which are given the
            first action.
    """
    steps = len(rollout.reward)
    discount = jnp.asarray(gamma ** np.arange(steps + 1), jnp.float32)[:, None]
    counted = jnp.ones((steps + 1, 1)).at[0].set(first_entropy)
    gain = jnp.concatenate([rollout.reward, last_value[None]]) - alpha * counted * rollout.log_prob
    return jnp.where(rollout.alive > 0.5, discount * gain, 0.0).sum(axis=0)


class DistributionStats(NamedTuple):
    """Counts of one call of the distribution rollouts."""

    rows: Int[Array, ""]
    """Stored states."""
    terminated: Int[Array, ""]
    batches: Int[Array, ""]


@runtime_checkable
class DistributionRollouts(Protocol):
    """Fills the state buffer with states of the current policy."""

    def __call__(
        self,
        actor: NormalisedActor,
        model: StandardisedModel,
        buffer: ModelBuffer,
        starts: Float[Array, "batches b obs"],
        wanted: Int[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[ModelBuffer, DistributionStats]:
        """Return the buffer with the new states, and counts.

        Args:
            starts: Batches of real states, used one after the other until the wanted number of states is stored.
        """
        ...


def distribution_rollouts(config: Config, layout: Layout, rules: StepRules) -> DistributionRollouts:
    """Build the rollouts that fill the state buffer; every state before a termination is stored, the start too."""
    steps = config.double.far

    def follow(
        actor: NormalisedActor, model: StandardisedModel, starts: Float[Array, "b obs"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "states b obs"], Bool[Array, "states b"], Int[Array, ""]]:
        """Return all states, whether each is kept, and how many episodes terminated."""

        def step(
            carry: tuple[Array, Array], noise: RolloutNoise
        ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
            obs, alive = carry
            taken = take_step(actor, model, rules, obs, noise)
            alive = alive & jnp.isfinite(taken.next_obs).all(axis=1)
            ended = alive & taken.terminated
            return (taken.next_obs, alive & ~ended), (taken.next_obs, alive & ~ended, ended.sum(dtype=jnp.int32))

        alive, noise = jnp.ones(len(starts), bool), sample_noise(config, layout, steps, key)
        _, (states, kept, ended) = jax.lax.scan(step, (starts, alive), noise)
        return jnp.concatenate([starts[None], states]), jnp.concatenate([alive[None], kept]), ended.sum(dtype=jnp.int32)

    def rollouts(
        actor: NormalisedActor,
        model: StandardisedModel,
        buffer: ModelBuffer,
        starts: Float[Array, "batches b obs"],
        wanted: Int[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[ModelBuffer, DistributionStats]:
        def unfinished(carry: tuple[ModelBuffer, DistributionStats]) -> Array:
            return (carry[1].batches < len(starts)) & (carry[1].rows < wanted)

        def add_batch(carry: tuple[ModelBuffer, DistributionStats]) -> tuple[ModelBuffer, DistributionStats]:
            buffer, stats = carry
            i = stats.batches
            states, kept, ended = follow(actor, model, starts[i], jax.random.fold_in(key, i))
            count = kept.sum(dtype=jnp.int32)
            buffer = append(buffer, compact(states.reshape(-1, layout.obs_size), kept.reshape(-1)), count)
            return buffer, DistributionStats(stats.rows + count, stats.terminated + ended, i + 1)

        zero = jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(unfinished, add_batch, (buffer, DistributionStats(zero, zero, zero)))

    return rollouts
