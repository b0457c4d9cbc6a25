"""What is written while a run goes on: a row a block, evaluations, diagnoses, archives, checkpoints."""

from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium
import jax
import numpy as np

from pdml.runs import checkpoint, directory
from pdml.core import signals
from pdml.training.loop import Parts, TrainState
from pdml.runs.tensor_file import write_arrays
from pdml.runs.tensorboard import Board
from pdml.config.schema import Config
from pdml.training.diagnostics import diagnosis
from pdml.runs.disk import to_disk
from pdml.core.errors import Diverged
from pdml.envs.evaluation import EpisodeResult, evaluate
from pdml.training.methods import World
from pdml.runs.policy import Policy
from pdml.envs.env_spec import Problem
from pdml.runs.progress import Watcher
from pdml.envs.spaces import Spaces
from pdml.core.stopwatch import Stopwatch, peak_memory_mb
from pdml.core.transition import Layout
from pdml.core.pytree import flatten


class Happened(NamedTuple):
    """What a step brought about."""

    block: dict[str, Any] | None
    """The row of progress.csv, at the end of a block."""
    evaluation: list[EpisodeResult]
    """Episodes, where there was an evaluation."""


class Recorder:
    """Called after every step: writes a row a block, evaluates, archives, saves."""

    def __init__(
        self,
        path: Path,
        config: Config,
        parts: Parts,
        problem: Problem,
        clock: Stopwatch,
        step: int = 0,
    ):
        self._path, self._config, self._clock, self._problem = path, config, clock, problem
        self._progress = directory.Table(path / "progress.csv")
        self._evaluations = directory.Table(path / "evaluations.csv")
        self._timing = directory.Table(path / "timing.csv")
        self._board = Board(path, step)
        self._watcher: Watcher | None = None
        fresh, count = problem.fresh, min(config.eval_episodes, 1) if problem.lent else config.eval_episodes
        self._envs = [] if fresh is None else [fresh() for _ in range(count)]
        self._mode = jax.jit(parts.recipe.agent.mode)
        self._diagnoser = None
        if config.diagnose:
            self._diagnoser = Diagnoser(path, config, parts, problem.spaces.layout, problem.others()(), self._board)
        self._last = clock.total()
        self.lengths: dict[str, int] = {}
        """How long the append-only files were at the last checkpoint."""
        self.short = False
        """Whether a row of a block that has not come to its end follows after these lengths."""

    def begin(self, config: Config, watcher: Watcher | None) -> None:
        """Go on towards the steps of a configuration, which is the run's in all else."""
        self._config, self._watcher, self.short = config, watcher, False
        self._clock.entered = (lambda phase: None) if watcher is None else watcher.phase

    def __call__(self, state: TrainState) -> Happened:
        """Record what this step calls for; where the run was asked to stop, save it and stop."""
        learned = state.step - self._config.warmup_steps
        results, row = [], None
        if state.opened >= 0 and state.step % self._config.eval_every == 0:
            results = self._evaluate(state)
        if state.opened >= 0 and self._diagnoser is not None and state.step % self._config.diagnose_every == 0:
            with self._clock("diagnose"):
                self._diagnoser(state)
        if state.opened >= 0 and learned % self._config.model_every == 0:
            row = self._write(state)
        if self._watcher is not None:
            if results:
                self._watcher.evaluation(state.step, results, self._clock.total())
            self._watcher.step(state.step)
        if state.step in self._config.archive_at:
            archive(state, self._path / "archive" / f"step_{state.step:08d}.safetensors")
        stop = signals.asked()
        if state.step % self._config.checkpoint_every == 0 or state.step == self._config.steps or stop:
            self.save(state)
        if stop:
            signals.check()
        return Happened(row, results)

    def save(self, state: TrainState) -> None:
        """Save the whole state, and with it how far the other files have got; a state that diverged is not saved."""
        with self._clock("save"):
            require_finite(state)
            if not self.short:
                self.lengths = directory.offsets(self._path)
            for table in self.lengths:
                to_disk(self._path / table)
            files = {"lengths": self.lengths, "total": self._clock.total(), "seconds": self._clock.seconds}
            name = f"step_{state.step:08d}.safetensors"
            # The checkpoint comes last: who finds it there need not do the rest again.
            policy_of(state, self._problem.spaces).save(self._path / "policy.safetensors")
            checkpoint.save(state, self._config, self._path / "checkpoints" / name, files)
            checkpoint.keep_last(self._path)

    def finish(self, state: TrainState) -> None:
        """Write the row of a block that has not come to its end; who goes on from here takes it back."""
        learned = state.step - self._config.warmup_steps
        if learned > 0 and learned % self._config.model_every != 0 and not self.short:
            self._write(state)
            self.short = True

    def _evaluate(self, state: TrainState) -> list[EpisodeResult]:
        """Evaluate the deterministic policy, or report the training episodes of late."""
        if self._envs:
            with self._clock("evaluate"):
                results = evaluate(
                    self._envs,
                    lambda obs, time: np.asarray(self._mode(state.agent.actor, obs)),
                    self._config.seed,
                    state.step,
                    self._config.eval_episodes,
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

    def _write(self, state: TrainState) -> dict[str, Any]:
        """Write the row of a block, which is short only at the end of a run."""
        learned = state.step - self._config.warmup_steps
        length = (learned - 1) % self._config.model_every + 1 if learned else self._config.warmup_steps
        finished = [total for total, _ in state.log.finished]
        row = {
            "step": state.step,
            "steps_after_warmup": learned,
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
        shown = {name: value for name, value in row.items() if "/" in name and np.isfinite(value)}
        self._board.add(shown | {"time/steps_per_second": rate}, state.step)
        if self._watcher is not None:
            self._watcher.block(state.log.metrics.get("model/holdout_error"), rate)
        if state.log.shares:
            shares = {name: np.array(values, np.float32) for name, values in state.log.shares.items()}
            (self._path / "blocks").mkdir(exist_ok=True)
            name = f"step_{state.opened:08d}.safetensors"
            write_arrays(self._path / "blocks" / name, shares, {"step": state.opened})
        return row

    def close(self) -> None:
        """Let the environments go."""
        for env in self._envs if not self._problem.lent else []:
            env.close()
        if self._diagnoser is not None:
            self._diagnoser.close()


class Diagnoser:
    """Takes fresh steps of the current policy in an environment of its own and writes the model's errors on them."""

    def __init__(self, path: Path, config: Config, parts: Parts, layout: Layout, env: gymnasium.Env, board: Board):
        self._config, self._act, self._board = config, parts.act, board
        self._env = env
        self._measure = diagnosis(layout, cast(World, parts.recipe.world).dynamics.means)
        self._table = directory.Table(path / "diagnostics.csv")

    def __call__(self, state: TrainState) -> None:
        """Diagnose the current policy and model."""
        seed, count = self._config.seed, self._config.diagnose_steps
        model = state.model

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
        shown = {f"diagnostics/{name}": value for name, value in values.items() if np.isfinite(value)}
        self._board.add(shown, state.step)

    def close(self) -> None:
        """Let the environment go."""
        self._env.close()


def require_finite(state: TrainState) -> None:
    """Raise if a number of the agent or of the model is not finite: from such a state nobody can go on."""
    network = None if state.model is None else state.model.network
    for name, array in (flatten(state.agent, "agent") | flatten(network, "model.network")).items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise Diverged(f"{name} is not finite: learning has diverged")


def policy_of(state: TrainState, spaces: Spaces) -> Policy:
    """Return the policy of a state by itself."""
    return Policy.of(flatten(state.agent.actor, "actor"), spaces.low, spaces.high, state.step)


def archive(state: TrainState, path: Path) -> None:
    """Keep agent, model and real rows of a step: enough to train the model on from there."""
    path.parent.mkdir(exist_ok=True)
    arrays = flatten(state.agent, "agent") | flatten(state.model, "model")
    arrays |= {f"replay.{name}": array for name, array in state.replay.arrays().items()}
    write_arrays(path, arrays, {"step": state.step})
