"""A run from a configuration to a finished directory, and the evaluation of a finished one."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import gymnasium
import jax
import numpy as np
from tensorboardX import SummaryWriter

from pdml import checkpoint, rundir
from pdml.algorithm import Parts, TrainState, init, train, wire
from pdml.config import Config
from pdml.diagnostics import diagnosis
from pdml.envs import make_env
from pdml.errors import UserError
from pdml.evaluation import EpisodeResult, evaluate
from pdml.model import ModelState
from pdml.progress import Watcher
from pdml.randomness import Purpose, key
from pdml.settings import check, read_config
from pdml.tasks import find_task
from pdml.termination import RULES
from pdml.timing import Stopwatch, peak_memory_mb
from pdml.transition import Layout
from pdml.tree import flatten, unflatten


def layout_of(config: Config) -> Layout:
    """Return the sizes of a configuration's environment."""
    task = find_task(config.env)
    return Layout(task.obs_size, task.action_size)


def build(config: Config) -> tuple[gymnasium.Env, Layout, Parts]:
    """Make the training environment and wire the method."""
    layout = layout_of(config)
    rule = RULES[config.env.rpartition("-")[0]]
    return make_env(config.env), layout, wire(config, layout, rule)


class Recorder:
    """Called after every step: writes a row a block, evaluates, archives."""

    def __init__(self, path: Path, config: Config, parts: Parts, clock: Stopwatch):
        self._path, self._config, self._clock = path, config, clock
        self._progress = rundir.Table(path / "progress.csv")
        self._evaluations = rundir.Table(path / "evaluations.csv")
        self._timing = rundir.Table(path / "timing.csv")
        self._board = SummaryWriter(str(path), flush_secs=30)
        self._watcher = Watcher(config.steps, config.warmup_steps)
        self._envs = [make_env(config.env) for _ in range(config.eval_episodes)]
        self._mode = jax.jit(parts.recipe.agent.mode)
        self._diagnoser = Diagnoser(path, config, parts, self._board) if config.diagnose else None
        self._last = clock.total()

    def __call__(self, state: TrainState) -> None:
        """Record what this step calls for."""
        learned = state.step - self._config.warmup_steps
        results = []
        if learned > 0 and state.step % self._config.eval_every == 0:
            results = self._evaluate(state)
        if learned > 0 and self._diagnoser is not None and state.step % self._config.diagnose_every == 0:
            with self._clock("diagnose"):
                self._diagnoser(state)
        if learned > 0 and (learned % self._config.model_every == 0 or state.step == self._config.steps):
            self._write(state)
        if results:
            self._watcher.evaluation(state.step, results, self._clock.total())
        if state.step in self._config.archive_at:
            archive(state, self._path / "archive" / f"step_{state.step:08d}.safetensors")
        self._watcher.step(state.step)

    def _evaluate(self, state: TrainState) -> list[EpisodeResult]:
        """Evaluate the deterministic policy, or report the training episodes of late."""
        save_policy(state, self._path / "policy.safetensors")
        if self._envs:
            with self._clock("evaluate"):
                results = evaluate(
                    self._envs,
                    lambda obs, time: np.asarray(self._mode(state.agent.actor, obs)),
                    self._config.seed,
                    state.step,
                )
            state.evaluation_steps += sum(result.length for result in results)
        else:
            results = [EpisodeResult(*finished) for finished in state.recent]
        state.recent = []
        if results:
            state.log.evaluated = float(np.mean([result.total for result in results]))
        rows = [
            {"step": state.step, "episode": i, "return": result.total, "length": result.length}
            for i, result in enumerate(results)
        ]
        if rows:
            self._evaluations.add(*rows)
        return results

    def _write(self, state: TrainState) -> None:
        """Write the row of a block, which is short only at the end of a run."""
        length = (state.step - self._config.warmup_steps - 1) % self._config.model_every + 1
        finished = [total for total, _ in state.log.finished]
        row = {
            "step": state.step,
            "steps_after_warmup": state.step - self._config.warmup_steps,
            "evaluation_steps": state.evaluation_steps,
            "train/episodes": len(finished),
            "train/return": float(np.mean(finished)) if finished else float("nan"),
            "eval/return": state.log.evaluated,
        }
        row |= state.log.metrics
        row |= {name: total / state.log.improved for name, total in state.log.sums.items()}
        self._progress.add(row)
        seconds = {name: round(value, 3) for name, value in self._clock.seconds.items()}
        now = self._clock.total()
        rate = length / max(now - self._last, 1e-9)
        self._last = now
        self._timing.add(
            {
                "step": state.step,
                "seconds": round(now, 3),
                "steps_per_second": round(rate, 3),
                "peak_memory_mb": round(peak_memory_mb()),
                **seconds,
            }
        )
        for name, value in row.items():
            if "/" in name and np.isfinite(value):
                self._board.add_scalar(name, value, state.step)
        self._board.add_scalar("time/steps_per_second", rate, state.step)
        self._watcher.block(state.log.metrics.get("model/holdout_error"), rate)
        if state.log.shares:
            opened = state.step - length
            shares = {name: np.array(values, np.float32) for name, values in state.log.shares.items()}
            (self._path / "blocks").mkdir(exist_ok=True)
            checkpoint.write_arrays(self._path / "blocks" / f"step_{opened:08d}.safetensors", shares, {"step": opened})

    def close(self) -> None:
        """Flush and let go."""
        self._watcher.close()
        self._board.close()
        for env in self._envs:
            env.close()
        if self._diagnoser is not None:
            self._diagnoser.close()


class Diagnoser:
    """Takes fresh steps of the current policy in an environment of its own and writes the model's errors on them."""

    def __init__(self, path: Path, config: Config, parts: Parts, board: SummaryWriter):
        self._config, self._act, self._board = config, parts.act, board
        self._env = make_env(config.env)
        self._measure = diagnosis(layout_of(config))
        self._table = rundir.Table(path / "diagnostics.csv")

    def __call__(self, state: TrainState) -> None:
        """Diagnose the current policy and model."""
        seed, count = self._config.seed, self._config.diagnose_steps
        model = cast(ModelState, state.model)

        def act(obs: np.ndarray, draw: jax.Array) -> jax.Array:
            return self._act(state.agent.actor, obs, draw)

        probe = self._measure.collect(self._env, act, seed, state.step, count)
        state.probes.add(probe.rows, seed, state.step)
        current, overall = self._measure.errors(model, probe.rows), self._measure.errors(model, state.probes.rows)
        values = {
            "current_l2": current.l2,
            "current_mse": current.mse,
            "overall_l2": overall.l2,
            "overall_mse": overall.mse,
        }
        values |= {
            f"compounding_{h:02d}": float(error)
            for h, error in enumerate(self._measure.compounding(model, probe), start=1)
        }
        counts = {
            "step": state.step,
            "steps_after_warmup": state.step - self._config.warmup_steps,
            "diagnosis_steps": state.probes.count,
            "overall_rows": len(state.probes.rows),
        }
        self._table.add(counts | values)
        for name, value in values.items():
            if np.isfinite(value):
                self._board.add_scalar(f"diagnostics/{name}", value, state.step)

    def close(self) -> None:
        """Let the environment go."""
        self._env.close()


def run(config: Config, path: Path, threads: int, command: str) -> TrainState:
    """Train from the first step to the last and leave a complete directory."""
    env, layout, parts = build(config)
    rundir.create(path, config, threads, command)
    clock, recorder = Stopwatch(), None
    try:
        recorder = Recorder(path, config, parts, clock)
        state = train(init(config, layout, parts, env), env, parts, config, clock, recorder)
        save_policy(state, path / "policy.safetensors")
        checkpoint.save(state, config, path / "checkpoints" / f"step_{state.step:08d}.safetensors")
        (path / "DONE").write_text(f"{state.step}\n")
    except BaseException:
        (path / "error.txt").write_text(traceback.format_exc())
        raise
    finally:
        if recorder is not None:
            recorder.close()
        env.close()
    return state


def save_policy(state: TrainState, path: Path) -> None:
    """Write the actor alone."""
    checkpoint.write_arrays(path, flatten(state.agent.actor, "actor"), {"step": state.step})


def archive(state: TrainState, path: Path) -> None:
    """Keep agent, model and real rows of a step: enough to train the model on from there."""
    path.parent.mkdir(exist_ok=True)
    arrays = flatten(state.agent, "agent") | flatten(state.model, "model")
    arrays |= {f"replay.{name}": array for name, array in state.replay.arrays().items()}
    checkpoint.write_arrays(path, arrays, {"step": state.step})


class Policy(NamedTuple):
    """The policy of a run, ready to act on batches of observations."""

    config: Config
    step: int
    mode: Callable[[np.ndarray], np.ndarray]
    sample: Callable[[np.ndarray, jax.Array], np.ndarray]


def load_policy(path: Path) -> Policy:
    """Read the last policy of a run."""
    config = check(read_config(rundir.require(path) / "config.json"))
    arrays, note = checkpoint.read_arrays(path / "policy.safetensors")
    env, _, parts = build(config)
    env.close()
    agent = parts.recipe.agent
    try:
        actor = unflatten(agent.init(key(0, Purpose.AGENT_INIT)).actor, arrays, "actor")
    except ValueError as error:
        raise UserError(f"run = '{path}': its policy does not belong to its configuration ({error})") from None
    mode, sample = jax.jit(agent.mode), jax.jit(agent.sample)
    return Policy(
        config,
        note["step"],
        lambda obs: np.asarray(mode(actor, obs)),
        lambda obs, draw: np.asarray(sample(actor, obs, draw)),
    )


def evaluate_run(path: Path, episodes: int, stochastic: bool, seed: int | None) -> tuple[int, list[EpisodeResult]]:
    """Evaluate the policy of a run in fresh environments; return the policy's step and the episodes."""
    policy = load_policy(path)
    chosen = policy.config.seed if seed is None else seed

    def act(obs: np.ndarray, time: int) -> np.ndarray:
        return policy.sample(obs, key(chosen, Purpose.EVALUATION_ACT, time)) if stochastic else policy.mode(obs)

    envs = [make_env(policy.config.env) for _ in range(episodes)]
    results = evaluate(envs, act, chosen, policy.step)
    for env in envs:
        env.close()
    return policy.step, results
