"""Speed of each phase in percent of the machine's own float32 matmul peak, so that a number means the same everywhere.

GFLOP counts 2 m n k of the products that the mathematics needs. Times are the best of several, as is the peak, which is
taken before and after each phase: on a shared machine the best is what repeats.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdml.algorithm import wire
from pdml.config import defaults
from pdml.dynamics import ensemble
from pdml.history import History
from pdml.imagination import Imagined, empty
from pdml.randomness import Purpose, key
from pdml.runner import layout_of
from pdml.termination import RULES

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


def table(result: dict[str, Any]) -> str:
    """Lay the result out for a person."""
    lines = [f"peak {result['peak_gflops']} GFLOP/s with {result['threads']} thread(s)"]
    lines.append(f"{'phase':16s}{'ms':>10s}{'GFLOP':>10s}{'GFLOP/s':>10s}{'% of peak':>11s}")
    for row in result["phases"]:
        lines.append(
            f"{row['phase']:16s}{row['ms']:10.2f}{row['gflop']:10.2f}{row['gflops']:10.1f}{row['percent_of_peak']:11.1f}"
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
    }


def _hopper():
    config = defaults("Hopper-v5")
    layout = layout_of(config)
    parts = wire(config, layout, RULES["Hopper"])
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
    real = np.zeros((config.updates_per_step, config.real_rows, layout.width), np.float32)
    state = [parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))]

    def call() -> int:
        state[0], metrics = parts.improve(state[0], ring, real, key(0, Purpose.IMPROVE))
        jax.block_until_ready(metrics)
        return config.updates_per_step

    return gflop, call


def _ensemble_step() -> tuple[float, Callable[[], int]]:
    config, layout, _, _ = _hopper()
    dynamics = ensemble(config.dynamics, layout, 0)
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    network = products((inputs, *config.dynamics.hidden_sizes, 2 * outputs))
    members, rows, batches = config.dynamics.num_members, config.dynamics.batch_size, 32
    drawn = np.random.default_rng(0)
    x = drawn.standard_normal((8192, inputs), np.float32)
    y = drawn.standard_normal((8192, outputs), np.float32)
    chosen = drawn.integers(8192, size=(batches, members, rows), dtype=np.int32)
    model = dynamics.init(key(0, Purpose.MODEL_INIT))
    state = [(model.network, model.opt)]

    def call() -> int:
        state[0] = dynamics.jitted["train_epoch"](*state[0], x, y, chosen, np.int32(batches))
        jax.block_until_ready(state[0])
        return batches

    return 3 * members * rows * network / 1e9, call


def _imagine() -> tuple[float, Callable[[], int]]:
    config, layout, parts, ring = _hopper()
    actor = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    network = products((layout.obs_size + layout.action_size, *config.dynamics.hidden_sizes, 2 * (layout.obs_size + 1)))
    model = parts.recipe.dynamics.init(key(0, Purpose.MODEL_INIT))
    policy = parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor
    count = config.rollouts.batch
    starts = np.random.default_rng(0).standard_normal((count, layout.obs_size), np.float32)
    held = [ring]

    def call() -> int:
        held[0], stats = parts.imagine(
            model, policy, held[0], starts, np.int32(count), np.int32(1), key(0, Purpose.IMAGINE)
        )
        jax.block_until_ready((held[0].rows, stats))
        return 1

    return count * (actor + network) / 1e9, call


def _reweight(policies: int, block: int = 250) -> tuple[float, Callable[[], int]]:
    config = defaults("Humanoid-v5")
    layout = layout_of(config)
    agent = wire(config, layout, RULES["Humanoid"]).recipe.agent
    actor = agent.init(key(0, Purpose.AGENT_INIT)).actor
    forward = products((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    reservoir = config.mixture.reservoir
    history = History(actor, layout.obs_size, reservoir, 0)
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
