"""What a run writes: a row per block, evaluations, diagnoses, archives, checkpoints."""

from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np

from pdml.config.fields import change
from pdml.config.schema import Settings
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.files import to_disk
from pdml.core.pytree import flatten
from pdml.core.stopwatch import Stopwatch, peak_memory_mb
from pdml.core.transition import Layout
from pdml.envs.env_spec import EnvSpec
from pdml.envs.episode import Step
from pdml.envs.evaluation import EpisodeResult, Evaluator
from pdml.envs.spaces import Spaces
from pdml.runs import checkpoint, directory
from pdml.runs.best_policy import best_of, write_best
from pdml.runs.lease import Lease
from pdml.runs.ledger import Ledger
from pdml.runs.policy import Policy
from pdml.runs.progress import Watcher
from pdml.runs.tensor_file import write_arrays
from pdml.runs.tensorboard import Board
from pdml.training.diagnostics import FreshReservoir, diagnosis
from pdml.training.loop import Training
from pdml.training.state import TrainState
from pdml.weighting.policy_history import actor_from_flat, actor_shape


class StepRecord(NamedTuple):
    """What was recorded after a step, or after the last one."""

    block: dict[str, Any] | None
    """The row of progress.csv, at the end of a block."""
    evaluation: list[EpisodeResult]
    """Episodes, where there was an evaluation."""
    stepped: bool = True
    """Whether a step was taken; false for the evaluation at the end."""
    saved: bool = False
    """Whether the state was saved after the step."""


class Recorder:
    """Called after every step: writes a row per block, evaluates, archives, saves. It reads the state only."""

    def __init__(
        self, lease: Lease, settings: Settings, training: Training, spec: EnvSpec, ledger: Ledger, step: int = 0
    ):
        self._lease, self._settings, self._training, self._spec = lease, settings, training, spec
        self.ledger = ledger
        self._progress = directory.Table(lease, "progress.csv")
        self._evaluations = directory.Table(lease, "evaluations.csv")
        self._timing = directory.Table(lease, "timing.csv")
        self._board = Board(lease, step)
        self._watcher: Watcher | None = None
        episodes = settings.run.eval_episodes
        self._evaluator = None
        if spec.make_eval is not None and episodes > 0:
            self._evaluator = Evaluator(spec.make_eval, episodes, spec.borrowed)
        self._mode = jax.jit(training.parts.recipe.agent.mode)
        self._diagnoser = None
        if settings.run.diagnose:
            self._diagnoser = Diagnoser(lease, settings, training, spec.spaces.layout, spec.make_more()(), self._board)
        self._last = training.clock.total()
        self.lengths = directory.offsets(lease.run)
        """How long the append-only files were at the last checkpoint."""
        self.short = False
        """Whether rows follow after these lengths that belong to the end of the run only; see `finish`."""

    def begin(self, steps: int, watcher: Watcher | None) -> None:
        """Continue towards a number of real steps."""
        self._settings, self._watcher, self.short = change(self._settings, {"steps": steps}), watcher, False
        self._training.clock.entered = (lambda phase: None) if watcher is None else watcher.phase

    def __call__(self, state: TrainState, step: Step) -> StepRecord:
        """Record what this step calls for; if the run was asked to stop, save it. Stopping is left to the caller."""
        run, clock, schedule = self._settings.run, self._training.clock, self._training.schedule
        if step.finished is not None and not schedule.in_warmup(state.step - 1):
            self.ledger.recent.append(step.finished)
        results, row = [], None
        if state.learning and state.step % run.eval_every == 0:
            results = self._evaluate(state, self.ledger)
        if state.learning and self._diagnoser is not None and state.step % run.diagnose_every == 0:
            with clock("diagnose"):
                self._diagnoser(state, self.ledger.fresh)
        if state.learning and schedule.at_boundary(state.step):
            row = self._write(state, self.ledger)
        if self._watcher is not None:
            if results:
                self._watcher.evaluation(state.step, results, clock.total())
            self._watcher.step(state.step)
        if state.step in run.archive_at:
            archive(state, self._lease)
        is_due = state.step % run.checkpoint_every == 0 or state.step == run.steps or signals.asked()
        if is_due:
            self.save(state)
        return StepRecord(row, results, saved=is_due)

    def save(self, state: TrainState) -> None:
        """Save the whole state, and how long the other files are; a state that diverged is not saved."""
        clock = self._training.clock
        with clock("save"):
            if not self.short:
                self.lengths = directory.offsets(self._lease.run)
            for table in self.lengths:
                to_disk(self._lease.run / table)
            write_state(state, self.ledger, self._settings, self._spec.spaces, clock, self.lengths, self._lease)
            checkpoint.delete_old_checkpoints(self._lease)

    def finish(self, state: TrainState) -> StepRecord:
        """Evaluate at the last step, if that was not due, and write the row of an unfinished block.

        Both follow after the last checkpoint, which does not count them. A run that goes further removes them, so that
        its files are those of a run that was meant to be so long.
        """
        run, schedule, ledger = self._settings.run, self._training.schedule, replace(self.ledger)
        results: list[EpisodeResult] = []
        if self.short:
            return StepRecord(None, results, stepped=False)
        if state.learning and state.step == run.steps and state.step % run.eval_every != 0:
            self.short = True
            results = self._evaluate(state, ledger)
        if schedule.after_warmup(state.step) > 0 and not schedule.at_boundary(state.step):
            self.short = True
            self._write(state, ledger)
        if self._watcher is not None and results:
            self._watcher.evaluation(state.step, results, self._training.clock.total())
        return StepRecord(None, results, stepped=False)

    def _evaluate(self, state: TrainState, ledger: Ledger) -> list[EpisodeResult]:
        """Evaluate the deterministic policy, or report the training episodes since the last evaluation.

        Args:
            ledger: What counts it.
        """
        if self._evaluator is not None:
            with self._training.clock("evaluate"):
                results = self._evaluator(
                    lambda obs, time: np.asarray(self._mode(state.agent.actor, obs)),
                    self._training.config.seed,
                    state.step,
                    self._settings.run.eval_episodes,
                )
            ledger.evaluation_steps += sum(result.length for result in results)
        else:
            results = [EpisodeResult(*finished) for finished in ledger.recent]
        ledger.recent = []
        if results:
            ledger.evaluated = float(np.mean([result.total for result in results]))
            if np.isfinite(ledger.evaluated):
                ledger.evaluations = ledger.evaluations.after(ledger.evaluated)
                self._keep_best(state, ledger)
        rows = [
            {"step": state.step, "episode": i, "return": result.total, "length": result.length}
            for i, result in enumerate(results)
        ]
        if rows:
            self._evaluations.add(*rows)
        return results

    def _keep_best(self, state: TrainState, ledger: Ledger) -> None:
        """Keep the policy that was just evaluated if it is the best so far."""
        ledger.returns = (*ledger.returns, ledger.evaluated)[-self._settings.run.best_over :]
        best = best_of(ledger.best, ledger.returns, lambda: self._evaluated_policy(state))
        if best is not ledger.best:
            with self._training.clock("save"):
                require_finite(state)
                write_best(best, self._lease)
            ledger.best = best

    def _evaluated_policy(self, state: TrainState) -> Policy:
        """Return the policy that the last evaluation is of.

        Training episodes up to the end of a block are of the policy that collected it. If an update phase has followed
        at once, the current policy is another one. Episodes of several blocks are credited to the newest of their
        policies.
        """
        has_changed = state.block_start == state.step
        if self._evaluator is not None or not has_changed:
            return policy_of(state, self._spec.spaces)
        actor = actor_from_flat(actor_shape(state.agent.actor), state.history.snapshot(state.history.count - 1))
        spaces, learned = self._spec.spaces, state.step - self._training.config.model_every
        return Policy.of(flatten(actor, "actor"), spaces.low, spaces.high, learned)

    def _write(self, state: TrainState, ledger: Ledger) -> dict[str, Any]:
        """Write the row of a block, which is unfinished only at the end of a run."""
        schedule, clock = self._training.schedule, self._training.clock
        finished = [total for total, _ in state.log.finished]
        row = {
            "step": state.step,
            "steps_after_warmup": schedule.after_warmup(state.step),
            "evaluation_steps": ledger.evaluation_steps,
            "train/episodes": len(finished),
            "train/return": float(np.mean(finished)) if finished else float("nan"),
            "eval/return": ledger.evaluated,
            "eval/low_share": ledger.evaluations.low_share,
        }
        row |= state.log.metrics
        row |= {name: total / state.log.improved for name, total in state.log.sums.items()}
        if schedule.at_boundary(state.step):
            ledger.evaluated = float("nan")
        self._progress.add(row)
        now = clock.total()
        steps, seconds = schedule.steps_of_block(state.step), max(now - self._last, 1e-9)
        rate, self._last = steps / seconds, now
        self._timing.add(
            {
                "step": state.step,
                "seconds": round(now, 3),
                "steps_per_second": round(rate, 3),
                "peak_memory_mb": round(peak_memory_mb()),
                **{name: round(value, 3) for name, value in clock.seconds.items()},
            }
        )
        shown = {name: value for name, value in row.items() if "/" in name and np.isfinite(value)}
        self._board.add(shown | {"time/steps_per_second": rate}, state.step)
        if self._watcher is not None:
            self._watcher.block(state.log.metrics.get("model/holdout_error"), steps, seconds)
        self._write_shares(state)
        return row

    def _write_shares(self, state: TrainState) -> None:
        """Write what each block of transitions weighs."""
        if state.log.shares:
            shares = {name: np.array(values, np.float32) for name, values in state.log.shares.items()}
            file = self._lease.run / "blocks" / f"step_{state.block_start:08d}.safetensors"
            file.parent.mkdir(exist_ok=True)
            write_arrays(file, shares, {"step": state.block_start}, self._lease.replaced)

    def close(self) -> None:
        """Close the environments."""
        if self._evaluator is not None:
            self._evaluator.close()
        if self._diagnoser is not None:
            self._diagnoser.close()


class Diagnoser:
    """Takes fresh steps of the current policy in its own environment and writes the model's errors on them."""

    def __init__(
        self, lease: Lease, settings: Settings, training: Training, layout: Layout, env: gymnasium.Env, board: Board
    ):
        self._run, self._training, self._env, self._board = settings.run, training, env, board
        self._measure = diagnosis(layout, training.parts.model.dynamics.means)
        self._table = directory.Table(lease, "diagnostics.csv")

    def __call__(self, state: TrainState, fresh: FreshReservoir) -> None:
        """Diagnose the current policy and model.

        Args:
            fresh: Takes up the fresh steps; the overall error is measured on all it has.
        """
        seed, model = self._training.config.seed, state.model

        def act(obs: np.ndarray, key: jax.Array) -> jax.Array:
            return self._training.parts.act(state.agent.actor, obs, key)

        steps = self._measure.collect(self._env, act, seed, state.step, self._run.diagnose_steps)
        fresh.add(steps.rows, seed, state.step)
        current, overall = self._measure.errors(model, steps.rows), self._measure.errors(model, fresh.rows)
        values = {
            "current_l2": current.l2,
            "current_mse": current.mse,
            "overall_l2": overall.l2,
            "overall_mse": overall.mse,
        }
        values |= {
            f"compounding_{h:02d}": float(error)
            for h, error in enumerate(self._measure.compounding(model, steps), start=1)
        }
        counts = {
            "step": state.step,
            "steps_after_warmup": self._training.schedule.after_warmup(state.step),
            "diagnosis_steps": fresh.count,
            "overall_rows": len(fresh.rows),
        }
        self._table.add(counts | values)
        shown = {f"diagnostics/{name}": value for name, value in values.items() if np.isfinite(value)}
        self._board.add(shown, state.step)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def require_finite(state: TrainState) -> None:
    """Raise if a number of the agent or of the model is not finite: such a state cannot be resumed."""
    network = None if state.model is None else state.model.network
    for name, array in (flatten(state.agent, "agent") | flatten(network, "model.network")).items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise Diverged(f"{name} is not finite: learning has diverged")


def policy_of(state: TrainState, spaces: Spaces) -> Policy:
    """Return the policy of a state by itself."""
    return Policy.of(flatten(state.agent.actor, "actor"), spaces.low, spaces.high, state.step)


def write_state(
    state: TrainState,
    ledger: Ledger,
    settings: Settings,
    spaces: Spaces,
    clock: Stopwatch,
    lengths: dict[str, int],
    lease: Lease,
) -> None:
    """Write the policy and then the checkpoint: where that is found, everything before it has been written.

    Args:
        lengths: How long the append-only files are.
    """
    require_finite(state)
    policy = policy_of(state, spaces)
    write_arrays(lease.run / "policy.safetensors", policy.arrays(), {"step": policy.step}, lease.replaced)
    files = {"lengths": lengths, "total": clock.total(), "seconds": clock.seconds}
    file = lease.run / "checkpoints" / f"step_{state.step:08d}.safetensors"
    checkpoint.save_checkpoint(state, ledger, settings, file, files, lease.replaced)


def archive(state: TrainState, lease: Lease) -> None:
    """Keep agent, model and replay buffer of a step: enough to train the model further from there."""
    path = lease.run / "archive" / f"step_{state.step:08d}.safetensors"
    path.parent.mkdir(exist_ok=True)
    arrays = flatten(state.agent, "agent") | flatten(state.model, "model")
    arrays |= {f"replay.{name}": array for name, array in state.replay.arrays().items()}
    write_arrays(path, arrays, {"step": state.step}, lease.replaced)
