"""Run directories as the package writes them, small and without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdml.config.schema import DOUBLE, MODEL_BASED, Config, change, defaults
from pdml.config.validate import check, to_json
from pdml.core.stopwatch import PHASES
from pdml.runs import checkpoint
from pdml.runs.directory import Table

SPREAD = 10.0
"""How far the two episodes of an evaluation lie from its mean."""

DEPTH = 4
"""Depths at which the compounding error is known."""


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
    """Write a run of some steps after warm-up, a block every 250 of them, that got as far as its evaluations.

    Args:
        returns: The mean of each evaluation, one every `eval_every` steps after warm-up; None where it is missing.
        finished: Whether it says so itself.
        error: What it broke off with.
        config_changes: Settings by dotted names. With `diagnose` it has diagnostics, of which `diagnosed` is the rule.
    """
    standard = defaults(env, method, config_changes.get("preset", "paper"))
    changes = {"seed": seed, "steps": standard.warmup_steps + steps, **config_changes}
    config = check(change(standard, changes))
    path.mkdir(parents=True)
    (path / "config.json").write_text(to_json(config))
    evaluated = {(i + 1) * config.eval_every: value for i, value in enumerate(returns) if value is not None}
    _evaluations(path, config, evaluated)
    reached = min(steps, len(returns) * config.eval_every)
    _progress(path, config, reached, evaluated)
    if config.diagnose:
        _diagnostics(path, config, reached)
    if method in MODEL_BASED:
        _blocks(path, config, reached)
    if finished:
        (path / "DONE").write_text(f"{config.steps}\n")
    if error:
        (path / "error.txt").write_text(f"Traceback (most recent call last):\n{error}\n")
    return path


def write_seeds(path: Path, method: str, returns: Sequence[Sequence[float | None]], **options: Any) -> list[Path]:
    """Write a run for each sequence of returns, with seeds 0, 1, ..., at method/seed below the path."""
    return [write_run(path / method / str(i), method, seed=i, returns=r, **options) for i, r in enumerate(returns)]


def _evaluations(path: Path, config: Config, evaluated: dict[int, float]) -> None:
    table = Table(path / "evaluations.csv")
    for step, value in evaluated.items():
        for episode, total in enumerate((value - SPREAD, value + SPREAD)):
            table.add({"step": config.warmup_steps + step, "episode": episode, "return": total, "length": 200})


def _progress(path: Path, config: Config, reached: int, evaluated: dict[int, float]) -> None:
    """Write progress and timing: a block takes 100 s, of which evaluation and diagnosis take 10 each."""
    progress, timing = Table(path / "progress.csv"), Table(path / "timing.csv")
    for number, step in enumerate(range(config.model_every, reached + 1, config.model_every), start=1):
        row = {
            "step": config.warmup_steps + step,
            "steps_after_warmup": step,
            "evaluation_steps": 400 * sum(at <= step for at in evaluated),
            "train/episodes": 1,
            "train/return": float(step),
            "eval/return": float(evaluated.get(step, float("nan"))),
        }
        if config.method in MODEL_BASED:
            error = -20.0 - number if config.method in DOUBLE else 1.0 / number
            row |= {"weights/effective_size": 100.0, "model/holdout_error": error}
        progress.add(row | {"agent/temperature": 0.5})
        spent = {phase: 10.0 * number for phase in PHASES}
        spent["improve"] += 20.0 * number
        timing.add(
            {"step": config.warmup_steps + step, "seconds": 100.0 * number, "steps_per_second": 2.5}
            | {"peak_memory_mb": 1000, **spent}
        )


def diagnosed(seed: int, step: int) -> dict[str, float]:
    """Return what a diagnosis of these runs says."""
    current = (1.0 + 0.1 * seed) / step
    errors = {
        "current_l2": current,
        "current_mse": current**2,
        "overall_l2": 2 * current,
        "overall_mse": 4 * current**2,
    }
    return errors | {f"compounding_{depth:02d}": depth * current for depth in range(1, DEPTH + 1)}


def _diagnostics(path: Path, config: Config, reached: int) -> None:
    table = Table(path / "diagnostics.csv")
    for number, step in enumerate(range(config.diagnose_every, reached + 1, config.diagnose_every), start=1):
        counts = {"step": config.warmup_steps + step, "steps_after_warmup": step}
        counts |= {"diagnosis_steps": number * config.diagnose_steps, "overall_rows": number * config.diagnose_steps}
        table.add(counts | diagnosed(config.seed, step))


def block_weights(count: int) -> np.ndarray:
    """Return what the blocks of these runs weigh: each one more than the one before it."""
    return (np.arange(1, count + 1) / (count * (count + 1) / 2)).astype(np.float32)


def _blocks(path: Path, config: Config, reached: int) -> None:
    (path / "blocks").mkdir()
    for count, opened in enumerate(range(0, reached, config.model_every), start=1):
        weights = block_weights(count)
        arrays = {"model": weights, "starts": weights}
        step = config.warmup_steps + opened
        checkpoint.write_arrays(path / "blocks" / f"step_{step:08d}.safetensors", arrays, {"step": step})
