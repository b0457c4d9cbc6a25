"""Policies of a run as rows: the weights of the blocks that they collected, and the states that they visited."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from pdml.config.methods import METHODS
from pdml.core.errors import UserError
from pdml.reporting import published
from pdml.reporting.read import PRIOR_SHARE, Row, Run, differences, name, one_environment, read_table
from pdml.reporting.rows import Rows

HEAT_STEPS = 150
"""Most steps of a run that a heat map shows."""


def block_files(run: Run) -> dict[int, Path]:
    """Return the files with the weights of blocks, by steps after warm-up."""
    found = sorted((run.path / "blocks").glob("step_*.safetensors"))
    return {int(path.stem.removeprefix("step_")) - run.config.warmup_steps: path for path in found}


def block_weights(run: Run, path: Path) -> Float32[np.ndarray, " blocks"] | None:
    """Return the weight of each block where the method uses it; None if the file is damaged.

    These are the weights of model learning. They are those of the rollouts' starts where only starts are weighted, or
    where model learning gets the weights of other transitions on purpose.
    """
    use = "starts" if run.config.weigh == "starts" or run.config.mixture.misaligned else "model"
    try:
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(use)
    except (OSError, SafetensorError):
        return None


def policy_weights(runs: Sequence[Run], at: Sequence[int] = ()) -> Rows:
    """Return the weights of historical policies at some steps as the paper plots them.

    What came before the run, the warm-up and the newest policy are left out, and the rest sums to 1.

    Args:
        at: Steps after warm-up; by default the last of each run.
    """
    one_environment(runs)
    rows: list[Row] = []
    problems: list[str] = []
    kept, notes = _with_blocks(runs)
    shown = set()
    for run, files in kept:
        for step in at or sorted(files)[-1:]:
            if step not in files:
                near = min(files, key=lambda other, step=step: abs(other - step))
                raise UserError(f"at = {step}: {name(run)} has no weights of that step; the nearest is {near}")
            shares = block_weights(run, files[step])
            if shares is None:
                problems.append(f"{files[step]}: is damaged and was left out")
                continue
            historical = shares[1 + run.has_prior : -1].astype(np.float64)
            u = historical / historical.sum() if historical.sum() > 0 else historical
            source = _source(run) | {"source": "runs", "step": step}
            rows += [source | {"policy": i + 1, "weight": float(u[i])} for i in range(len(u))]
            paper = published.mixture(run.config.env, step) if _is_the_papers(run) else None
            if paper is not None and step not in shown:
                shown.add(step)
                source |= {"source": "paper"}
                rows += [source | {"policy": i + 1, "weight": float(w)} for i, w in enumerate(paper)]
    return Rows(rows, notes, tuple(problems))


def _is_the_papers(run: Run) -> bool:
    """Say whether a run is of the paper's own method with its defaults."""
    return METHODS[run.config.method].paper_name == published.OWN_METHOD and not differences(run)


def weight_history(runs: Sequence[Run], most: int = HEAT_STEPS) -> Rows:
    """Return the weight of each block at each step of whole runs, thinned to at most `most` steps.

    Block 0 is the warm-up; the column `weights/prior` has the weight of what came before the run.
    """
    one_environment(runs)
    rows: list[Row] = []
    problems: list[str] = []
    kept, notes = _with_blocks(runs)
    for run, files in kept:
        every = -(-len(files) // most)
        if every > 1:
            notes.append(f"{name(run)}: one in {every} of its {len(files)} blocks is shown")
        if run.has_prior:
            notes.append(f"{name(run)}: transitions from before the run are left out; {PRIOR_SHARE} is their weight")
        for step in sorted(files)[::-1][::every][::-1]:
            shares = block_weights(run, files[step])
            if shares is None:
                problems.append(f"{files[step]}: is damaged and was left out")
                continue
            source = _source(run) | {"step": step}
            rows += [source | {"policy": i, "share": share} for i, share in enumerate(shares[run.has_prior :].tolist())]
    return Rows(rows, notes, tuple(problems))


def _source(run: Run) -> Row:
    return {"curve": run.label, "method": run.config.method, "seed": run.config.seed}


def _with_blocks(runs: Sequence[Run]) -> tuple[list[tuple[Run, dict[int, Path]]], list[str]]:
    """Return the runs that have block weights, and name those that do not."""
    files = [(run, block_files(run)) for run in runs]
    kept = [(run, found) for run, found in files if found]
    if not kept:
        raise UserError("none of the runs has block weights (folder blocks): they were not kept, or there is no model")
    return kept, [f"{name(run)}: no block weights" for run, found in files if not found]


def visited_states(runs: Sequence[Run]) -> Rows:
    """Return the states and actions that policies visited, in the plane, as `pdml analyse tsne` wrote them."""
    one_environment(runs)
    rows: list[Row] = []
    notes: list[str] = []
    problems: list[str] = []
    for run in runs:
        found = read_table(run.path / "analysis" / "tsne.csv", ("step", "x", "y"), problems)
        if not (run.path / "analysis" / "tsne.csv").exists():
            notes.append(f"{run.path}: no analysis/tsne.csv; run pdml analyse tsne first")
        if not len(found.get("step", ())):
            continue
        source = {"curve": name(run), "method": run.config.method}
        rows += [
            source | {"step": int(step), "x": float(x), "y": float(y)}
            for step, x, y in zip(found["step"], found["x"], found["y"], strict=True)
        ]
    return Rows(rows, notes, tuple(problems))
