"""A trial of settings: arms that differ in a few settings each, judged against an arm without changes.

Only csv files are read, and an arm is called as its directory is. So the table of a trial stays as it is when a setting
that did not win is removed from the package.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from pdml.core.errors import UserError
from pdml.core.evaluation_counts import EvaluationCounts
from pdml.reporting.read import Columns, read_table
from pdml.reporting.statistics import mean_interval

EXPLAINS = {
    "agent/value_bias": ("critic minus model's return", "{:+.0f}"),
    "agent/action_change": ("action change per phase", "{:.2f}"),
    "agent/divergence": ("KL per phase", "{:.1f}"),
    "agent/actor_gradient": ("actor's gradient", "{:.2g}"),
}
"""Columns of progress.csv that may explain a result, with their titles and how they are written."""


class TrialRun(NamedTuple):
    """What a trial needs of one run."""

    score: float
    """Mean return of its evaluations."""
    low_share: float
    """Share of evaluations below half of the best so far, without the first ones."""
    explains: dict[str, float]
    """Means over the run of the columns of `EXPLAINS`; NaN where it has none."""


class ArmResult(NamedTuple):
    """The runs of an arm beside those of the base."""

    name: str
    runs: list[TrialRun]
    ahead: float
    """Mean score minus that of the base."""
    error: float
    """Standard error of that difference; NaN if one of the two has fewer than two runs."""
    is_candidate: bool
    """Whether it is whole, ahead of the base, and its share of low evaluations is not larger."""

    @property
    def score(self) -> float:
        """Mean over runs."""
        return mean(run.score for run in self.runs)

    @property
    def low_share(self) -> float:
        """Mean over runs."""
        return mean(run.low_share for run in self.runs)


def read_trial(path: Path, first: int, settle: int) -> dict[str, list[TrialRun]]:
    """Read the runs at path/ARM/seed_K, by arm.

    Args:
        first: Evaluations before this real step do not count: arms may differ in their warm-up.
        settle: Real steps from `first` on in which a low evaluation does not count yet.
    """
    arms: dict[str, list[TrialRun]] = {}
    for file in sorted(path.glob("*/seed_*/evaluations.csv")):
        arms.setdefault(file.parents[1].name, []).append(_read_run(file.parent, first, settle))
    if not arms:
        raise UserError(f"trial = '{path}': no run there (no ARM/seed_K/evaluations.csv)")
    return arms


def judge_trial(arms: dict[str, list[TrialRun]], base: str, seeds: int) -> list[ArmResult]:
    """Compare every arm with the base, the highest score first.

    Args:
        seeds: Runs that are planned per arm. With fewer, an arm is no candidate, nor is any before the base is whole.
    """
    if base not in arms:
        raise UserError(f"base = '{base}': no such arm; there are: {', '.join(sorted(arms))}")
    standard = ArmResult(base, arms[base], 0.0, math.nan, is_candidate=False)
    found = [standard]
    for name, runs in arms.items():
        if name == base:
            continue
        arm = ArmResult(name, runs, math.nan, _standard_error(runs, standard.runs), is_candidate=False)
        is_whole = min(len(runs), len(standard.runs)) >= seeds
        is_better = arm.score > standard.score and arm.low_share <= standard.low_share
        found.append(arm._replace(ahead=arm.score - standard.score, is_candidate=is_whole and is_better))
    return sorted(found, key=lambda arm: -arm.score)


def trial_table(results: Sequence[ArmResult], base: str, seeds: int) -> str:
    """Write a trial as a Markdown table, a row per arm."""
    titles = [title for title, _ in EXPLAINS.values()]
    names = ["arm", "seeds", "mean return", f"ahead of {base}", "low evaluations", *titles, ""]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for arm in results:
        scores = [run.score for run in arm.runs]
        spread = f" ± {stdev(scores):.0f}" if len(scores) > 1 else ""
        cells = [
            arm.name,
            f"{len(scores)}" if len(scores) >= seeds else f"{len(scores)} of {seeds}",
            f"{arm.score:.0f}{spread}",
            "–" if arm.name == base else _with_error(arm),
            f"{100 * arm.low_share:.0f} %",
            *(_explained(arm, column, form) for column, (_, form) in EXPLAINS.items()),
            "base" if arm.name == base else "candidate" if arm.is_candidate else "",
        ]
        lines.append(f"| {' | '.join(cells)} |".replace(" -", " −"))
    return "\n".join(lines)


def _read_run(path: Path, first: int, settle: int) -> TrialRun:
    problems: list[str] = []
    steps, returns = _evaluations(read_table(path / "evaluations.csv", ("step", "return"), problems), first)
    if problems or not len(steps):
        raise UserError(f"run = '{path}': {problems[0] if problems else f'no evaluation from step {first} on'}")
    counts = EvaluationCounts()
    low = []
    for step, value in zip(steps, returns, strict=True):
        before, counts = counts, counts.after(float(value))
        if step > first + settle:
            low.append(counts.low > before.low)
    progress = read_table(path / "progress.csv", ("step",), problems)
    explains = {column: mean_interval(progress.get(column, np.full(1, np.nan))).value for column in EXPLAINS}
    return TrialRun(float(returns.mean()), float(np.mean(low)) if low else math.nan, explains)


def _evaluations(table: Columns, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the real steps of evaluations, and their mean returns."""
    steps = np.unique(table.get("step", np.zeros(0)))
    steps = steps[steps >= first]
    return steps, np.array([table["return"][table["step"] == step].mean() for step in steps])


def _standard_error(ours: Sequence[TrialRun], theirs: Sequence[TrialRun]) -> float:
    """Return the standard error of the difference of two mean scores."""
    if min(len(ours), len(theirs)) < 2:
        return math.nan
    return math.hypot(*(stdev(run.score for run in runs) / math.sqrt(len(runs)) for runs in (ours, theirs)))


def _with_error(arm: ArmResult) -> str:
    return f"{arm.ahead:+.0f}" + ("" if math.isnan(arm.error) else f" ± {arm.error:.0f}")


def _explained(arm: ArmResult, column: str, form: str) -> str:
    value = mean_interval(np.array([run.explains[column] for run in arm.runs])).value
    return "–" if math.isnan(value) else form.format(value)
