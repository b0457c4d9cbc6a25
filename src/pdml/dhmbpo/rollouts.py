r"""Rollouts of double-horizon learning: far ones for their states, near ones for their gradient.

[Kubo et al. 2025]. Both follow the current policy in the model, each row by one network a step.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core.nets import Mlp, squash
from pdml.core.pytree import pytree
from pdml.core.transition import Layout
from pdml.dhmbpo.model import Draws, SmoothModel, imagined_step
from pdml.dhmbpo.networks import smooth_mlp
from pdml.envs.termination_fns import StepFunction
from pdml.models.ensemble import Normaliser, normalise
from pdml.models.rollouts import Ending, Imagined, append, compact

LEAST_STD = 1e-5
"""Of the policy before the tanh."""


@pytree
class SmoothActor:
    """A policy of raw observations: its layers, and the normaliser that was current when it learned."""

    layers: Mlp
    normaliser: Normaliser


def head(actor: SmoothActor, obs: Float[Array, "b obs"]) -> tuple[Float[Array, "b a"], Float[Array, "b a"]]:
    """Return mean and log standard deviation of the policy before the tanh."""
    mean, raw = jnp.split(smooth_mlp(actor.layers, normalise(actor.normaliser, obs)), 2, axis=-1)
    return mean, jnp.log(jax.nn.softplus(raw) + LEAST_STD)


class Knowledge(NamedTuple):
    """What imagined steps take beside the model: how likely they end an episode, and their reward where it is known."""

    ending: Ending
    reward: StepFunction | None = None


class StepDraws(NamedTuple):
    """What is random in each step of a rollout."""

    model: Draws
    action: Float[Array, "steps b a"]
    end: Float[Array, "steps b"]


def draw(config: Config, layout: Layout, steps: int, key: PRNGKeyArray) -> StepDraws:
    """Draw for all steps of a rollout at once, which is faster."""
    rows, members, (normal_key, uniform_key) = config.batch_size, config.dynamics.num_members, jax.random.split(key)
    noise, action = jnp.split(
        jax.random.normal(normal_key, (steps, rows, layout.obs_size + layout.action_size)), [layout.obs_size], axis=2
    )
    end, order = jnp.split(jax.random.uniform(uniform_key, (steps, rows + members)), [rows], axis=1)
    return StepDraws(Draws(jnp.argsort(order, axis=1), noise), action, end)


class Stepped(NamedTuple):
    """One imagined step."""

    action: Float[Array, "b a"]
    log_prob: Float[Array, " b"]
    reward: Float[Array, " b"]
    next_obs: Float[Array, "b obs"]
    ended: Array


def take_step(
    actor: SmoothActor, model: SmoothModel, known: Knowledge, obs: Float[Array, "b obs"], drawn: StepDraws
) -> Stepped:
    """Take one step of the policy in the model; differentiable, but for whether it ends the episode."""
    action, log_prob = squash(*head(actor, obs), drawn.action)
    reward, next_obs = imagined_step(model, obs, action, drawn.model)
    if known.reward is not None:
        reward = known.reward(obs, action, next_obs)
    ended = drawn.end < jax.lax.stop_gradient(known.ending(model, obs, action, next_obs))
    return Stepped(action, log_prob, reward, next_obs, ended)


class Near(NamedTuple):
    """Near rollouts: H steps, and the state and action after them."""

    reward: Float[Array, "H b"]
    log_prob: Float[Array, "H1 b"]
    alive: Float[Array, "H1 b"]
    """1 until a step ends the episode: its reward counts, nothing after does."""
    action: Float[Array, "b a"]
    """The first action."""
    last_obs: Float[Array, "b obs"]
    last_action: Float[Array, "b a"]


def near_rollout(
    actor: SmoothActor,
    model: SmoothModel,
    known: Knowledge,
    obs: Float[Array, "b obs"],
    drawn: StepDraws,
) -> Near:
    """Follow the policy for a few steps, one fewer than were drawn: the last draw is for the action after them."""

    def step(carry: tuple[Array, Array], drawn: StepDraws):
        obs, alive = carry
        stepped = take_step(actor, model, known, obs, drawn)
        kept = stepped.reward, stepped.log_prob, alive, stepped.action
        return (stepped.next_obs, jnp.where(stepped.ended, 0.0, alive)), kept

    start = (obs, jnp.ones(len(obs)))
    first_draws = jax.tree.map(lambda leaf: leaf[:-1], drawn)
    (last_obs, last_alive), (reward, log_prob, alive, actions) = jax.lax.scan(step, start, first_draws, unroll=True)
    last_action, last_log_prob = squash(*head(actor, last_obs), drawn.action[-1])
    return Near(
        reward,
        jnp.concatenate([log_prob, last_log_prob[None]]),
        jnp.concatenate([alive, last_alive[None]]),
        actions[0],
        last_obs,
        last_action,
    )


def soft_return(
    near: Near, last_value: Float[Array, " b"], alpha: Float[Array, ""], gamma: float, first: float
) -> Float[Array, " b"]:
    r"""$\sum_{t<H} \gamma^t m_t (r_t - \alpha \log\pi_t) + \gamma^H m_H (Q - \alpha \log\pi_H)$.

    Selected with `where`: nothing after the end of an episode counts, be it finite or not; nor does it in the
    gradient, as long as it is finite.

    Args:
        first: Factor of the first action's entropy: 1 for the actor; 0 for the critics, to whom it is given.
    """
    steps = len(near.reward)
    factor = jnp.asarray(gamma ** np.arange(steps + 1), jnp.float32)[:, None]
    counted = jnp.ones((steps + 1, 1)).at[0].set(first)
    gain = jnp.concatenate([near.reward, last_value[None]]) - alpha * counted * near.log_prob
    return jnp.where(near.alive > 0.5, factor * gain, 0.0).sum(axis=0)


class FarStats(NamedTuple):
    """Counts of one far rollout."""

    rows: Int[Array, ""]
    terminated: Int[Array, ""]
    batches: Int[Array, ""]


def far_rollout(config: Config, layout: Layout, known: Knowledge) -> Callable[..., tuple[Imagined, FarStats]]:
    """Build the rollout that fills the ring with states of the current policy.

    Returns:
        A function (actor, model, ring, batches of starts, wanted rows, key) -> (ring, stats) that uses up one batch of
        starts after the other until the wanted rows are stored.
    """
    steps = config.double.far

    def follow(actor: SmoothActor, model: SmoothModel, starts: Float[Array, "b obs"], key: PRNGKeyArray):
        """Return every state, first and last too, whether it came before the end, and how many episodes ended."""

        def step(carry: tuple[Array, Array], drawn: StepDraws):
            obs, alive = carry
            stepped = take_step(actor, model, known, obs, drawn)
            alive = alive & jnp.isfinite(stepped.next_obs).all(axis=1)
            ended = alive & stepped.ended
            return (stepped.next_obs, alive & ~ended), (stepped.next_obs, alive & ~ended, ended.sum(dtype=jnp.int32))

        begun = jnp.ones(len(starts), bool)
        _, (states, kept, ended) = jax.lax.scan(step, (starts, begun), draw(config, layout, steps, key))
        return jnp.concatenate([starts[None], states]), jnp.concatenate([begun[None], kept]), ended.sum(dtype=jnp.int32)

    def far(
        actor: SmoothActor,
        model: SmoothModel,
        ring: Imagined,
        starts: Float[Array, "batches b obs"],
        wanted: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Imagined, FarStats]:
        def is_short(carry: tuple[Imagined, FarStats]) -> Array:
            return (carry[1].batches < len(starts)) & (carry[1].rows < wanted)

        def go_on(carry: tuple[Imagined, FarStats]) -> tuple[Imagined, FarStats]:
            ring, stats = carry
            i = stats.batches
            states, kept, ended = follow(actor, model, starts[i], jax.random.fold_in(key, i))
            count = kept.sum(dtype=jnp.int32)
            ring = append(ring, compact(states.reshape(-1, layout.obs_size), kept.reshape(-1)), count)
            return ring, FarStats(stats.rows + count, stats.terminated + ended, i + 1)

        zero = jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(is_short, go_on, (ring, FarStats(zero, zero, zero)))

    return far
