"""The phases that `pdml bench` measures: each with the GFLOP of its products, on sizes of Hopper.

GFLOP counts 2 m n k of the matrix products that the mathematics needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.defaults import defaults
from pdml.config.methods import METHODS
from pdml.config.schema import Config
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.data.model_buffer import ModelBuffer, empty_buffer
from pdml.dhmbpo.fit import ADAM, StandardisedRows
from pdml.dhmbpo.learner import UpdatePhase, empty_state_buffer
from pdml.envs.env_spec import spaces_of
from pdml.envs.gym import make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.models.fit import ensemble
from pdml.models.fit_data import EnsembleRows
from pdml.models.losses import nll
from pdml.training.diagnostics import DEPTH, KEPT_ROWS, WINDOWS, FreshReservoir, diagnosis
from pdml.training.methods import wire
from pdml.training.recipe import Parts
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import PolicyHistory


class Phase(NamedTuple):
    """A piece of work: its GFLOP, and a call that does it and returns how often it did."""

    gflop: float
    call: Callable[[], int]


def products(sizes: Sequence[int]) -> float:
    """Return the FLOP of one forward pass of one row."""
    return 2.0 * sum(n * m for n, m in pairwise(sizes))


def bench_phases() -> dict[str, Phase]:
    """Return every phase."""
    return {
        "sac_update": _sac_update(),
        "ensemble_step": _ensemble_step(),
        "imagine_100k": _rollouts(),
        "reweight_1200": _reweight(policies=1200),
        "td_errors_100k": _score("td_errors"),
        "values_100k": _score("values"),
        "model_errors_100k": _score("model_errors"),
        "diagnose_1000": _diagnose(),
        "smooth_model_step": _standardised_step(),
        "near_update": _training_update(critics_only=False),
        "near_critic_update": _training_update(critics_only=True),
        "far_rollout": _distribution_rollouts(),
    }


class _Bench(NamedTuple):
    """A method on sizes of Hopper, with the FLOP of one row in each network."""

    config: Config
    layout: Layout
    parts: Parts
    actor: float
    critic: float
    network: float

    def agent(self) -> Any:
        """Return a new agent."""
        return self.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))

    def model(self) -> Any:
        """Return a new model."""
        return self.parts.model.dynamics.init(key(0, Purpose.MODEL_INIT))


def _hopper(method: str = "pdml") -> _Bench:
    config = defaults("Hopper-v5", method).learning
    layout = spaces_of(config.env).layout
    parts = wire(config, layout, by_rule(RULES["Hopper"]))
    pair, hidden = layout.obs_size + layout.action_size, config.agent.hidden_sizes
    outputs = layout.obs_size + 1
    outputs = outputs if METHODS[method].is_double_horizon else 2 * outputs
    actor = products((layout.obs_size, *hidden, 2 * layout.action_size))
    critic = products((pair, *hidden, 1))
    network = products((pair, *config.dynamics.hidden_sizes, outputs))
    return _Bench(config, layout, parts, actor, critic, network)


def _full_buffer(bench: _Bench, rows: int = 400_000) -> ModelBuffer:
    """Return a model buffer as full as a run's after its first epoch."""
    buffer = empty_buffer(bench.config, bench.layout, bench.config.warmup_steps)
    data = jax.random.normal(jax.random.key(0), (rows, bench.layout.width))
    capacity, size = jnp.asarray(rows, jnp.int32), jnp.array(rows, jnp.int32)
    return ModelBuffer(buffer.rows.at[:rows].set(data), capacity, buffer.position, size)


def _sac_update() -> Phase:
    bench = _hopper()
    config, layout, parts, buffer = bench.config, bench.layout, bench.parts, _full_buffer(bench)
    # Actor: forward on next and current states, twice forward's cost backward. Critics: targets forward; forward and
    # twice backward for the critic's loss; forward and once (inputs only) backward for the actor's.
    gflop = config.batch_size * (4 * bench.actor + 2 * 6 * bench.critic) / 1e9
    real = np.zeros((config.updates_per_step, int(config.real_ratio * config.batch_size), layout.width), np.float32)
    state = [bench.agent()]

    def call() -> int:
        state[0], metrics, _ = parts.improve(state[0], buffer, real, None, None, key(0, Purpose.IMPROVE))
        jax.block_until_ready(metrics)
        return config.updates_per_step

    return Phase(gflop, call)


def _ensemble_step() -> Phase:
    bench = _hopper()
    config, layout = bench.config, bench.layout
    dynamics = ensemble(config, layout, nll(config))
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    members, rows, batches = config.dynamics.num_members, config.dynamics.batch_size, 32
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal((8192, width), np.float32)) for width in (inputs, outputs))
    chosen = rng.integers(8192, size=(batches, members, rows), dtype=np.int32)
    model = dynamics.init(key(0, Purpose.MODEL_INIT))
    state = [(model.network, model.opt)]

    def call() -> int:
        ends = np.int32(0), np.int32(batches)
        state[0] = dynamics.compiled["train_epoch"](*state[0], EnsembleRows(x, y, x[:, :0]), chosen, *ends)
        jax.block_until_ready(state[0])
        return batches

    return Phase(3 * members * rows * bench.network / 1e9, call)


def _rollouts() -> Phase:
    bench = _hopper()
    rollouts, model, policy = bench.parts.rollouts, bench.model(), bench.agent().actor
    assert rollouts is not None
    count = bench.config.rollouts.batch
    starts = np.random.default_rng(0).standard_normal((count, bench.layout.obs_size), np.float32)
    held = [_full_buffer(bench)]

    def call() -> int:
        counts = np.int32(count), np.int32(1)
        held[0], stats = rollouts(model, policy, held[0], starts, *counts, key(0, Purpose.IMAGINE))
        jax.block_until_ready((held[0].rows, stats))
        return 1

    return Phase(count * (bench.actor + bench.network) / 1e9, call)


def _standardised_step() -> Phase:
    """Take one step of DHMBPO's model."""
    bench = _hopper("dhmbpo")
    config, layout, dynamics = bench.config, bench.layout, bench.parts.model.dynamics
    members, rows = config.dynamics.num_members, config.dynamics.batch_size
    batches, capacity = config.double.epoch_batches, 16_384
    rng = np.random.default_rng(0)
    widths = (layout.obs_size + layout.action_size, layout.obs_size + 1, members)
    data = StandardisedRows(*(jnp.asarray(rng.standard_normal((capacity, n), np.float32)) for n in widths))
    data = data._replace(bootstrap=jnp.abs(data.bootstrap))
    chosen = rng.integers(capacity, size=(batches, rows), dtype=np.int32)
    network = dynamics.init(key(0, Purpose.MODEL_INIT)).network
    state = [(network, ADAM.init(network))]

    def call() -> int:
        options = np.int32(batches), np.float32(config.double.reward_noise), key(0, Purpose.MODEL_ROWS)
        state[0] = dynamics.compiled["train_epoch"](*state[0], data, chosen, *options)
        jax.block_until_ready(state[0])
        return batches

    return Phase(3 * members * rows * bench.network / 1e9, call)


def _phase_of(bench: _Bench) -> UpdatePhase:
    assert bench.parts.recipe.update_phase is not None
    return bench.parts.recipe.update_phase


def _training_update(*, critics_only: bool) -> Phase:
    """Update all of DHMBPO's networks, or its critics only, from a full state buffer."""
    bench = _hopper("dhmbpo")
    config, phase, options = bench.config, _phase_of(bench), bench.config.agent
    steps, count = config.double.near, config.double.refresh
    # The rollout forward: actor one step further than the model; a few target critics at its end; all critics at its
    # beginning, forward and twice backward.
    flop = (steps + 1) * bench.actor + steps * bench.network
    flop += (options.subset + 3 * options.num_critics) * bench.critic
    if (
        not critics_only
    ):  # back through the rollout: twice for the actor, once, for its inputs, through model and critics
        flop += 2 * (steps + 1) * bench.actor + steps * bench.network + 2 * options.num_critics * bench.critic
    model, buffer = bench.model(), empty_state_buffer(config, bench.layout, 0)
    buffer = replace(buffer, rows=jax.random.normal(jax.random.key(0), buffer.rows.shape), size=buffer.capacity)
    state: list[Any] = [phase.begin(bench.agent(), model)]
    update = phase.compiled["critics_only" if critics_only else "all_networks"]

    def call() -> int:
        *state[0], metrics = update(*state[0], model, buffer, np.int32(count), key(0, Purpose.IMPROVE))
        jax.block_until_ready(metrics)
        return count

    return Phase(config.batch_size * flop / 1e9, call)


def _distribution_rollouts() -> Phase:
    bench = _hopper("dhmbpo")
    batch, model, policy = bench.config.batch_size, bench.model(), bench.agent().actor
    rollouts = _phase_of(bench).compiled["distribution_rollouts"]
    starts = jnp.ones((1, batch, bench.layout.obs_size))
    held = [empty_state_buffer(bench.config, bench.layout, 0)]

    def call() -> int:
        held[0], stats = rollouts(policy, model, held[0], starts, np.int32(1), key(0, Purpose.IMAGINE))
        jax.block_until_ready((held[0].rows, stats))
        return 1

    return Phase(batch * bench.config.double.far * (bench.actor + bench.network) / 1e9, call)


def _score(which: str, rows: int = 100_000) -> Phase:
    """Score real transitions, as PER (TD errors), RECALL (values) and MaPER (TD and model errors) do once per block."""
    bench = _hopper()
    flop = {
        "td_errors": bench.actor + 4 * bench.critic,
        "values": 2 * bench.critic,
        "model_errors": bench.network,
    }[which]
    data = np.random.default_rng(0).standard_normal((rows, bench.layout.width), np.float32)
    agent, model, scores, score_key = bench.agent(), bench.model(), bench.parts.scores, key(0, Purpose.TD_SCORES)
    call: dict[str, Callable[[], np.ndarray]] = {
        "td_errors": lambda: scores.td_errors(agent, data, score_key),
        "values": lambda: scores.values(agent, data),
        "model_errors": lambda: scores.model_errors(model, data, score_key),
    }
    return Phase(rows * flop / 1e9, lambda: min(1, len(call[which]())))


def _diagnose(steps: int = 1000) -> Phase:
    """Diagnose as a run with --diagnose does every 1000 steps: fresh steps, and three errors of the model."""
    bench = _hopper()
    layout, policy, model = bench.layout, bench.agent().actor, bench.model()
    env, measure, fresh = make_env(bench.config.env), diagnosis(layout), FreshReservoir(layout.width)
    past = np.random.default_rng(0).standard_normal((KEPT_ROWS, layout.width), np.float32)
    fresh.add(past, 0, 0)

    def call() -> int:
        probe = measure.collect(env, lambda obs, act_key: bench.parts.act(policy, obs, act_key), 0, 1, steps)
        measure.errors(model, probe.rows)
        measure.errors(model, fresh.rows)
        measure.compounding(model, probe)
        return 1

    rows = bench.config.dynamics.num_elites * (steps + KEPT_ROWS + WINDOWS * DEPTH)
    return Phase((steps * bench.actor + rows * bench.network) / 1e9, call)


def _reweight(policies: int, block: int = 250) -> Phase:
    """Compute PDML's shifts on sizes of Humanoid after a new block, with so many past policies."""
    config = defaults("Humanoid-v5").learning
    layout = spaces_of(config.env).layout
    agent = wire(config, layout, by_rule(RULES["Humanoid"])).recipe.agent
    actor = agent.init(key(0, Purpose.AGENT_INIT)).actor
    forward = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    reservoir = config.mixture.reservoir
    estimate = estimator(config.mixture, layout.action_size, 0)
    history = PolicyHistory(agent.head, actor, layout, reservoir, 0, estimate)
    total = config.warmup_steps + policies * block
    obs = np.random.default_rng(0).standard_normal((total, layout.obs_size), np.float32)
    for i in range(policies - 1):
        history.push(jax.tree.map(lambda leaf, i=i: leaf * (1.0 + 1e-4 * i), actor))
    history.shifts(obs, total - block)

    def call() -> int:
        """Continue by one block: a new snapshot and 250 new states."""
        history.push(actor)
        seen = config.warmup_steps + history.count * block
        history.shifts(obs, seen)
        return 1

    replaced = reservoir * block / total
    return Phase((reservoir + (policies - 1) * replaced) * forward / 1e9, call)
