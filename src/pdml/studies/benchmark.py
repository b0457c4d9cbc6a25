"""Speed of each phase in percent of the machine's own float32 matmul peak, so that a number means the same everywhere.

GFLOP counts 2 m n k of the products that the mathematics needs. Times are the best of several, as is the peak, which is
taken before and after each phase: on a shared machine the best is what repeats.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from pdml.agents.sac import Lesson
from pdml.config.schema import DOUBLE, MODEL_FREE, change, defaults
from pdml.core.rng import Purpose, key
from pdml.core.stopwatch import PHASES, Stopwatch
from pdml.dhmbpo import model
from pdml.dhmbpo.learner import empty as double_ring
from pdml.dhmbpo.learner import ring_rows
from pdml.envs.gym import advance, begin, make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.models.fit import FitRows, ensemble
from pdml.models.losses import nll
from pdml.models.rollouts import Imagined, empty, sizes
from pdml.runs.session import spaces_of
from pdml.training.diagnostics import DEPTH, KEPT_ROWS, WINDOWS, Probes, diagnosis
from pdml.training.loop import TrainState, init, train, wire
from pdml.training.methods import World
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import History

PEAK_SIZE = 2048


def products(sizes: Sequence[int]) -> float:
    """Return the FLOP of one forward pass of one row."""
    return 2.0 * sum(n * m for n, m in pairwise(sizes))


def measure(threads: int, repeats: int = 12) -> dict[str, Any]:
    """Measure all phases."""
    phases = []
    peaks = [_peak()]
    for name, (gflop, call) in _phases().items():
        call()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            divisor = call()
            times.append((time.perf_counter() - start) / divisor)
        peaks.append(_peak())
        gflops = gflop / min(times)
        percent = 100.0 * gflops / max(peaks[-2:])
        phases.append(
            {
                "phase": name,
                "ms": round(1e3 * min(times), 3),
                "gflop": round(gflop, 3),
                "gflops": round(gflops, 1),
                "percent_of_peak": round(percent, 1),
            }
        )
    return {"peak_gflops": round(max(peaks), 1), "threads": threads, "phases": phases}


def measure_method(method: str, threads: int, rows: int = 20_000, repeats: int = 4) -> dict[str, Any]:
    """Measure what a real step of a method costs, phase by phase, next to a step of MBPO.

    Both go through the training loop on Hopper with the same real rows and as many blocks of past policies, fits of
    ten epochs, and turns about; fits of double-horizon learning take all the epochs that they may, as nearly all of
    them do in runs. A phase's time is the best of several, of single steps where it happens at every step; what
    happens once a block is divided by the block's steps.
    """
    loops = {name: _loop(name, rows) for name in dict.fromkeys(("mbpo", method))}
    best = {name: dict.fromkeys(PHASES, np.inf) for name in loops}
    for go in loops.values():
        go()
    for _ in range(repeats):
        for name, go in loops.items():
            times = go()
            best[name] = {phase: min(best[name][phase], times[phase]) for phase in PHASES}
    phases = [
        {"phase": phase, "ms": round(best[method][phase], 3), "mbpo_ms": round(best["mbpo"][phase], 3)}
        for phase in PHASES
        if phase not in ("evaluate", "diagnose", "save")
    ]
    total, base = (sum(row[column] for row in phases) for column in ("ms", "mbpo_ms"))
    phases.append({"phase": "total", "ms": round(total, 3), "mbpo_ms": round(base, 3)})
    return {"method": method, "threads": threads, "real_rows": rows, "ratio": round(total / base, 3), "phases": phases}


def method_table(result: dict[str, Any]) -> str:
    """Lay the cost of a method out for a person."""
    lines = [f"a real step on Hopper with {result['real_rows']} real rows, {result['threads']} thread(s)"]
    lines.append(f"{'phase':16s}{result['method'] + ', ms':>24s}{'mbpo, ms':>12s}")
    lines += [f"{row['phase']:16s}{row['ms']:24.2f}{row['mbpo_ms']:12.2f}" for row in result["phases"]]
    lines.append(f"{result['method']} costs {result['ratio']:.3f} times as much as mbpo")
    return "\n".join(lines)


def _loop(method: str, rows: int, steps: int = 20) -> Callable[[], dict[str, float]]:
    """Return a call that goes through the opening of a block and a few of its steps, and says ms a step by phase."""
    config = defaults("Hopper-v5", method)
    if method not in MODEL_FREE:
        epochs = config.dynamics.max_epochs if method in DOUBLE else 10
        config = change(config, {"dynamics.max_epochs": epochs, "dynamics.patience": epochs})
    config = change(config, {"replay_capacity": 2 * rows})
    layout = spaces_of(config.env).layout
    env, parts = make_env(config.env), wire(config, layout, by_rule(RULES["Hopper"]))
    state = init(config, layout, parts, begin(env, config.seed, 0))
    blocks = (rows - config.warmup_steps) // config.model_every
    for number in range(rows):
        action = np.random.default_rng(number).uniform(-1.0, 1.0, layout.action_size).astype(np.float32)
        state.episode, step = advance(env, 0, state.episode, action)
        block = max(0, 1 + (number - config.warmup_steps) // config.model_every)
        state.replay.add(step.obs, step.action, step.reward, step.next_obs, step.terminated, block)
    if parts.recipe.world is not None:
        for i in range(blocks):
            state.history.push(jax.tree.map(lambda leaf, i=i: leaf * (1.0 + 1e-3 * i), state.agent.actor))
    if state.imagined is not None:  # a full ring, as a run has after its first epoch
        capacity = jnp.asarray(sizes(config, 1)[0] if parts.recipe.lesson is None else ring_rows(config), jnp.int32)
        state.imagined = replace(state.imagined, capacity=capacity, size=jnp.array(capacity, copy=True))
        state.mixing.imagined(state.imagined, int(capacity))
    state.step = config.warmup_steps + blocks * config.model_every
    every_step = ("collect", "improve")
    if parts.recipe.lesson is not None:  # which comes at the end of a block
        every_step, steps = ("collect",), config.model_every

    def call() -> dict[str, float]:
        clock, spent = Stopwatch(), {phase: [0.0] for phase in every_step}

        def after_step(state: TrainState) -> None:
            for phase, totals in spent.items():
                totals.append(clock.seconds[phase])

        train(state, env, parts, change(config, {"steps": state.step + steps}), clock, after_step)
        state.step += config.model_every - steps
        opening = {phase: 1e3 * seconds / config.model_every for phase, seconds in clock.seconds.items()}
        return opening | {phase: 1e3 * float(np.diff(totals).min()) for phase, totals in spent.items()}

    return call


def table(result: dict[str, Any]) -> str:
    """Lay the result out for a person."""
    lines = [f"peak {result['peak_gflops']} GFLOP/s with {result['threads']} thread(s)"]
    lines.append(f"{'phase':18s}{'ms':>10s}{'GFLOP':>10s}{'GFLOP/s':>10s}{'% of peak':>11s}")
    for row in result["phases"]:
        lines.append(
            f"{row['phase']:18s}{row['ms']:10.2f}{row['gflop']:10.2f}{row['gflops']:10.1f}{row['percent_of_peak']:11.1f}"
        )
    return "\n".join(lines)


def _peak() -> float:
    """Return the best GFLOP/s of a large product, by NumPy or JAX."""
    x = np.random.default_rng(0).random((PEAK_SIZE, PEAK_SIZE), np.float32)
    y = jnp.asarray(x)
    product = jax.jit(lambda a: a @ a)
    product(y).block_until_ready()
    best = np.inf
    for _ in range(6):
        for call in (lambda: x @ x, lambda: product(y).block_until_ready()):
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return 2.0 * PEAK_SIZE**3 / best / 1e9


def _phases() -> dict[str, tuple[float, Callable[[], int]]]:
    """Return for each phase its GFLOP and a call that runs it and says how many it ran."""
    return {
        "sac_update": _sac_update(),
        "ensemble_step": _ensemble_step(),
        "imagine_100k": _imagine(),
        "reweight_1200": _reweight(policies=1200),
        "td_errors_100k": _score("td_errors"),
        "values_100k": _score("values"),
        "model_errors_100k": _score("model_errors"),
        "diagnose_1000": _diagnose(),
        "smooth_model_step": _smooth_model_step(),
        "near_update": _near_update(alone=False),
        "near_critic_update": _near_update(alone=True),
        "far_rollout": _far_rollout(),
    }


def _hopper():
    config = defaults("Hopper-v5")
    layout = spaces_of(config.env).layout
    parts = wire(config, layout, by_rule(RULES["Hopper"]))
    rows = jax.random.normal(jax.random.key(0), (400_000, layout.width))
    ring = empty(config, layout)
    capacity, size = jnp.asarray(400_000, jnp.int32), jnp.array(400_000, jnp.int32)
    ring = Imagined(ring.rows.at[:400_000].set(rows), capacity, ring.position, size)
    return config, layout, parts, ring


def _sac_update() -> tuple[float, Callable[[], int]]:
    config, layout, parts, ring = _hopper()
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    critic = products((layout.obs_size + layout.action_size, *config.agent.hidden_sizes, 1))
    # Actor: forward on next and current states, twice forward's cost backward. Critics: targets forward; forward and
    # twice backward for the critic's loss; forward and once (inputs only) backward for the actor's.
    gflop = config.batch_size * (4 * actor + 2 * 6 * critic) / 1e9
    real = np.zeros((config.updates_per_step, int(config.real_ratio * config.batch_size), layout.width), np.float32)
    state = [parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))]

    def call() -> int:
        state[0], metrics, _ = parts.improve(state[0], ring, real, None, None, key(0, Purpose.IMPROVE))
        jax.block_until_ready(metrics)
        return config.updates_per_step

    return gflop, call


def _ensemble_step() -> tuple[float, Callable[[], int]]:
    config, layout, _, _ = _hopper()
    dynamics = ensemble(config, layout, nll(config))
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    network = products((inputs, *config.dynamics.hidden_sizes, 2 * outputs))
    members, rows, batches = config.dynamics.num_members, config.dynamics.batch_size, 32
    drawn = np.random.default_rng(0)
    x, y = (jnp.asarray(drawn.standard_normal((8192, width), np.float32)) for width in (inputs, outputs))
    chosen = drawn.integers(8192, size=(batches, members, rows), dtype=np.int32)
    model = dynamics.init(key(0, Purpose.MODEL_INIT))
    state = [(model.network, model.opt)]

    def call() -> int:
        ends = np.int32(0), np.int32(batches)
        state[0] = dynamics.jitted["train_epoch"](*state[0], FitRows(x, y, x[:, :0]), chosen, *ends)
        jax.block_until_ready(state[0])
        return batches

    return 3 * members * rows * network / 1e9, call


def _imagine() -> tuple[float, Callable[[], int]]:
    config, layout, parts, ring = _hopper()
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    network = products((layout.obs_size + layout.action_size, *config.dynamics.hidden_sizes, 2 * (layout.obs_size + 1)))
    world, imagine = cast(World, parts.recipe.world), cast(Callable[..., tuple], parts.imagine)
    model = world.dynamics.init(key(0, Purpose.MODEL_INIT))
    policy = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor
    count = config.rollouts.batch
    starts = np.random.default_rng(0).standard_normal((count, layout.obs_size), np.float32)
    held = [ring]

    def call() -> int:
        held[0], stats = imagine(model, policy, held[0], starts, np.int32(count), np.int32(1), key(0, Purpose.IMAGINE))
        jax.block_until_ready((held[0].rows, stats))
        return 1

    return count * (actor + network) / 1e9, call


def _double():
    """Return what double-horizon learning on Hopper needs, and the FLOP of a row of actor, critic and network."""
    config = defaults("Hopper-v5", "dhmbpo")
    layout = spaces_of(config.env).layout
    parts = wire(config, layout, by_rule(RULES["Hopper"]))
    pair = layout.obs_size + layout.action_size
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    critic = products((pair, *config.agent.hidden_sizes, 1))
    network = products((pair, *config.dynamics.hidden_sizes, layout.obs_size + 1))
    return config, layout, parts, (actor, critic, network)


def _smooth_model_step() -> tuple[float, Callable[[], int]]:
    config, layout, parts, (_, _, network) = _double()
    dynamics, members = cast(World, parts.recipe.world).dynamics, config.dynamics.num_members
    batches, rows, capacity = config.double.epoch_batches, config.dynamics.batch_size, 16_384
    drawn = np.random.default_rng(0)
    widths = (layout.obs_size + layout.action_size, layout.obs_size + 1, members)
    data = model.FitRows(*(jnp.asarray(drawn.standard_normal((capacity, n), np.float32)) for n in widths))
    data = data._replace(counted=jnp.abs(data.counted))
    chosen = drawn.integers(capacity, size=(batches, rows), dtype=np.int32)
    network_state = dynamics.init(key(0, Purpose.MODEL_INIT)).network
    state = [(network_state, model.ADAM.init(network_state))]

    def call() -> int:
        settings = np.int32(batches), np.float32(config.double.reward_noise), key(0, Purpose.MODEL_ROWS)
        state[0] = dynamics.jitted["train_epoch"](*state[0], data, chosen, *settings)
        jax.block_until_ready(state[0])
        return batches

    return 3 * members * rows * network / 1e9, call


def _near_update(*, alone: bool) -> tuple[float, Callable[[], int]]:
    """Update everything, or the critics alone, from a full ring."""
    config, layout, parts, (actor, critic, network) = _double()
    lesson, options, agent = cast(Lesson, parts.recipe.lesson), config.agent, parts.recipe.agent
    steps, count = config.double.near, config.double.refresh
    # The rollout forward: actor one step further than the model; a few target critics at its end; all critics at its
    # beginning, forward and twice backward.
    flop = (steps + 1) * actor + steps * network + (options.subset + 3 * options.num_critics) * critic
    if not alone:  # back through the rollout: twice for the actor, once, for its inputs, through model and critics
        flop += 2 * (steps + 1) * actor + steps * network + 2 * options.num_critics * critic
    model = cast(World, parts.recipe.world).dynamics.init(key(0, Purpose.MODEL_INIT))
    ring = double_ring(config, layout)
    ring = replace(ring, rows=jax.random.normal(jax.random.key(0), ring.rows.shape), size=ring.capacity)
    state = [lesson.begin(agent.init(key(0, Purpose.AGENT_INIT)), model)]
    update = lesson.jitted["critics_alone" if alone else "everything"]

    def call() -> int:
        *state[0], metrics = update(*state[0], model, ring, np.int32(count), key(0, Purpose.IMPROVE))
        jax.block_until_ready(metrics)
        return count

    return config.batch_size * flop / 1e9, call


def _far_rollout() -> tuple[float, Callable[[], int]]:
    config, layout, parts, (actor, _, network) = _double()
    lesson, batch = cast(Lesson, parts.recipe.lesson), config.batch_size
    model = cast(World, parts.recipe.world).dynamics.init(key(0, Purpose.MODEL_INIT))
    policy = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor
    starts = jnp.ones((1, batch, layout.obs_size))
    held = [double_ring(config, layout)]

    def call() -> int:
        held[0], stats = lesson.jitted["far"](policy, model, held[0], starts, np.int32(1), key(0, Purpose.IMAGINE))
        jax.block_until_ready((held[0].rows, stats))
        return 1

    return batch * config.double.far * (actor + network) / 1e9, call


def _score(which: str, rows: int = 100_000) -> tuple[float, Callable[[], int]]:
    """Score real rows, as PER (TD errors), RECALL (values) and MaPER (TD and model errors) do once a block."""
    config, layout, parts, _ = _hopper()
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    critic = products((layout.obs_size + layout.action_size, *config.agent.hidden_sizes, 1))
    network = products((layout.obs_size + layout.action_size, *config.dynamics.hidden_sizes, 2 * (layout.obs_size + 1)))
    flop = {"td_errors": actor + 4 * critic, "values": 2 * critic, "model_errors": network}[which]
    data = np.random.default_rng(0).standard_normal((rows, layout.width), np.float32)
    agent = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
    model = cast(World, parts.recipe.world).dynamics.init(key(0, Purpose.MODEL_INIT))
    draw, scoring = key(0, Purpose.TD_SCORES), parts.scoring
    call: dict[str, Callable[[], np.ndarray]] = {
        "td_errors": lambda: scoring.td_errors(agent, data, draw),
        "values": lambda: scoring.values(agent, data),
        "model_errors": lambda: scoring.model_errors(model, data, draw),
    }
    return rows * flop / 1e9, lambda: min(1, len(call[which]()))


def _diagnose(steps: int = 1000) -> tuple[float, Callable[[], int]]:
    """Diagnose as a run with --diagnose does every 1000 steps: fresh steps, and three errors of the model."""
    config, layout, parts, _ = _hopper()
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    network = products((layout.obs_size + layout.action_size, *config.dynamics.hidden_sizes, 2 * (layout.obs_size + 1)))
    policy = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor
    model = cast(World, parts.recipe.world).dynamics.init(key(0, Purpose.MODEL_INIT))
    env, measure, probes = make_env(config.env), diagnosis(layout), Probes(layout.width)
    past = np.random.default_rng(0).standard_normal((KEPT_ROWS, layout.width), np.float32)
    probes.add(past, 0, 0)

    def call() -> int:
        probe = measure.collect(env, lambda obs, draw: parts.act(policy, obs, draw), 0, 1, steps)
        measure.errors(model, probe.rows)
        measure.errors(model, probes.rows)
        measure.compounding(model, probe)
        return 1

    rows = config.dynamics.num_elites * (steps + KEPT_ROWS + WINDOWS * DEPTH)
    return (steps * actor + rows * network) / 1e9, call


def _reweight(policies: int, block: int = 250) -> tuple[float, Callable[[], int]]:
    config = defaults("Humanoid-v5")
    layout = spaces_of(config.env).layout
    agent = wire(config, layout, by_rule(RULES["Humanoid"])).recipe.agent
    actor = agent.init(key(0, Purpose.AGENT_INIT)).actor
    forward = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    reservoir = config.mixture.reservoir
    history = History(agent.head, actor, layout, reservoir, 0, estimator(config.mixture, layout.action_size, 0))
    total = config.warmup_steps + policies * block
    obs = np.random.default_rng(0).standard_normal((total, layout.obs_size), np.float32)
    for i in range(policies - 1):
        history.push(jax.tree.map(lambda leaf, i=i: leaf * (1.0 + 1e-4 * i), actor))
    history.shifts(obs, total - block)

    def call() -> int:
        """Go on by one block: a new snapshot and 250 new states."""
        history.push(actor)
        seen = config.warmup_steps + history.count * block
        history.shifts(obs, seen)
        return 1

    replaced = reservoir * block / total
    return (reservoir + (policies - 1) * replaced) * forward / 1e9, call
