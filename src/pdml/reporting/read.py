"""Runs as they lie on the disk, finished or not: what figures, reports and analyses begin with. No JAX."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from pdml.config.schema import METHODS, Config, defaults, get, leaves
from pdml.config.validate import read_config
from pdml.core.errors import UserError
from pdml.reporting.statistics import Series

Columns = dict[str, np.ndarray]
Row = dict[str, Any]

UNCOMPARED = (
    "env",
    "method",
    "preset",
    "seed",
    "steps",
    "eval_every",
    "eval_episodes",
    "checkpoint_every",
    "archive_at",
)
"""Fields that do not make two runs of a method different things; those of diagnoses do not either."""

NEEDED = {
    "evaluations": ("step", "return"),
    "progress": ("step", "steps_after_warmup"),
    "timing": ("step", "seconds"),
    "diagnostics": ("step", "steps_after_warmup"),
}
"""Columns without which a csv says nothing."""


class Run(NamedTuple):
    """One run directory."""

    path: Path
    config: Config
    label: str
    """What was run, told apart from the other runs it was read with."""
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
    """Read a run; what is damaged is left out and named."""
    config = read_config(path / "config.json")
    problems: list[str] = []
    tables = {name: read_table(path / f"{name}.csv", needed, problems) for name, needed in NEEDED.items()}
    tables["evaluations"] = _whole_evaluations(tables["evaluations"], config, path, problems)
    error = path / "error.txt"
    reached = max((int(table["step"][-1]) for table in tables.values() if len(table.get("step", ()))), default=0)
    message = ""
    if (path / "DONE").exists() or (reached >= config.steps and not error.exists()):
        status = "done"
    elif error.exists():
        status, message = "failed", (error.read_text().strip().splitlines() or ["no reason given"])[-1]
    else:
        status = "unfinished"
    return Run(path, config, config.method, status, message, problems=tuple(problems), **tables)


def _whole_evaluations(table: Columns, config: Config, path: Path, problems: list[str]) -> Columns:
    """Leave out a last evaluation of which not all episodes are written."""
    steps, counts = np.unique(table.get("step", np.zeros(0)), return_counts=True)
    if config.eval_episodes == 0 or len(steps) < 2 or counts[-1] >= counts[:-1].max():
        return table
    problems.append(f"{path / 'evaluations.csv'}: step {steps[-1]:.0f} lacks episodes and was left out")
    kept = table["step"] < steps[-1]
    return {column: values[kept] for column, values in table.items()}


def read_all(paths: Iterable[Path], problems: list[str] | None = None) -> list[Run]:
    """Read every run at or below the given directories, by environment, method and seed, and tell them apart.

    A run is called by its method and by those settings, off the defaults, that not all runs of its method share.

    Args:
        problems: Takes up what keeps a run from being read, if others can be; without it that raises.
    """
    runs: list[Run] = []
    refused: list[UserError] = []
    for path in find(paths):
        try:
            runs.append(read(path))
        except UserError as error:
            refused.append(error)
    if refused and (problems is None or not runs):
        raise refused[0]
    if problems is not None:
        problems += [str(error) for error in refused]
    words = [differences(run.config) for run in runs]
    shared: dict[tuple[str, str], set[str]] = {}
    for run, its in zip(runs, words, strict=True):
        kind = (run.config.env, run.config.method)
        shared[kind] = shared.get(kind, set(its)) & set(its)
    named = []
    for run, its in zip(runs, words, strict=True):
        own = [word for word in its if word not in shared[run.config.env, run.config.method]]
        named.append(run._replace(label=" ".join([run.config.method, *own])))
    order = list(METHODS)
    return sorted(named, key=lambda run: (run.config.env, order.index(run.config.method), run.label, run.config.seed))


def read_table(path: Path, needed: Sequence[str], problems: list[str]) -> Columns:
    """Read a csv of numbers; lines that do not fit its head are left out, and all of it where the head is damaged.

    Args:
        needed: Columns that it must have; of the first of them, every number must be finite.
    """
    if not path.exists():
        return {}
    text = path.read_text(errors="replace")
    lines = [line.split(",") for line in text.splitlines()]
    if not lines:
        problems.append(f"{path}: is empty")
        return {}
    if not set(needed) <= set(lines[0]):
        problems.append(f"{path}: its head is damaged; nothing of it was read")
        return {}
    if len(lines) == 1:
        problems.append(f"{path}: has a head and no rows")
    head, rows = lines[0], []
    for number, line in enumerate(lines[1:], start=2):
        half = number == len(lines) and not text.endswith("\n")
        try:
            if half or len(line) != len(head):
                raise ValueError
            row = [float(entry) for entry in line]
            if not np.isfinite(row[head.index(needed[0])]):
                raise ValueError
            rows.append(row)
        except ValueError:
            problems.append(f"{path}: line {number} is {'half-written' if half else 'damaged'} and was left out")
    return dict(zip(head, np.array(rows, np.float64).reshape(-1, len(head)).T, strict=True))


def differences(config: Config) -> list[str]:
    """Return preset and settings that are not the method's defaults, as words."""
    standard = defaults(config.env, config.method, config.preset)
    words = [] if config.preset == "paper" else [f"preset={config.preset}"]
    words += ["eval_episodes=0"] if config.eval_episodes == 0 else []  # then training episodes are reported
    for leaf in leaves():
        if leaf.name in UNCOMPARED or leaf.name.startswith("diagnose"):
            continue
        if get(config, leaf.name) != get(standard, leaf.name):
            words.append(f"{leaf.name}={get(config, leaf.name)}")
    return words


def groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Put the seeds of one thing together, in the order of the methods."""
    result: dict[str, list[Run]] = {}
    for run in runs:
        result.setdefault(run.label, []).append(run)
    return result


def one_environment(runs: Sequence[Run]) -> str:
    """Return the environment of all runs; raise if there are several."""
    envs = sorted({run.config.env for run in runs})
    if len(envs) > 1:
        raise UserError(f"runs of {', '.join(envs)}: one plot shows one environment; give the runs of one")
    return envs[0]


def name(run: Run) -> str:
    """Name a run in a message."""
    return f"{run.label} seed {run.config.seed}"


def returns(run: Run) -> Series:
    """Return the mean return of each evaluation, by steps after warm-up."""
    if not run.evaluations:
        return column(run, {}, "return")
    step, value = run.evaluations["step"], run.evaluations["return"]
    steps = np.unique(step)
    means = np.array([value[step == s].mean() for s in steps])
    return Series(name(run), (steps - run.config.warmup_steps).astype(int), means)


def column(run: Run, table: Columns, title: str) -> Series:
    """Return a column of one of a run's tables, by steps after warm-up; without values if there is none."""
    if title not in table:
        return Series(name(run), np.zeros(0, int), np.zeros(0))
    return Series(name(run), (table["step"] - run.config.warmup_steps).astype(int), table[title])


def block_files(run: Run) -> dict[int, Path]:
    """Return the files about the weights of blocks, by steps after warm-up."""
    found = sorted((run.path / "blocks").glob("step_*.safetensors"))
    return {int(path.stem.removeprefix("step_")) - run.config.warmup_steps: path for path in found}


def block_weights(run: Run, path: Path) -> Float32[np.ndarray, " blocks"] | None:
    """Return what each block weighed where the method used its weights; None if the file is damaged.

    That is model learning, or the starts of branches where only these are weighted, or where model learning was given
    the weights of other rows on purpose.
    """
    use = "starts" if run.config.weigh == "starts" or run.config.mixture.misaligned else "model"
    try:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(use)
    except (OSError, SafetensorError):
        return None
