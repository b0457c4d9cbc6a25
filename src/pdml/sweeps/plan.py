"""The runs of a study: where each is, its settings, and the command that does it. All is checked before any begins."""

import os
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from pdml.config.defaults import defaults
from pdml.config.fields import change, different, get, leaves
from pdml.config.files import read_config, require_same
from pdml.config.parse import arm_name, shown
from pdml.config.schema import Settings
from pdml.config.validate import check, check_length, refuse_foreign
from pdml.core.errors import UserError
from pdml.envs.task import env_task
from pdml.runs.directory import recorded_threads
from pdml.sweeps.study import Arm, Study

MOST_RUNS = 100_000
"""Above this, a grid is taken for a slip."""

LONGEST_NAME = 255
"""Bytes of a directory's name that file systems allow."""

CHOSEN = ("env", "method", "preset", "seed")
"""Settings that stand first in a command."""


class PlannedRun(NamedTuple):
    """One run of a study."""

    path: Path
    settings: Settings
    words: tuple[str, ...]
    """The words of its command, from `train` on; the same command starts and resumes it."""

    @property
    def threads(self) -> int:
        """Threads of its process."""
        return int(self.words[self.words.index("--threads") + 1])


class _Kind(NamedTuple):
    """What the seeds of one environment, method and point of a grid share."""

    folder: Path
    settings: Settings
    words: tuple[str, ...]


def plan(study: Study, out: Path, cpus: int = 1) -> list[PlannedRun]:
    """Return every run of a study: one seed of everything first, then the next. Nothing is written.

    Args:
        out: Its runs are at out/env/method[-settings]/seed_K; only settings off the method's defaults are in the name.
        cpus: Threads of each run.
    """
    _require_few(study)
    kinds = [_kind(study, env, arm, point) for env in study.envs for arm in study.arms for point in _points(arm)]
    runs = [_run(kind, out, seed, cpus) for seed in study.seeds for kind in kinds]
    _require_apart(study, runs)
    _require_directories(out, runs)
    return runs


def split_done(runs: Sequence[PlannedRun]) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """Return the runs that are done, and those that are left; raise if a directory's run has other settings."""
    states = [state_of(run) for run in runs]
    done = [run for run, state in zip(runs, states, strict=True) if state == "done"]
    return done, [run for run, state in zip(runs, states, strict=True) if state != "done"]


def state_of(run: PlannedRun) -> str:
    """Say whether a run is new, done or unfinished; raise, naming the setting, if the directory's run has others.

    One that has gone further than planned is done.
    """
    if not (run.path / "config.json").exists():
        return "new"
    kept = read_config(run.path / "config.json")
    require_same(run.settings, kept, run.path)
    was, now = kept.run.steps, run.settings.run.steps
    if was >= now and (run.path / "DONE").exists():
        return "done"
    if was > now:
        raise UserError(f"run-dir = '{run.path}': its run has steps = {was}, not {now}, and is not done")
    _require_threads(run)
    return "unfinished"


def _require_threads(run: PlannedRun) -> None:
    """Raise if a run would be resumed with another number of threads, which changes its last bits."""
    threads = recorded_threads(run.path)
    if threads is not None and threads != run.threads:
        raise UserError(
            f"run-dir = '{run.path}': its run has --threads {threads}, not {run.threads}, and is not done; "
            f"resume it with --cpus-per-run {threads}"
        )


def _kind(study: Study, env: str, arm: Arm, point: dict[str, Any]) -> _Kind:
    """Settle and check the settings of one method on one environment."""
    task = env_task(env)
    changes = {name: value for name, value in point.items() if name != "preset"}
    recorded: dict[str, Any] = {"archive_at": study.archive_at}
    if study.diagnose and arm.method in _readers("diagnose"):
        recorded["diagnose"] = True
    steps = study.steps_by_env.get(env, study.steps)
    if steps is not None:
        recorded["steps"] = steps
    try:
        standard = defaults(env, arm.method, point.get("preset", "paper"), task)
        refuse_foreign(arm.method, changes)
        settings = check_length(check(change(standard, {**recorded, **changes}), task))
    except UserError as error:
        remedy = "; choose others with --set archive_at=N,N, or none with --set archive_at=none"
        said = f"{error}{remedy if str(error).startswith('archive_at = ') else ''}"
        raise UserError(f"study = '{study.name}', {arm.method} on {env}: {said}") from None
    off = {name: value for name, value in changes.items() if value != get(standard, name)}
    if settings.learning.preset != "paper":
        off["preset"] = settings.learning.preset
    name = arm_name(arm.method, off)
    if len(name.encode()) > LONGEST_NAME:
        raise UserError(f"study = '{study.name}': '{_safe(name)}' is too long for a directory; change fewer settings")
    return _Kind(Path(_safe(env)) / _safe(name), settings, _words(settings, standard))


def _points(arm: Arm) -> Iterator[dict[str, Any]]:
    """Return every point of an arm's grid."""
    return (dict(zip(arm.settings, values, strict=True)) for values in product(*arm.settings.values()))


def _readers(name: str) -> tuple[str, ...]:
    return next(leaf.methods for leaf in leaves() if leaf.name == name)


def _words(settings: Settings, standard: Settings) -> tuple[str, ...]:
    """Return the settings as options of a command, without the seed: what decides the defaults, then what is off."""
    config = settings.learning
    words = ["--env", config.env, "--method", config.method]
    words += [] if config.preset == "paper" else ["--preset", config.preset]
    for name in different(settings, standard):
        if name not in CHOSEN:
            flag, value = f"--{name.replace('_', '-')}", get(settings, name)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else shown(value)
            words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return tuple(words)


def _run(kind: _Kind, out: Path, seed: int, cpus: int) -> PlannedRun:
    path = out / kind.folder / f"seed_{seed}"
    ends = ("--seed", str(seed), "--run-dir", str(path), "--threads", str(cpus), "--resume")
    return PlannedRun(path, change(kind.settings, {"seed": seed}), ("train", *kind.words, *ends))


def _safe(name: str) -> str:
    return name.replace("/", "_").replace(":", "_")


def number_of_runs(study: Study) -> int:
    """Return how many runs a study has."""
    points = sum(prod(len(values) for values in arm.settings.values()) for arm in study.arms)
    return len(study.envs) * points * len(study.seeds)


def _require_few(study: Study) -> None:
    number = number_of_runs(study)
    if number > MOST_RUNS:
        raise UserError(f"study = '{study.name}': has {number} runs, at most {MOST_RUNS} are allowed")


def _require_apart(study: Study, runs: list[PlannedRun]) -> None:
    """Raise if two runs would be in the same directory."""
    seen: set[Path] = set()
    for run in runs:
        if run.path in seen:
            raise UserError(f"study = '{study.name}': two of its runs would be at '{run.path}'; leave one out")
        seen.add(run.path)


def _require_directories(out: Path, runs: list[PlannedRun]) -> None:
    """Raise if a file stands where a directory is needed."""
    needed = dict.fromkeys(path for run in runs for path in (run.path.parents[1], run.path.parent, run.path))
    for path in (*reversed(out.parents), out, *needed):
        try:
            wrong = path.exists() and not path.is_dir()
        except OSError as error:
            raise UserError(f"out = '{out}': cannot be used ({error.strerror})") from None
        if wrong:
            raise UserError(f"out = '{out}': '{path}' is a file, a directory is needed")
    if (out / "config.json").exists():
        raise UserError(f"out = '{out}': is the directory of a run; choose another")
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not os.access(place, os.W_OK):
        raise UserError(f"out = '{out}': '{place}' cannot be written")
