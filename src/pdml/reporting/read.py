"""Read runs from disk, finished or not: the start of every figure and report.

A run is read from its directory alone: its environment is neither made nor imported, so it need not be installed.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from pdml.config.defaults import defaults
from pdml.config.fields import different, get, read_by
from pdml.config.files import read_run
from pdml.config.methods import METHODS
from pdml.config.schema import Config, RunConfig, Settings
from pdml.config.start_from import StartRecord, recorded_start
from pdml.config.tasks import Task
from pdml.core.errors import UserError
from pdml.reporting.statistics import Series

Columns = dict[str, np.ndarray]
Row = dict[str, Any]

NEEDED = {
    "evaluations": ("step", "return"),
    "progress": ("step", "steps_after_warmup"),
    "timing": ("step", "seconds"),
    "diagnostics": ("step", "steps_after_warmup"),
}
"""Columns that a csv file must have to be of any use."""

PRIOR_SHARE = "weights/prior"
"""The column of progress.csv with the weight of transitions from before the run; without them it is absent."""


class Run(NamedTuple):
    """One run directory."""

    path: Path
    config: Config
    """What decided what was learned."""
    options: RunConfig
    """How far it goes, and what it records."""
    task: Task
    """What its defaults depend on."""
    start: StartRecord | None
    """The run that it started from."""
    label: str
    """The method, and the settings that distinguish it from the other runs it was read with."""
    status: str
    """done, failed or unfinished (which may be running)."""
    message: str
    """Why it failed."""
    evaluations: Columns
    progress: Columns
    timing: Columns
    diagnostics: Columns
    """Columns of the csv files; empty where there is no such file."""
    problems: tuple[str, ...]
    """What could not be read."""

    @property
    def has_prior(self) -> bool:
        """Whether its first block is of transitions from before the run."""
        return PRIOR_SHARE in self.progress


class KeptBest(NamedTuple):
    """By what the best policy of a run was judged."""

    step: int
    """Real steps that it has learned from."""
    own: float
    """Mean return of its own evaluation."""
    mean: float
    """Mean return of the last evaluations up to its own."""
    over: int
    """How many these are."""


def find(paths: Iterable[Path]) -> list[Path]:
    """Return every run at or below the given directories."""
    found: dict[Path, Path] = {}
    for path in paths:
        below = sorted(config.parent for config in path.rglob("config.json")) if path.is_dir() else []
        if not below:
            raise UserError(f"run = '{path}': no run there or below (no config.json)")
        found |= {run.resolve(): run for run in below if run.resolve() not in found}
    return list(found.values())


def read(path: Path) -> Run:
    """Read a run; damaged lines and files are left out and named."""
    settings, task = read_run(path)
    config, options = settings.learning, settings.run
    problems: list[str] = []
    tables = {name: read_table(path / f"{name}.csv", needed, problems) for name, needed in NEEDED.items()}
    if options.eval_episodes > 0:
        tables["evaluations"] = _whole_evaluations(tables["evaluations"], path, problems)
    error = path / "error.txt"
    reached = max((int(table["step"][-1]) for table in tables.values() if len(table.get("step", ()))), default=0)
    message = ""
    if (path / "DONE").exists() or (reached >= options.steps and not error.exists()):
        status = "done"
    elif error.exists():
        status, message = "failed", (error.read_text().strip().splitlines() or ["no reason given"])[-1]
    else:
        status = "unfinished"
    about = (path, config, options, task, recorded_start(path), config.method)
    return Run(*about, status, message, problems=tuple(problems), **tables)


def _whole_evaluations(table: Columns, path: Path, problems: list[str]) -> Columns:
    """Leave out the last evaluation if some of its episodes are not written yet."""
    steps, counts = np.unique(table.get("step", np.zeros(0)), return_counts=True)
    if len(steps) < 2 or counts[-1] >= counts[:-1].max():
        return table
    problems.append(f"{path / 'evaluations.csv'}: step {steps[-1]:.0f} lacks episodes and was left out")
    kept = table["step"] < steps[-1]
    return {column: values[kept] for column, values in table.items()}


def kept_best(run: Run, problems: list[str]) -> KeptBest | None:
    """Return by what a run's best policy was judged; None where there is none.

    Args:
        problems: Collects what could not be read.
    """
    path = run.path / "best_policy.safetensors"
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})["json"])
        return KeptBest(int(note["step"]), float(note["return"]), float(note["mean_return"]), int(note["evaluations"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        problems.append(f"{path}: is damaged and was left out")
        return None


def read_all(paths: Iterable[Path], problems: list[str] | None = None) -> list[Run]:
    """Read every run at or below the given directories, ordered by environment, method and seed, and label them.

    A label is the method, followed by the settings off the defaults that not all runs of the method share.

    Args:
        problems: Collects why a run could not be read, as long as another could; without it, the first reason raises.
    """
    runs: list[Run] = []
    words: list[list[str]] = []
    refused: list[UserError] = []
    for path in find(paths):
        try:
            run = read(path)
            words.append(differences(run))
            runs.append(run)
        except UserError as error:
            refused.append(error)
    if refused and (problems is None or not runs):
        raise refused[0]
    if problems is not None:
        problems += [str(error) for error in refused]
    shared: dict[tuple[str, str], set[str]] = {}
    for run, its in zip(runs, words, strict=True):
        kind = (run.config.env, run.config.method)
        shared[kind] = shared.get(kind, set(its)) & set(its)
    labelled = []
    for run, its in zip(runs, words, strict=True):
        own = [word for word in its if word not in shared[run.config.env, run.config.method]]
        labelled.append(run._replace(label=" ".join([run.config.method, *own])))
    order = list(METHODS)
    return sorted(
        labelled, key=lambda run: (run.config.env, order.index(run.config.method), run.label, run.config.seed)
    )


def read_table(path: Path, needed: Sequence[str], problems: list[str]) -> Columns:
    """Read a csv file of numbers. Lines that do not fit the header are left out; a damaged header costs the whole file.

    Args:
        needed: Columns that it must have; every value of the first one must be finite. Others may have empty cells.
        problems: Collects what was left out.
    """
    if not path.exists():
        return {}
    text = path.read_text(errors="replace")
    lines = [line.split(",") for line in text.splitlines()]
    if not lines:
        problems.append(f"{path}: is empty")
        return {}
    if not set(needed) <= set(lines[0]):
        problems.append(f"{path}: its header is damaged; nothing was read from it")
        return {}
    if len(lines) == 1:
        problems.append(f"{path}: has a header but no rows")
    head, rows = lines[0], []
    for number, line in enumerate(lines[1:], start=2):
        half = number == len(lines) and not text.endswith("\n")
        try:
            if half or len(line) != len(head):
                raise ValueError
            row = [
                math.nan if not entry and name not in needed else float(entry)
                for name, entry in zip(head, line, strict=True)
            ]
            if not np.isfinite(row[head.index(needed[0])]):
                raise ValueError
            rows.append(row)
        except ValueError:
            problems.append(f"{path}: line {number} is {'half-written' if half else 'damaged'} and was left out")
    return dict(zip(head, np.array(rows, np.float64).reshape(-1, len(head)).T, strict=True))


def differences(run: Run) -> list[str]:
    """Return the preset and the settings of learning that are not the method's defaults, as words.

    Settings that the method does not read are not among them: their defaults may have changed since the run. What it
    took over from another run is among them; the seed is not, nor how far the run goes and what it records.
    """
    config = run.config
    standard = defaults(config.env, config.method, config.preset, run.task)
    words = [] if config.preset == "paper" else [f"preset={config.preset}"]
    words += ["eval_episodes=0"] if run.options.eval_episodes == 0 else []  # its returns are of training episodes
    words += [] if run.start is None else [f"start_with={','.join(run.start.parts)}"]
    ours = Settings(config, standard.run)
    names = [name for name in different(ours, standard) if name in read_by(config.method) and name != "seed"]
    return words + [f"{name}={get(ours, name)}" for name in names]


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Group the seeds of each label, in the order of the runs."""
    result: dict[str, list[Run]] = {}
    for run in runs:
        result.setdefault(run.label, []).append(run)
    return result


def one_environment(runs: Sequence[Run]) -> str:
    """Return the environment of all runs; raise if there are several."""
    envs = sorted({run.config.env for run in runs})
    if len(envs) > 1:
        raise UserError(f"runs of {', '.join(envs)}: a figure shows one environment; give the runs of one")
    return envs[0]


def name(run: Run) -> str:
    """Name a run in a message."""
    return f"{run.label} seed {run.config.seed}"


def returns(run: Run) -> Series:
    """Return the mean return of each evaluation, by steps after warm-up."""
    steps, means = mean_returns(run.evaluations)
    return Series(name(run), (steps - run.config.warmup_steps).astype(int), means)


def mean_returns(evaluations: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return the real steps of evaluations, and the mean return over the episodes of each."""
    steps = np.unique(evaluations.get("step", np.zeros(0)))
    return steps, np.array([evaluations["return"][evaluations["step"] == step].mean() for step in steps])


def column(run: Run, table: Columns, title: str) -> Series:
    """Return a column of one of a run's csv files, by steps after warm-up; an empty series if there is none."""
    if title not in table:
        return Series(name(run), np.zeros(0, int), np.zeros(0))
    return Series(name(run), (table["step"] - run.config.warmup_steps).astype(int), table[title])
