"""Run directories as the package writes them, small and without training."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.config.methods import METHODS
from pdml.config.schema import Config, RunConfig
from pdml.config.tasks import TaskSizes, is_listed, known_task
from pdml.config.validate import check
from pdml.core.stopwatch import PHASES

SPREAD = 10.0
"""Distance of the two episodes of an evaluation from its mean."""

DEPTH = 4
"""Depths of the compounding error."""

SIZES = TaskSizes(obs_size=3, action_size=1, time_limited=True)
"""Of an environment that is not listed."""


def write_run(
    path: Path,
    method: str = "pdml",
    env: str = "Hopper-v5",
    seed: int = 0,
    steps: int = 4000,
    returns: Sequence[float | None] = (500.0, 1000.0, 1500.0, 2000.0),
    finished: bool = True,
    error: str = "",
    **config_changes: Any,
) -> Path:
    """Write a run, with a block every 250 steps after warm-up, up to its last evaluation.

    An environment that is not listed has the sizes `SIZES`, which metadata.json records.

    Args:
        steps: Its length, after warm-up.
        returns: The mean of each evaluation, one every `eval_every` steps after warm-up; None where it is missing.
        finished: Whether it has a file DONE.
        error: The last line of its error.txt.
        config_changes: Settings by dotted names. With `diagnose` it has diagnostics; see `diagnosed`.
    """
    task = known_task(env, SIZES)
    standard = defaults(env, method, config_changes.get("preset", "paper"), task)
    changes = {"seed": seed, "steps": standard.learning.warmup_steps + steps, **config_changes}
    settings = check(change(standard, changes), task)
    config, options = settings.learning, settings.run
    path.mkdir(parents=True)
    (path / "config.json").write_text(to_json(settings))
    if not is_listed(env):
        (path / "metadata.json").write_text(json.dumps({"task": SIZES._asdict()}))
    evaluated = {(i + 1) * options.eval_every: value for i, value in enumerate(returns) if value is not None}
    _evaluations(path, config, evaluated)
    reached = min(steps, len(returns) * options.eval_every)
    _progress(path, config, reached, evaluated)
    if options.diagnose:
        _diagnostics(path, config, options, reached)
    if METHODS[method].has_model:
        _blocks(path, config, reached)
    if finished:
        (path / "DONE").write_text(f"{options.steps}\n")
    if error:
        (path / "error.txt").write_text(f"Traceback (most recent call last):\n{error}\n")
    return path


def write_seeds(path: Path, method: str, returns: Sequence[Sequence[float | None]], **options: Any) -> list[Path]:
    """Write a run for each sequence of returns, with seeds 0, 1, ..., at method/seed below the path."""
    return [write_run(path / method / str(i), method, seed=i, returns=r, **options) for i, r in enumerate(returns)]


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a csv file, if it has rows, so that its numbers read back exactly."""
    if not rows:
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([repr(v) if isinstance(v, float) else v for v in row.values()] for row in rows)


def _evaluations(path: Path, config: Config, evaluated: dict[int, float]) -> None:
    rows = []
    for step, value in evaluated.items():
        for episode, total in enumerate((value - SPREAD, value + SPREAD)):
            rows.append({"step": config.warmup_steps + step, "episode": episode, "return": total, "length": 200})
    _write_csv(path / "evaluations.csv", rows)


def _progress(path: Path, config: Config, reached: int, evaluated: dict[int, float]) -> None:
    """Write progress and timing: a block takes 100 s, of which evaluation and diagnosis take 10 each."""
    progress, timing = [], []
    method = METHODS[config.method]
    for number, step in enumerate(range(config.model_every, reached + 1, config.model_every), start=1):
        row = {
            "step": config.warmup_steps + step,
            "steps_after_warmup": step,
            "evaluation_steps": 400 * sum(at <= step for at in evaluated),
            "train/episodes": 1,
            "train/return": float(step),
            "eval/return": float(evaluated.get(step, float("nan"))),
            "eval/low_share": 0.0,
        }
        if method.has_model:
            error = -20.0 - number if method.is_double_horizon else 1.0 / number
            row |= {"weights/effective_size": 100.0, "model/holdout_error": error}
        if method.is_double_horizon:
            row |= {"agent/value_bias": 130.0 / number, "agent/action_change": 0.5 / number}
            row |= {"agent/renewal_change": 0.0, "agent/divergence": 2.0 / number}
        progress.append(row | {"agent/temperature": 0.5})
        spent = {phase: 10.0 * number for phase in PHASES}
        spent["improve"] += 20.0 * number
        timing.append(
            {"step": config.warmup_steps + step, "seconds": 100.0 * number, "steps_per_second": 2.5}
            | {"peak_memory_mb": 1000, **spent}
        )
    _write_csv(path / "progress.csv", progress)
    _write_csv(path / "timing.csv", timing)


def diagnosed(seed: int, step: int) -> dict[str, float]:
    """Return the numbers of a diagnosis of these runs."""
    current = (1.0 + 0.1 * seed) / step
    errors = {
        "current_l2": current,
        "current_mse": current**2,
        "overall_l2": 2 * current,
        "overall_mse": 4 * current**2,
    }
    return errors | {f"compounding_{depth:02d}": depth * current for depth in range(1, DEPTH + 1)}


def _diagnostics(path: Path, config: Config, options: RunConfig, reached: int) -> None:
    rows = []
    for number, step in enumerate(range(options.diagnose_every, reached + 1, options.diagnose_every), start=1):
        counts = {"step": config.warmup_steps + step, "steps_after_warmup": step}
        counts |= {"diagnosis_steps": number * options.diagnose_steps, "overall_rows": number * options.diagnose_steps}
        rows.append(counts | diagnosed(config.seed, step))
    _write_csv(path / "diagnostics.csv", rows)


def block_weights(count: int) -> np.ndarray:
    """Return the weights of the blocks of these runs: each has more than the one before it."""
    return (np.arange(1, count + 1) / (count * (count + 1) / 2)).astype(np.float32)


def _blocks(path: Path, config: Config, reached: int) -> None:
    (path / "blocks").mkdir()
    for count, opened in enumerate(range(0, reached, config.model_every), start=1):
        weights = block_weights(count)
        step = config.warmup_steps + opened
        note = {"json": json.dumps({"step": step})}
        save_file({"model": weights, "starts": weights}, path / "blocks" / f"step_{step:08d}.safetensors", note)
