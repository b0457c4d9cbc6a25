r"""The agent of DHMBPO, and how it learns: one update phase after each block, on states of distribution rollouts.

[Kubo et al. 2025]. The policy stays the same within a block. An update phase alternates between distribution rollouts,
which refresh the buffer of states, and updates from these states.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int, PRNGKeyArray

from pdml.agents.base import AgentParts, DeviceMetrics
from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.nets import Mlp, mode_action, sample_action
from pdml.core.pytree import copy
from pdml.core.rng import Purpose, generator, key
from pdml.core.transition import Layout
from pdml.core.types import Metrics
from pdml.data.model_buffer import ModelBuffer, blank_buffer
from pdml.dhmbpo.measures import measure_phase
from pdml.dhmbpo.model import StandardisedModel
from pdml.dhmbpo.networks import freeze, init_he, init_orthogonal
from pdml.dhmbpo.renewal import renew_normaliser
from pdml.dhmbpo.rollouts import DistributionRollouts, NormalisedActor, StepRules, actor_head, distribution_rollouts
from pdml.dhmbpo.updates import (
    ALL_METRICS,
    CRITIC_METRICS,
    HELD_BACK,
    DoubleState,
    Optimisers,
    Update,
    new_optimisers,
    updates,
)
from pdml.models.ensemble import Normaliser

MAX_START_BATCHES = 4
"""Batches of real states that distribution rollouts may use to store as many states as without terminations."""

CRITIC_REFRESH = 250
"""Most critic-only updates between two distribution rollouts: all of a phase, as published."""

STATS_NAMES = ("imagined/rows", "imagined/terminated", "imagined/batches")
"""The metrics of `DistributionStats`."""


def double_horizon_agent(config: Config, layout: Layout) -> AgentParts:
    """Build the agent; `update_phase` builds how it learns."""
    options, double = config.agent, config.double
    actor_sizes = (layout.obs_size, *options.hidden_sizes, 2 * layout.action_size)
    critic_sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, 1)

    def init_critic(key: PRNGKeyArray) -> Mlp:
        return init_he(key, critic_sizes, last=0.0)

    def init(key: PRNGKeyArray, /) -> DoubleState:
        actor_key, critic_key = jax.random.split(key)
        blank = Normaliser(jnp.zeros((layout.obs_size,)), jnp.ones((layout.obs_size,)))
        critics = jax.vmap(init_critic)(jax.random.split(critic_key, options.num_critics))
        temperature = options.first_temperature if options.temperature is None else options.temperature
        actor = NormalisedActor(init_orthogonal(actor_key, actor_sizes), blank)
        state = DoubleState(
            actor=actor,
            critics=critics,
            target_critics=copy(critics),
            log_alpha=jnp.log(jnp.asarray(temperature, jnp.float32)),
            bounds=jnp.zeros((2,)),
            bounded=jnp.zeros(()),
            trained=copy(actor.layers) if double.actor_average < 1.0 else (),
        )
        return replace(state, moments=new_optimisers(config, state)) if double.keep_moments else state

    sample, mode = partial(sample_action, actor_head), partial(mode_action, actor_head)
    return AgentParts(init, sample, mode, None, actor_head)


@runtime_checkable
class RealStates(Protocol):
    """Draws real states, by the weights of the method."""

    def __call__(self, shape: tuple[int, int], rng: np.random.Generator, /) -> Float32[np.ndarray, "batches b obs"]:
        """Return states of a shape."""
        ...


@runtime_checkable
class BeginPhase(Protocol):
    """Prepares the agent for an update phase."""

    def __call__(self, state: DoubleState, model: StandardisedModel, /) -> tuple[DoubleState, Optimisers]:
        """Return the agent with the model's normaliser, and its optimisers."""
        ...


@runtime_checkable
class RunPhase(Protocol):
    """Runs an update phase. Agent and state buffer are consumed."""

    def __call__(
        self,
        state: DoubleState,
        model: StandardisedModel,
        buffer: ModelBuffer,
        real_states: RealStates,
        step: int,
        pending_steps: int,
        /,
    ) -> tuple[DoubleState, ModelBuffer, Metrics]:
        """Return the agent and the state buffer after the phase, and metrics.

        Args:
            real_states: Draws the starts of distribution rollouts.
            step: Real steps taken so far.
            pending_steps: Real steps whose updates are still to be made.
        """
        ...


class UpdatePhase(NamedTuple):
    """The part: how an agent learns that makes its updates between blocks."""

    begin: BeginPhase
    run: RunPhase
    compiled: dict[str, Callable[..., Any]]
    """The compiled functions inside `run`, for measurements."""


@runtime_checkable
class RepeatedUpdates(Protocol):
    """Makes a number of updates from states of the buffer. Agent and optimisers are consumed."""

    def __call__(
        self,
        state: DoubleState,
        opts: Optimisers,
        model: StandardisedModel,
        buffer: ModelBuffer,
        count: Int[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        """Return the agent and its optimisers after the updates, and the sums of their metrics."""
        ...


class CompiledPhase(NamedTuple):
    """The compiled functions of an update phase."""

    distribution_rollouts: DistributionRollouts
    all_networks: RepeatedUpdates
    critics_only: RepeatedUpdates
    measure: Callable[..., DeviceMetrics]
    """See `pdml.dhmbpo.measures.measure_phase`."""


def update_phase(config: Config, layout: Layout, rules: StepRules) -> UpdatePhase:
    """Build the update phase: critics first, since the new model made them stale, then all networks."""
    options, batch = config.double, config.batch_size
    compiled = compile_phase(config, layout, rules)

    def begin(state: DoubleState, model: StandardisedModel, /) -> tuple[DoubleState, Optimisers]:
        has_collected = float(state.bounded) > 0.5  # before the first update phase, uniform actions did
        state = renew_normaliser(state, copy(model.normaliser))
        if options.kl_bound and has_collected:
            state = replace(state, collecting=copy(state.actor))
        opts = state.moments if options.keep_moments else new_optimisers(config, state)
        return replace(state, moments=()), opts

    def run(
        state: DoubleState,
        model: StandardisedModel,
        buffer: ModelBuffer,
        real_states: RealStates,
        step: int,
        pending_steps: int,
        /,
    ) -> tuple[DoubleState, ModelBuffer, Metrics]:
        collecting = copy(state.actor)
        state, opts = begin(state, model)
        renewed = copy(state.actor)
        if options.clear:
            buffer = replace(buffer, position=jnp.zeros((), jnp.int32), size=jnp.zeros((), jnp.int32))
        rng, phase_key = generator(config.seed, Purpose.STARTS, step), key(config.seed, Purpose.IMPROVE, step)
        sums: Metrics = {name: 0.0 for name in metrics_of(config)}
        counts = np.zeros(len(STATS_NAMES))
        plan = update_plan(config, pending_steps)
        for number, planned in enumerate(plan):
            rollout_key, update_key = jax.random.split(jax.random.fold_in(phase_key, number))

            # distribution rollouts
            starts = jnp.asarray(real_states((MAX_START_BATCHES, batch), rng))
            wanted = jnp.asarray(batch * options.far, jnp.int32)
            buffer, stats = compiled.distribution_rollouts(
                state.trained_actor, model, buffer, starts, wanted, rollout_key
            )
            counts += [int(value) for value in stats]

            # updates
            update = compiled.critics_only if planned.critics_only else compiled.all_networks
            count = jnp.asarray(planned.num_updates, jnp.int32)
            state, opts, device_metrics = update(state, opts, model, buffer, count, update_key)
            for name, value in finite_metrics(device_metrics).items():
                sums[name] += 0.0 if planned.critics_only else value
            signals.stop_if_asked()
        require_finite_policy(state)
        num_updates = sum(planned.num_updates for planned in plan if not planned.critics_only)
        metrics = {name: total / num_updates for name, total in sums.items()}
        measure_key = jax.random.fold_in(phase_key, len(plan))
        measured = jax.device_get(compiled.measure(collecting, renewed, state, model, buffer, measure_key))
        metrics |= {name: float(value) for name, value in measured.items()}
        metrics |= {"agent/least_value": float(state.bounds[0]), "agent/largest_value": float(state.bounds[1])}
        metrics |= dict(zip(STATS_NAMES, counts.tolist(), strict=True)) | {"imagined/size": float(buffer.size)}
        return replace(state, collecting=(), moments=opts if options.keep_moments else ()), buffer, metrics

    return UpdatePhase(begin, run, compiled._asdict())


def metrics_of(config: Config) -> tuple[str, ...]:
    """Return the metrics of an update of all networks."""
    return (*ALL_METRICS, HELD_BACK) if config.double.kl_bound else ALL_METRICS


def compile_phase(config: Config, layout: Layout, rules: StepRules) -> CompiledPhase:
    """Compile the functions of an update phase."""
    update = updates(config, layout, rules)
    return CompiledPhase(
        jax.jit(distribution_rollouts(config, layout, rules), donate_argnums=2),
        jax.jit(repeated(config, update.all_networks, metrics_of(config)), donate_argnums=(0, 1)),
        jax.jit(repeated(config, update.critics_only, CRITIC_METRICS), donate_argnums=(0, 1)),
        jax.jit(partial(measure_phase, config, layout, rules)),
    )


def repeated(config: Config, update: Update, names: tuple[str, ...]) -> RepeatedUpdates:
    """Build repeated updates of one kind.

    Args:
        names: Of the metrics of an update.
    """

    def repeat(
        state: DoubleState,
        opts: Optimisers,
        model: StandardisedModel,
        buffer: ModelBuffer,
        count: Int[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
        network = replace(model.network, members=freeze(model.network.members))
        frozen = replace(model, network=network)  # once for all updates

        def step(
            i: Array, carry: tuple[DoubleState, Optimisers, DeviceMetrics]
        ) -> tuple[DoubleState, Optimisers, DeviceMetrics]:
            state, opts, sums = carry
            row_key, update_key = jax.random.split(jax.random.fold_in(key, i))
            obs = buffer.rows[jax.random.randint(row_key, (config.batch_size,), 0, buffer.size)]
            state, opts, metrics = update(state, opts, frozen, obs, update_key)
            return state, opts, {name: sums[name] + metrics[name] for name in names}

        return jax.lax.fori_loop(0, count, step, (state, opts, {name: jnp.zeros(()) for name in names}))

    return repeat


class PlannedUpdates(NamedTuple):
    """Updates between two distribution rollouts."""

    critics_only: bool
    num_updates: int


def update_plan(config: Config, pending_steps: int) -> list[PlannedUpdates]:
    """Return the updates of an update phase; distribution rollouts come before each entry.

    Args:
        pending_steps: Real steps whose updates are still to be made.
    """
    alone = int(config.double.critic_share * config.model_every)
    total, refresh = pending_steps * config.updates_per_step, config.double.refresh
    first = [PlannedUpdates(True, min(CRITIC_REFRESH, alone - done)) for done in range(0, alone, CRITIC_REFRESH)]
    return first + [PlannedUpdates(False, min(refresh, total - done)) for done in range(0, total, refresh)]


def finite_metrics(metrics: DeviceMetrics) -> Metrics:
    """Return the metrics on the host; raise if one of them is not finite."""
    found: Metrics = {}
    for name, value in jax.device_get(metrics).items():
        if not np.isfinite(value):
            raise Diverged(f"{name} is not finite: the agent has diverged")
        found[name] = float(value)
    return found


def require_finite_policy(state: DoubleState) -> None:
    """Raise if a number of the policy is not finite."""
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.actor)):
        raise Diverged("the policy is not finite: the agent has diverged")


def state_buffer_rows(config: Config) -> int:
    """Return how many states of distribution rollouts are kept."""
    return config.batch_size * max(config.double.far * config.double.retain, config.double.far + 1)


def empty_state_buffer(config: Config, layout: Layout, steps: int) -> ModelBuffer:
    """Return an empty state buffer; it has the same size however many steps a run has."""
    return blank_buffer(state_buffer_rows(config), layout.obs_size, capacity=state_buffer_rows(config))
