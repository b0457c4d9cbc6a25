"""Speed: each phase in percent of the machine's own matmul peak, and what a real step of a method costs.

Times are the best of several, and so is the peak, which is measured before and after each phase: on a shared machine
the best is what repeats.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.defaults import defaults
from pdml.config.fields import change_learning
from pdml.config.methods import BASELINE, METHODS
from pdml.config.parse import arm_name
from pdml.config.schema import Config
from pdml.core.stopwatch import PHASES, Stopwatch
from pdml.data.model_buffer import branch_sizes
from pdml.dhmbpo.learner import state_buffer_rows
from pdml.envs.env_spec import spaces_of
from pdml.envs.episode import Step, advance_episode, begin_episode
from pdml.envs.gym import make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.runs.device import device_name, matmul_peak
from pdml.studies.bench_phases import bench_phases
from pdml.training.loop import Training, train
from pdml.training.methods import wire
from pdml.training.state import TrainState, initial_state


def measure(threads: int, repeats: int = 12) -> dict[str, Any]:
    """Measure all phases."""
    phases = []
    peaks = [matmul_peak() / 1e9]
    for name, (gflop, call) in bench_phases().items():
        call()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            divisor = call()
            times.append((time.perf_counter() - start) / divisor)
        peaks.append(matmul_peak() / 1e9)
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
    return {"device": device_name(), "peak_gflops": round(max(peaks), 1), "threads": threads, "phases": phases}


def measure_method(
    method: str, threads: int, changes: Mapping[str, Any] | None = None, rows: int = 20_000, repeats: int = 4
) -> dict[str, Any]:
    """Measure what a real step of a method costs, phase by phase, next to a step of MBPO.

    With changed settings, next to a step of the method with its own. Both go through the training loop on Hopper, in
    turn, with the same real transitions, as many past policies, and fits of ten epochs. Fits of DHMBPO take all their
    epochs, as nearly all of them do in runs. A phase's time is the best of several. What happens once per block is
    divided by the block's steps.
    """
    changes = changes or {}
    name, base_name = arm_name(method, changes), method if changes else BASELINE
    arms: dict[str, tuple[str, Mapping[str, Any]]] = {base_name: (base_name, {}), name: (method, changes)}
    loops = {each: step_times(of, rows, changed) for each, (of, changed) in arms.items()}
    best: dict[str, dict[str, float]] = {each: dict.fromkeys(PHASES, np.inf) for each in loops}
    for go in loops.values():
        go()
    for _ in range(repeats):
        for each, go in loops.items():
            times = go()
            best[each] = {phase: min(best[each][phase], times[phase]) for phase in PHASES}
    counted: list[str] = [phase for phase in PHASES if phase not in ("evaluate", "diagnose", "save")]
    own, base = ({phase: round(best[each][phase], 3) for phase in counted} for each in (name, base_name))
    total, base_total = sum(own.values()), sum(base.values())
    phases: list[dict[str, Any]] = [{"phase": phase, "ms": own[phase], "base_ms": base[phase]} for phase in counted]
    phases.append({"phase": "total", "ms": round(total, 3), "base_ms": round(base_total, 3)})
    measured = {"real_rows": rows, "ratio": round(total / base_total, 3), "phases": phases}
    return {"device": device_name(), "method": name, "base": base_name, "threads": threads, **measured}


def method_table(result: dict[str, Any]) -> str:
    """Format the cost of a method."""
    lines = [
        f"device {result['device']}",
        f"a real step on Hopper with {result['real_rows']} real rows, {result['threads']} thread(s)",
    ]
    titles = [f"{result[key]}, ms" for key in ("method", "base")]
    wide, narrow = max(24, len(titles[0]) + 2), max(12, len(titles[1]) + 2)
    lines.append(f"{'phase':16s}{titles[0]:>{wide}s}{titles[1]:>{narrow}s}")
    lines += [f"{row['phase']:16s}{row['ms']:{wide}.2f}{row['base_ms']:{narrow}.2f}" for row in result["phases"]]
    lines.append(f"{result['method']} costs {result['ratio']:.3f} times as much as {result['base']}")
    return "\n".join(lines)


def step_times(
    method: str, rows: int, changes: Mapping[str, Any] | None = None, steps: int = 20
) -> Callable[[], dict[str, float]]:
    """Return a call that goes through the beginning of a block and a few of its steps; it returns ms per step."""
    record, changes = METHODS[method], changes or {}
    config = change_learning(defaults("Hopper-v5", method).learning, {"replay_capacity": 2 * rows, **changes})
    if record.has_model:
        all_epochs = record.is_double_horizon or "dynamics.max_epochs" in changes
        epochs = config.dynamics.max_epochs if all_epochs else 10
        config = change_learning(config, {"dynamics.max_epochs": epochs, "dynamics.patience": epochs})
    env, parts = make_env(config.env), wire(config, spaces_of(config.env).layout, by_rule(RULES["Hopper"]))
    training = Training(config, parts, Stopwatch())
    state = _filled_state(training, env, rows)
    every_step, steps = ("collect", "improve"), min(steps, config.model_every)
    if record.is_double_horizon:  # it learns at the end of a block
        every_step, steps = ("collect",), config.model_every
    held = [state]

    def call() -> dict[str, float]:
        clock = Stopwatch()
        spent = {phase: [0.0] for phase in every_step}

        def after_step(state: TrainState, step: Step) -> None:
            for phase, totals in spent.items():
                totals.append(clock.seconds[phase])

        state = train(held[0], env, training._replace(clock=clock), held[0].step + steps, after_step)
        held[0] = replace(state, step=state.step + config.model_every - steps)
        per_block = {phase: 1e3 * seconds / config.model_every for phase, seconds in clock.seconds.items()}
        return per_block | {phase: 1e3 * float(np.diff(totals).min()) for phase, totals in spent.items()}

    return call


def _filled_state(training: Training, env: Any, rows: int) -> TrainState:
    """Return a state as after so many real steps: replay buffer, past policies and model buffer are full."""
    config, recipe = training.config, training.parts.recipe
    layout, schedule = spaces_of(config.env).layout, config.schedule
    episode = begin_episode(env, config.seed, 0)
    state = initial_state(config, layout, recipe, episode, steps=config.warmup_steps)
    for number in range(rows):
        action = np.random.default_rng(number).uniform(-1.0, 1.0, layout.action_size).astype(np.float32)
        episode, step = advance_episode(env, 0, episode, action)
        state.replay.add(step.obs, step.action, step.reward, step.next_obs, step.terminated, schedule.block(number))
    if recipe.model is not None:
        for i in range(schedule.blocks(rows)):
            state.history.push(jax.tree.map(lambda leaf, i=i: leaf * (1.0 + 1e-3 * i), state.agent.actor))
    buffer = state.model_buffer
    if buffer is not None:
        capacity = jnp.asarray(_buffer_capacity(config), jnp.int32)
        buffer = replace(buffer, capacity=capacity, size=jnp.array(capacity, copy=True))
        state.minibatches.note_new_rows(buffer, int(capacity))
    step = config.warmup_steps + schedule.blocks(rows) * config.model_every
    return replace(state, step=step, episode=episode, model_buffer=buffer)


def _buffer_capacity(config: Config) -> int:
    """Return how many rows the model buffer has in a run after its first epoch."""
    return state_buffer_rows(config) if METHODS[config.method].is_double_horizon else branch_sizes(config, 1)[0]


def phase_table(result: dict[str, Any]) -> str:
    """Format the speed of all phases."""
    lines = [f"device {result['device']}", f"peak {result['peak_gflops']} GFLOP/s with {result['threads']} thread(s)"]
    lines.append(f"{'phase':18s}{'ms':>10s}{'GFLOP':>10s}{'GFLOP/s':>10s}{'% of peak':>11s}")
    for row in result["phases"]:
        lines.append(
            f"{row['phase']:18s}{row['ms']:10.2f}{row['gflop']:10.2f}{row['gflops']:10.1f}{row['percent_of_peak']:11.1f}"
        )
    return "\n".join(lines)
