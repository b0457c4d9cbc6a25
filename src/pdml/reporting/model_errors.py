"""Errors of the learned model as rows: after one step, after several, and on held-out transitions."""

from collections.abc import Sequence

import numpy as np

from pdml.config.methods import METHODS
from pdml.core.errors import UserError
from pdml.reporting import statistics
from pdml.reporting.curves import progress_curves
from pdml.reporting.read import Row, Run, column, groups, name, one_environment
from pdml.reporting.rows import Rows, curve_rows, estimate_columns, value_at


def holdout_errors(runs: Sequence[Run], is_double_horizon: bool) -> list[Row]:
    """Return the error on held-out transitions after each fit, of the double-horizon methods or of the others.

    The two have different units: DHMBPO's model has a score that may be negative.
    """
    chosen = [run for run in runs if METHODS[run.config.method].is_double_horizon == is_double_horizon]
    return progress_curves(chosen, "model/holdout_error")


def one_step_errors(runs: Sequence[Run]) -> Rows:
    """Return the error on fresh steps of the current policy, and of all policies so far (runs with --diagnose)."""
    one_environment(runs)
    rows: list[Row] = []
    known, notes = _diagnosed(runs)
    for curve, group in groups(known).items():
        for kind in ("current", "overall"):
            found = statistics.over_seeds([column(run, run.diagnostics, f"{kind}_l2") for run in group])
            notes += found.notes if kind == "current" else []
            rows += [row | {"error": kind} for row in curve_rows(curve, group[0].config.method, found)]
    return Rows(rows, notes)


def compounding_errors(runs: Sequence[Run], at: Sequence[int] = ()) -> Rows:
    """Return the error after 1, 2, ... steps of the same actions.

    Args:
        at: Steps after warm-up; by default the last step that all runs have.
    """
    one_environment(runs)
    known, notes = _diagnosed(runs)
    steps = {step for run in known for step in run.diagnostics["steps_after_warmup"].astype(int).tolist()}
    common = [step for step in steps if all(step in run.diagnostics["steps_after_warmup"] for run in known)]
    if not at and not common:
        raise UserError("the runs have no diagnosed step in common; choose with --at")
    for step in at:
        if step not in steps:
            raise UserError(f"at = {step}: not diagnosed; there are {', '.join(map(str, sorted(steps)))}")
    if not at and max(common) < max(steps):
        notes.append(f"at step {max(common)}, the last that all runs were diagnosed at; some were at {max(steps)}")
    rows: list[Row] = []
    for curve, group in groups(known).items():
        for step in at or [max(common)]:
            made = _by_depth(curve, group, step)
            rows += made
            absent = [run for run in group if step not in run.diagnostics["steps_after_warmup"]]
            notes += [f"{name(run)}: not diagnosed at step {step}" for run in absent]
            short = [row["depth"] for row in made if row["seeds"] < len(group) - len(absent)]
            if short:
                notes.append(f"{curve}, step {step}: from depth {short[0]}, some seeds had no episode that long")
    return Rows(rows, notes)


def _by_depth(curve: str, group: Sequence[Run], step: int) -> list[Row]:
    """Return the mean error over the seeds of a curve at each depth of a rollout."""
    rows: list[Row] = []
    for title in group[0].diagnostics:
        if title.startswith("compounding_"):
            values = [value_at(column(run, run.diagnostics, title), step) for run in group]
            depth = int(title.removeprefix("compounding_"))
            rows.append(
                {"curve": curve, "method": group[0].config.method, "step": step, "depth": depth}
                | estimate_columns(statistics.mean_interval(np.array(values)))
            )
    return rows


def _diagnosed(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the diagnosed runs, and name the others."""
    kept = [run for run in runs if len(run.diagnostics.get("step", ()))]
    if not kept:
        raise UserError("none of the runs was diagnosed: train with --diagnose")
    return kept, [f"{name(run)}: not diagnosed" for run in runs if not len(run.diagnostics.get("step", ()))]
