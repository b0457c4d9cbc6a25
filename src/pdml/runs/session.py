"""A run that is open in this process: in memory first, then with a directory of its own."""

import traceback
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Float32

from pdml.config.fields import change
from pdml.config.files import read_run, to_json
from pdml.config.schema import Settings
from pdml.config.start_from import StartFrom, StartRecord, recorded_start
from pdml.config.tasks import PYTHON
from pdml.config.validate import check
from pdml.core import signals
from pdml.core.errors import BusyError, LostRunError, UserError
from pdml.core.stopwatch import Stopwatch
from pdml.envs import watchdog
from pdml.envs.env_spec import EnvSpec, spec_of
from pdml.envs.episode import Episode, Step, begin_episode
from pdml.runs import checkpoint, directory, resources
from pdml.runs.best_policy import write_best
from pdml.runs.lease import Lease
from pdml.runs.ledger import Ledger
from pdml.runs.progress import Watcher
from pdml.runs.recorder import Recorder, StepRecord
from pdml.runs.warm_start import WarmStart, describe_start, read_start, take_over
from pdml.training.diagnostics import FreshReservoir
from pdml.training.loop import Training, train
from pdml.training.methods import wire
from pdml.training.state import TrainState, extend_model_buffer, initial_state

Say = Callable[[str], None]
"""Prints one line about something that is not as it was."""

After = Callable[[StepRecord], bool]
"""Called after every step with what was recorded, and after an evaluation at the end; false ends learning."""


class LiveRun:
    """A run in memory: settings, environment, compiled parts, state. It may have no directory yet."""

    def __init__(self, settings: Settings, spec: EnvSpec, clock: Stopwatch, env: gymnasium.Env | None):
        self.settings, self.spec, self.env = settings, spec, env
        self.layout = spec.spaces.layout
        self.training = Training(settings.learning, wire(settings.learning, self.layout, spec.known), clock)
        self.state: TrainState
        self.ledger = Ledger(FreshReservoir(self.layout.width))
        self.path: Path | None = None
        """The directory that it was loaded from, or that a session gave it."""
        self.files: dict[str, Any] | None = None
        """What the checkpoint that it was loaded from says of the directory's files; None once they agree."""
        self.seen: list[Path] = []
        """The checkpoints that there were when it was loaded."""
        self.start: StartRecord | None = None
        """The run that it started from."""

    @classmethod
    def new(
        cls,
        settings: Settings,
        spec: EnvSpec,
        prior: Float32[np.ndarray, "n width"] | None = None,
        start: WarmStart | None = None,
    ) -> "LiveRun":
        """Begin a run.

        Args:
            prior: Transitions that were collected before.
            start: What it takes over from another run.
        """
        env = None if spec.make is None else spec.make()
        live = cls(settings, spec, Stopwatch(), env)
        config = settings.learning
        episode = Episode(0, foreign=True) if env is None else begin_episode(env, config.seed, 0)
        recipe, steps = live.training.parts.recipe, settings.run.steps
        live.state = initial_state(config, live.layout, recipe, episode, steps)
        try:
            take_over(live.state, start, prior, config)
        except UserError:
            live.close()
            raise
        live.start = None if start is None else start.record.absolute()
        return live

    @classmethod
    def load(cls, path: Path, settings: Settings, spec: EnvSpec, say: Say) -> "LiveRun":
        """Load the newest checkpoint of a run that is not damaged; nothing else is read, and nothing is written."""
        found = checkpoint.saved_checkpoints(path)
        env = None if spec.make is None else spec.make()
        live = cls(settings, spec, Stopwatch(), env)
        for file in found:
            try:
                loaded = checkpoint.load_checkpoint(file, settings, live.layout, live.training.parts.recipe, env)
            except UserError as error:
                say(f"{error}; trying the one before" if file != found[-1] else str(error))
                continue
            if not loaded.reproduced:
                say("the environment does not reproduce its episode from its seed and actions; a new episode begins")
            live.state, live.ledger, live.files = loaded.state, loaded.ledger, loaded.files
            live.path, live.seen, live.start = path, found, recorded_start(path)
            clock = Stopwatch(loaded.files["total"], loaded.files["seconds"])
            live.training = live.training._replace(clock=clock)
            return live
        live.close()
        what = f"none of its {len(found)} checkpoints is readable" if found else "it has no checkpoint yet"
        raise UserError(f"run = '{path}': cannot be resumed, {what}; start a new run")

    @property
    def steps(self) -> int:
        """Real steps that the run is meant to have."""
        return self.settings.run.steps

    def recorded(self) -> dict[str, Any]:
        """Return what metadata.json records of its environment, and of the run that it started from."""
        return {**self.spec.recorded(), **({} if self.start is None else {"start_from": self.start._asdict()})}

    def needs(self, settings: Settings) -> resources.Needs:
        """Estimate what it needs with these settings."""
        return resources.estimate(settings, self.layout, self.state.prior, self.state.prior_learned)

    def close(self) -> None:
        """Close the environment, unless it is borrowed."""
        if self.env is not None and not self.spec.borrowed:
            self.env.close()


class Session:
    """A live run with its directory, which no other process can write to meanwhile."""

    def __init__(self, live: LiveRun, lease: Lease):
        """Use `begin` or `resume`."""
        self.live, self.path, self.lease = live, lease.run, lease
        live.path, live.files = lease.run, None
        self._recorder: Recorder | None = None

    @classmethod
    def begin(cls, live: LiveRun, path: Path, threads: int, command: str, steps: int | None = None) -> "Session":
        """Create the directory of a new run.

        Args:
            steps: How far it is to go, if not as far as its settings say; there must be room for that.
        """
        if live.settings.run.diagnose:
            live.spec.make_more()
        aim = live.settings if steps is None else change(live.settings, {"steps": steps})
        resources.require(live.needs(aim), path)
        return cls(live, directory.create(path, live.settings, threads, command, live.recorded()))

    @classmethod
    def resume(cls, path: Path, load: Callable[[], LiveRun], threads: int, command: str, say: Say) -> "Session":
        """Resume a run: take its lease, load it, and make its files what they were at the checkpoint.

        Args:
            load: Loads the run, or returns one that was loaded before.
        """
        lease = Lease(path)
        try:
            with failures_noted(lease):
                live = load()
                newest = checkpoint.saved_checkpoints(path)
                if newest and newest[0] not in live.seen:
                    raise UserError(f"run = '{path}': has been continued since it was loaded; load it again")
                for line in directory.note_resumed(lease, threads, command, live.state.step, live.start):
                    say(line)
                directory.renew_files(lease)
                directory.truncate_files(lease, (live.files or {}).get("lengths", {}), live.state.step)
                write_best(live.ledger.best, lease)
                checkpoint.delete_old_checkpoints(lease)
        except BaseException:
            lease.free()
            raise
        return cls(live, lease)

    def prepare(self, steps: int, watcher: Watcher | None = None) -> Recorder:
        """Make ready to continue to a number of real steps: room in memory and on disk, files, recorder."""
        live = self.live
        settings = change(live.settings, {"steps": steps})
        resources.require(live.needs(settings), self.path)
        live.settings = settings
        if (self.path / "config.json").read_text() != to_json(settings):
            self.lease.write_text("config.json", to_json(settings))
        model = live.training.parts.recipe.model
        if model is not None:
            room = jax.eval_shape(lambda: model.empty_buffer(settings.learning, live.layout, steps).rows)
            extend_model_buffer(live.state, len(room))
        for name in ("DONE", "error.txt"):
            self.lease.remove(self.path / name)
        if self._recorder is None:
            self._recorder = Recorder(self.lease, settings, live.training, live.spec, live.ledger, live.state.step)
        elif self._recorder.short:
            directory.truncate_files(self.lease, self._recorder.lengths, live.state.step)
            write_best(live.ledger.best, self.lease)
        self._recorder.begin(steps, watcher)
        if not checkpoint.saved_checkpoints(self.path):  # from now on there is always one to return to
            self._recorder.save(live.state)
        return self._recorder

    def recorder(self) -> Recorder:
        """Return the recorder, ready for more steps; rows of the end are removed first."""
        if self._recorder is None or self._recorder.short:
            return self.prepare(self.live.steps)
        return self._recorder

    def learn(self, steps: int, watcher: Watcher | None = None, after: After = lambda record: True) -> None:
        """Continue to a number of real steps in all; if `after` ends that, by its answer or by an error, save first."""
        live = self.live
        assert live.env is not None
        with failures_noted(self.lease), closing(watcher) if watcher is not None else nullcontext():
            recorder = self.prepare(steps, watcher)

            def after_step(state: TrainState, step: Step) -> None:
                record = recorder(state, step)
                try:
                    enough = not after(record)
                except Exception:
                    recorder.save(state)
                    raise
                if signals.asked() and not record.saved:  # asked while `after` was called
                    recorder.save(state)
                signals.stop_if_asked()
                if enough:
                    raise _EnoughError

            try:
                train(live.state, live.env, live.training, steps, after_step)
            except _EnoughError:
                recorder.save(live.state)
            last = recorder.finish(live.state)
            if last.evaluation:
                after(last)
            if live.state.step == steps:
                self.lease.write_text("DONE", f"{steps}\n")

    def save(self) -> None:
        """Write a checkpoint now."""
        (self._recorder or self.prepare(self.live.steps)).save(self.live.state)

    def lengths(self) -> dict[str, int]:
        """Return how long the append-only files are, or were before the rows of the end."""
        if self._recorder is not None and self._recorder.short:
            return self._recorder.lengths
        return directory.offsets(self.path)

    def close(self) -> None:
        """Close environments and free the directory; the live run stays usable without it."""
        if self._recorder is not None:
            self._recorder.close()
        self.lease.free()
        self._recorder = None


@contextmanager
def failures_noted(lease: Lease) -> Generator[None, None, None]:
    """Write error.txt into a run's directory if the body fails, also if an environment hangs."""

    def note(reason: str) -> None:
        lease.write_text("error.txt", reason)

    watchdog.watch(note)
    try:
        yield
    except (signals.Stopped, UserError, LostRunError):
        raise
    except BaseException:
        try:
            note(traceback.format_exc())
        except OSError:  # on a full disk there may be no room even for that
            traceback.print_exc()
        raise
    finally:
        watchdog.watch(None)


class _EnoughError(Exception):
    """Whoever is called after a step wants no more."""


def unheard(session: Session) -> After:
    """Call nobody after a step."""
    return lambda record: True


def start_run(
    settings: Settings,
    path: Path,
    threads: int,
    command: str,
    say: Say = lambda line: None,
    heard: Callable[[Session], After] = unheard,
    start: StartFrom | None = None,
) -> TrainState:
    """Train from the first step to the last and leave a complete directory, which must be free.

    Args:
        heard: From the session, what is called after every step.
        start: Another run to start from.
    """
    spec = spec_of(settings)
    begun = None if start is None else read_start(start, settings.learning, spec.spaces)
    prior = (0, 0) if begun is None else (len(begun.rows), begun.learned)
    needed = resources.estimate(settings, spec.spaces.layout, *prior)
    resources.require(needed, path)
    with closing(LiveRun.new(settings, spec, start=begun)) as live:
        about = [] if begun is None else [*begun.notes, describe_start(begun.record)]
        say("\n".join([*about, resources.describe_needs(needed)]))
        with closing(Session.begin(live, path, threads, command)) as session:
            session.learn(live.steps, _watcher(live), heard(session))
        return live.state


def resume_run(
    path: Path,
    steps: int | None,
    threads: int,
    command: str,
    say: Say,
    or_begin: bool = False,
    heard: Callable[[Session], After] = unheard,
    start: StartFrom | None = None,
) -> TrainState:
    """Resume from the newest checkpoint that is not damaged, as if the run had never stopped.

    Args:
        steps: Real steps in all, to go further than the run was meant to.
        or_begin: Start from the first step if there is no checkpoint yet.
        heard: From the session, what is called after every step.
        start: The run that it started from, which is read only if it starts from the first step.
    """
    settings, task = read_run(directory.require_run(path))
    if settings.learning.env.startswith(PYTHON):
        raise UserError(f"run = '{path}': its environment is a Python object; use pdml.Agent.load(path, env=...)")
    settings = check(settings, task)
    if not or_begin:
        _require_unfinished(settings, path, steps)
    settings = check(_extended(settings, steps), task)
    spec = spec_of(settings)

    def load() -> LiveRun:
        if (path / "DONE").exists() and read_run(path)[0].run.steps == settings.run.steps:
            raise BusyError(f"run = '{path}': another process has finished it meanwhile")
        if or_begin and not checkpoint.saved_checkpoints(path):
            say("it has no checkpoint yet; it starts again")
            begun = None if start is None else read_start(start, settings.learning, spec.spaces)
            for line in () if begun is None else begun.notes:
                say(line)
            return LiveRun.new(settings, spec, start=begun)
        return LiveRun.load(path, settings, spec, say)

    with closing(Session.resume(path, load, threads, command, say)) as session:
        with closing(session.live) as live:
            session.learn(live.steps, _watcher(live), heard(session))
        return live.state


def _watcher(live: LiveRun) -> Watcher:
    return Watcher(live.steps, live.settings.learning.warmup_steps, live.state.step)


def _require_unfinished(settings: Settings, path: Path, steps: int | None) -> None:
    if (path / "DONE").exists() and steps in (None, settings.run.steps):
        raise UserError(f"run = '{path}': is done at {settings.run.steps} steps; go further with --steps")


def _extended(settings: Settings, steps: int | None) -> Settings:
    """Return the settings with their new number of steps."""
    meant = settings.run.steps
    if steps is None or steps == meant:
        return settings
    if steps < meant:
        raise UserError(f"steps = {steps}: the run is meant to have {meant}; give more")
    return change(settings, {"steps": steps})
