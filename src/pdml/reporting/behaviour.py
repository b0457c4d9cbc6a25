"""What may explain the returns of runs, as rows: five measures, each read from the files of a run.

The model's error on the current policy beside the return, episodes that stand still, the effective sample size, how
long a return is kept, and the critics beside Monte-Carlo returns. Steps count from the end of the warm-up.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pdml.config.methods import METHODS
from pdml.reporting import statistics
from pdml.reporting.curves import shared_settings
from pdml.reporting.read import Columns, Row, Run, column, groups, name, one_environment, read_table, returns
from pdml.reporting.rows import Rows, curve_rows
from pdml.reporting.statistics import Series

BIN = 10_000
"""Steps per bin, as the paper's points on Hopper."""

STANDING_REWARD = {"Hopper": 1.0, "Walker2d": 1.0}
"""By family: the reward per step for not falling, which is all that standing still earns."""

EPISODE_LIMIT = 1000
"""Steps of an episode of these families that nothing ends before."""

STANDING_MARGIN = 0.1
"""A whole episode whose return is so close to that of standing, in relative terms, counts as standing still."""

KEPT_SHARE = 0.5
"""A return is lost once an evaluation is below this share of it."""


class Span(NamedTuple):
    """How long a run kept a return that it had not reached before."""

    step: int
    value: float
    kept: int
    """Steps until an evaluation below half of it, or until the last evaluation."""
    lost: bool
    """Whether there was such an evaluation."""


def behaviour(runs: Sequence[Run]) -> Rows:
    """Return the rows of all measures; the column `panel` says which."""
    one_environment(runs)
    rows: list[Row] = []
    notes = shared_settings(runs) + _missing(runs)
    problems: list[str] = []
    for curve, group in groups(runs).items():
        source: Row = {"curve": curve, "method": group[0].config.method}
        for run in group:
            own = source | {"seed": run.config.seed}
            rows += [
                {"panel": "error"} | own | {"step": int(step), "error": float(error), "return": float(value)}
                for step, error, value in zip(*errors_and_returns(run), strict=True)
            ]
            rows += [
                {"panel": "kept"} | own | {"step": span.step, "return": span.value, "kept": span.kept}
                | {"lost": int(span.lost)}
                for span in kept_spans(run)
            ]  # fmt: skip
        for panel, series in (
            ("standing", [standing_by_bin(run) for run in group]),
            ("effective", [effective_share(run) for run in group]),
            ("critics", [critic_column(run, critic_table(run, problems), "bias") for run in group]),
        ):
            found = statistics.over_seeds(series)
            rows += [{"panel": panel} | row for row in curve_rows(curve, group[0].config.method, found)]
    return Rows(rows, notes, tuple(problems))


def _missing(runs: Sequence[Run]) -> list[str]:
    """Name what some runs do not have."""
    notes = [f"{name(run)}: not diagnosed" for run in runs if not len(errors_and_returns(run)[0])]
    if not any(map(standing_reward, runs)):
        notes.append(f"standing still is defined for {' and '.join(STANDING_REWARD)} only")
    notes += [f"{name(run)}: transitions from before the run; no effective size" for run in runs if run.has_prior]
    absent = [run for run in runs if not (run.path / "analysis" / "critics.csv").exists()]
    return notes + [f"{name(run)}: no analysis/critics.csv; run pdml analyse critics" for run in absent]


def errors_and_returns(
    run: Run,
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the steps that were both diagnosed and evaluated, the model's error on the current policy, the return."""
    error, value = column(run, run.diagnostics, "current_l2"), returns(run)
    steps, of_error, of_value = np.intersect1d(error.steps, value.steps, return_indices=True)
    both = error.values[of_error], value.values[of_value]
    finite = np.isfinite(both[0]) & np.isfinite(both[1])
    return steps[finite].astype(float), both[0][finite], both[1][finite]


def standing_reward(run: Run) -> float | None:
    """Return what standing still earns per step; None where that is not defined."""
    return STANDING_REWARD.get(run.config.env.rpartition("-")[0])


def stands(run: Run) -> Float[np.ndarray, " episodes"]:
    """Say for each evaluation episode whether it stands still; nothing where that is not defined."""
    reward = standing_reward(run)
    if reward is None or "length" not in run.evaluations:
        return np.zeros(0)
    limit = min(EPISODE_LIMIT, run.config.max_episode_steps or EPISODE_LIMIT)
    low, high = ((1.0 + margin) * reward * limit for margin in (-STANDING_MARGIN, STANDING_MARGIN))
    value, is_whole = run.evaluations["return"], run.evaluations["length"] == limit
    return (is_whole & (value >= low) & (value <= high)).astype(float)


def standing_by_bin(run: Run) -> Series:
    """Return the share of evaluation episodes that stand still, by the middles of bins of steps."""
    found = stands(run)
    steps = run.evaluations["step"] - run.config.warmup_steps if len(found) else np.zeros(0)
    middles = (np.maximum(np.ceil(steps / BIN), 1.0) - 0.5) * BIN  # DHMBPO is evaluated at the end of the warm-up too
    each = np.unique(middles)
    return Series(name(run), each.astype(int), np.array([found[middles == middle].mean() for middle in each]))


def effective_share(run: Run) -> Series:
    """Return the effective sample size as a share of the real rows that were weighted.

    A row of progress.csv is of a block. MBPO's family weights when a block begins, the double-horizon methods when it
    has ended. Runs with transitions from before them have none: their number is not in these files.
    """
    size = column(run, run.progress, "weights/effective_size")
    if run.has_prior or not len(size.steps):
        return size._replace(steps=np.zeros(0, int), values=np.zeros(0))
    every, late = run.config.model_every, METHODS[run.config.method].is_double_horizon
    blocks = (size.steps if late else size.steps - 1) // every
    rows = np.minimum(run.config.warmup_steps + blocks * every, run.config.replay_capacity)
    return size._replace(values=size.values / rows)


def kept_spans(run: Run) -> list[Span]:
    """Return each evaluation above all before it, and how long no evaluation was below half of it.

    Only positive returns count: half of a negative one is more than it.
    """
    found = returns(run)
    good = np.isfinite(found.values)
    steps, values = found.steps[good], found.values[good]
    spans: list[Span] = []
    for i, value in enumerate(values):
        if value > values[:i].max(initial=0.0):
            below = np.flatnonzero(values[i:] < KEPT_SHARE * value)
            end = int(steps[i + below[0]] if len(below) else steps[-1])
            spans.append(Span(int(steps[i]), float(value), end - int(steps[i]), bool(len(below))))
    return spans


def critic_table(run: Run, problems: list[str]) -> Columns:
    """Return what `pdml analyse critics` wrote.

    Args:
        problems: Collects what could not be read.
    """
    return read_table(run.path / "analysis" / "critics.csv", ("step",), problems)


def critic_column(run: Run, table: Columns, title: str) -> Series:
    """Return a column of it by steps after warm-up, without the steps that have no return to compare with."""
    found = column(run, table, title)
    good = np.isfinite(found.values)
    return found._replace(steps=found.steps[good], values=found.values[good])
