"""Tuning: settings that Optuna proposes, tried as ordinary runs, of which the worse ones stop early.

A trial is one choice of settings, run on some seeds. It first runs a ninth of its steps after the warm-up, then a
third, then all of them, each up to the next evaluation (successive halving by thirds). It continues only if it is among
the best third of the trials that reached the same step. To continue is to resume its runs with more steps, so nothing
is computed twice. Optuna's journal is a file; the score of a trial is read from its runs.
"""

import fcntl
import math
import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.config.parse import shown
from pdml.config.schema import FIRST_TUNING_SEED, RunConfig, Settings
from pdml.core.errors import BusyError, UserError
from pdml.core.files import replaced
from pdml.core.signals import Stopped
from pdml.reporting.read import NEEDED, read_table
from pdml.sweeps.plan import PlannedRun, plan
from pdml.sweeps.stop_requests import join_all, stop_requests
from pdml.sweeps.study import Arm, Study
from pdml.sweeps.tuned_field import TunedField, first_values, settled_value, tuned_field
from pdml.sweeps.worker import Work, attempt, end_children, work

FACTOR = 3
"""One of so many trials continues, and then has so many times the steps after the warm-up."""

RUNGS = 3
"""How often a trial is scored: after 1/9, 1/3 and all of its steps after the warm-up."""

JOURNAL, LOCK, BEST = "tuning.journal", "tuning.lock", "best.json"


class Tuning(NamedTuple):
    """What is tuned, on what, and where."""

    study: Study
    """With one environment and one method."""
    fields: tuple[TunedField, ...]
    rungs: tuple[int, ...]
    """Real steps at which a trial is scored; the last are all."""
    out: Path


class TunedTrial(NamedTuple):
    """How a trial stands."""

    number: int
    values: dict[str, Any]
    state: str
    """complete, stopped early, failed or unfinished."""
    steps: int
    """Real steps of its last value."""
    value: float | None
    """Mean return at these steps, over seeds."""
    reason: str
    """Why it failed."""


def new_tuning(study: Study, fields: Sequence[str], out: Path) -> Tuning:
    """Check what is to be tuned. Nothing is written."""
    if len(study.envs) != 1:
        raise UserError(f"study = '{study.name}': has {len(study.envs)} environments; choose one with --envs")
    methods = [arm.method for arm in study.arms]
    if len(study.arms) != 1:
        raise UserError(f"study = '{study.name}': has {', '.join(methods)}; choose one with --methods")
    if min(study.seeds) < FIRST_TUNING_SEED:
        raise UserError(
            f"seeds = {min(study.seeds)}: tuning uses seeds from {FIRST_TUNING_SEED} on; "
            "results are reported on smaller ones"
        )
    tuned = tuple(tuned_field(text) for text in fields)
    names = [field.name for field in tuned]
    if not names:
        raise UserError("field: needs at least one --field name=low..high")
    if len(set(names)) < len(names):
        raise UserError(f"field: {next(name for name in names if names.count(name) > 1)} is there twice")
    arm = study.arms[0]
    for name, values in arm.settings.items():
        if name not in names and len(values) > 1:
            raise UserError(f"study = '{study.name}': {name} has {len(values)} values; choose one with --set")
    study = study._replace(diagnose=False, archive_at=())
    tuning = Tuning(study, tuned, (), out)
    first = first_values(tuned)
    for field in tuned:  # each alone: together they are checked when they are proposed
        for value in field.choices or (field.low, field.high):
            trial_runs(tuning, {**first, field.name: settled_value(field, value)}, None)
    return tuning._replace(rungs=_rungs(trial_runs(tuning, first, None)[0].settings))


def _rungs(settings: Settings) -> tuple[int, ...]:
    """Return the steps at which trials are compared: those of evaluations, and the end."""
    steps, every, warmup = settings.run.steps, settings.run.eval_every, settings.learning.warmup_steps
    last = _last_evaluation(settings.run)
    if last <= warmup:
        raise UserError(f"steps = {steps}: no evaluation between the warm-up of {warmup} steps and the end")
    shares = [(steps - warmup) / FACTOR**i for i in range(RUNGS - 1, 0, -1)]
    early = [math.ceil((warmup + share) / every) * every for share in shares]
    return (*dict.fromkeys(step for step in early if warmup < step < last), steps)


def _last_evaluation(options: RunConfig) -> int:
    """Return the step of the last evaluation; the end may have no training episode to report in its place."""
    return options.steps if options.eval_episodes > 0 else options.steps - options.steps % options.eval_every


def trial_runs(tuning: Tuning, values: dict[str, Any], steps: int | None) -> list[PlannedRun]:
    """Return the runs of a trial, one per seed; raise if its settings do not fit together."""
    arm = tuning.study.arms[0]
    settings = {**arm.settings, **{name: (value,) for name, value in values.items()}}
    study = tuning.study._replace(arms=(Arm(arm.method, settings),))
    if steps is not None:
        study = study._replace(steps=steps, steps_by_env={})
    return plan(study, tuning.out)


def trial_value(runs: Sequence[PlannedRun]) -> float | None:
    """Return the mean return of the last evaluation within the runs' steps, over seeds; None if one is missing."""
    means: list[float] = []
    for run in runs:
        table = read_table(run.path / "evaluations.csv", NEEDED["evaluations"], [])
        options = run.settings.run
        at = table["return"][table["step"] == _last_evaluation(options)] if table else ()
        if len(at) < max(options.eval_episodes, 1):
            return None
        means.append(float(sum(at) / len(at)))
    return sum(means) / len(means)


def tune(
    tuning: Tuning, trials: int, jobs: int, say: Callable[[str], None] = print, work: Work = work
) -> list[TunedTrial]:
    """Try settings until there are so many trials, `jobs` runs at a time; return all trials.

    The best settings end in OUT/best.json. Trials of an earlier, broken command are finished first.

    Raises:
        Stopped: After all runs have saved and stopped, if Ctrl-C, SIGTERM or SIGHUP asked for it.
    """
    optuna = require_optuna()
    with _alone(tuning.out):
        study = _open(optuna, tuning)
        pool = _Trials(optuna, study, tuning, trials, say, work)
        threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(jobs)]
        with stop_requests(pool.stop, end_children) as received:
            for thread in threads:
                thread.start()
            join_all(threads)
        if pool.errors:
            raise pool.errors[0]
        if received:
            raise Stopped(received[0])
        ended = _all_trials(study, tuning)
        _write_best(tuning, ended)
        return ended


class _Trials:
    """What the threads share: each takes one trial after the other, and does its runs one by one."""

    def __init__(self, optuna: Any, study: Any, tuning: Tuning, most: int, say: Callable[[str], None], work: Work):
        self._optuna, self._study, self._tuning = optuna, study, tuning
        self._most, self._say, self._work = most, say, work
        self._one_at_a_time = threading.Lock()
        self.stop = threading.Event()
        self.errors: list[BaseException] = []

    def serve(self) -> None:
        """Take one trial after the other, until there are enough."""
        try:
            while not self.stop.is_set() and (trial := self._next()) is not None:
                self._try(trial)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def _next(self) -> Any:
        """Return a new trial, or one to repeat; None if there are enough."""
        with self._one_at_a_time:
            states = self._optuna.trial.TrialState
            begun = [trial for trial in self._study.get_trials(deepcopy=False) if not _is_broken(trial)]
            known = sum(trial.state != states.WAITING for trial in begun)
            if known == len(begun) and known >= self._most:
                return None
            # Seeded by their number, proposals do not depend on how often the command was broken.
            self._study.sampler = self._optuna.samplers.TPESampler(seed=known, multivariate=True)
            return self._study.ask({field.name: _distribution(self._optuna, field) for field in self._tuning.fields})

    def _try(self, trial: Any) -> None:
        """Run a trial until it is complete, stopped early or failed, and tell Optuna its scores."""
        values = _values(self._tuning, trial.params)
        for i, steps in enumerate(self._tuning.rungs):
            try:
                value, reason = self._value(trial_runs(self._tuning, values, steps))
            except UserError as error:  # settings that are allowed alone, but not together
                value, reason = None, str(error)
            with self._one_at_a_time:
                if value is None and self.stop.is_set():
                    return  # it stays open; the same command repeats it
                if not self._continues(trial, values, i, value, reason):
                    return

    def _continues(self, trial: Any, values: dict[str, Any], i: int, value: float | None, reason: str) -> bool:
        """Report the score of a trial at a step; say whether it continues."""
        pruned, steps, last = self._optuna.trial.TrialState.PRUNED, self._tuning.rungs[i], self._tuning.rungs[-1]
        if value is None:  # to the sampler it is worse than any other
            trial.set_user_attr("reason", reason)
            self._study.tell(trial, state=pruned)
            text = f"failed: {reason}"
        else:
            trial.set_user_attr("steps", steps)
            trial.report(value, FACTOR**i)
            text = f"return {value:,.1f} at step {steps}"
            if steps == last:
                self._study.tell(trial, value)
            elif trial.should_prune():
                self._study.tell(trial, state=pruned)
                text += ", stopped early"
            else:
                return True
        self._say(f"trial {trial.number}  {describe_values(values)}  {text}")
        return False

    def _value(self, runs: Sequence[PlannedRun]) -> tuple[float | None, str]:
        """Do the runs that are needed; return the mean return, or why there is none."""
        for run in runs:
            if trial_value([run]) is None:  # else it is known from an earlier command, which may have gone further
                outcome = attempt(self._work, run.words, run.path, self.stop)
                if outcome.code != 0:
                    return None, outcome.reason
        value = trial_value(runs)
        return value, "" if value is not None else "no evaluation was written"


def describe_values(values: dict[str, Any]) -> str:
    """Write settings as they are typed."""
    return "  ".join(f"{name}={shown(value)}" for name, value in values.items())


def _values(tuning: Tuning, params: dict[str, Any]) -> dict[str, Any]:
    return {field.name: settled_value(field, params[field.name]) for field in tuning.fields}


def require_optuna() -> Any:
    """Return the library."""
    try:
        optuna: Any = import_module("optuna")
    except ImportError:
        optuna = None
    if not hasattr(optuna, "create_study"):  # a directory of that name can be imported too
        raise UserError("tune: needs Optuna: pip install 'pdml[tune]' (in a checkout, '.[tune]')")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _distribution(optuna: Any, field: TunedField) -> Any:
    kinds = optuna.distributions
    if field.choices:
        return kinds.CategoricalDistribution(field.choices)
    if field.kind is int:
        return kinds.IntDistribution(int(field.low), int(field.high), log=field.log)
    return kinds.FloatDistribution(field.low, field.high, log=field.log)


@contextmanager
def _alone(out: Path) -> Generator[None, None, None]:
    """Keep other tuning commands out of a directory."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"out = '{out}': another process is tuning there") from None
        yield


def _open(optuna: Any, tuning: Tuning) -> Any:
    """Open the journal, or begin it; trials that a broken command left open will be repeated."""
    path, states = tuning.out / JOURNAL, optuna.trial.TrialState
    _mend(path)
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)
    named: dict[str, Any] = {"study_name": "tuning", "storage": storage, "pruner": pruner}
    begun = "tuning" in optuna.get_all_study_names(storage)
    study = optuna.load_study(**named) if begun else optuna.create_study(**named, direction="maximize")
    now = _setup(tuning)
    if "setup" not in study.user_attrs:
        study.set_user_attr("setup", now)
    for name, was in study.user_attrs["setup"].items():
        if was != now[name]:
            raise UserError(f"out = '{tuning.out}': was tuned with {name} = {was}, not {now[name]}; choose another")
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial(trial.params)
    return study


def _mend(path: Path) -> None:
    """Remove what a killed command may have left of the journal: half a line at its end, and its lock."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _setup(tuning: Tuning) -> dict[str, str]:
    """Return what must not change between two commands on one directory."""
    study, arm = tuning.study, tuning.study.arms[0]
    return {
        "env": study.envs[0],
        "method": arm.method,
        "seeds": ",".join(map(str, study.seeds)),
        "steps": str(tuning.rungs[-1]),
        "field": " ".join(map(str, tuning.fields)),
        "set": " ".join(f"{name}={shown(values[0])}" for name, values in sorted(arm.settings.items())) or "nothing",
    }


def _is_broken(trial: Any) -> bool:
    """Say whether a trial was left by a broken command, and is repeated by another."""
    return trial.state.name == "FAIL"


def _all_trials(study: Any, tuning: Tuning) -> list[TunedTrial]:
    names = {"COMPLETE": "complete", "PRUNED": "stopped early"}
    found: list[TunedTrial] = []
    for trial in study.get_trials(deepcopy=False):
        if not _is_broken(trial):
            reason = trial.user_attrs.get("reason", "")
            state = "failed" if reason else names.get(trial.state.name, "unfinished")
            values = _values(tuning, trial.params)
            found.append(TunedTrial(trial.number, values, state, trial.user_attrs.get("steps", 0), trial.value, reason))
    return found


def best_trial(trials: Sequence[TunedTrial]) -> TunedTrial | None:
    """Return the best of the trials that went all the way."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.value, -trial.number), default=None)


def _write_best(tuning: Tuning, trials: Sequence[TunedTrial]) -> None:
    """Write the best settings, with seed 0, for `pdml train --config`."""
    best = best_trial(trials)
    if best is not None:
        settings = trial_runs(tuning, best.values, None)[0].settings
        with replaced(tuning.out / BEST) as partial:
            partial.write_text(to_json(change(settings, {"seed": 0})))
