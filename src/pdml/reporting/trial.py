"""A trial of settings: arms that differ in a few settings each, judged against an arm without changes.

Only csv files are read, and an arm is called as its directory is. So the table of a trial stays as it is when a setting
that did not win is removed from the package.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pdml.core.errors import UserError
from pdml.core.evaluation_counts import EvaluationCounts
from pdml.reporting.read import mean_returns, read_table
from pdml.reporting.rows import cell_text
from pdml.reporting.statistics import finite_mean, mean_variance

EXPLAINS = {
    "agent/value_bias": ("critic minus model's return", "{:+.0f}"),
    "agent/action_change": ("action change per phase", "{:.2f}"),
    "agent/divergence": ("KL per phase", "{:.1f}"),
    "agent/actor_gradient": ("actor's gradient", "{:.2g}"),
}
"""Columns of progress.csv that may explain a result, with their titles and how they are written.

They are averaged over the phases after the first step that counts, so without the long one at the end of the warm-up.
"""


ROUNDING = 1e-9
"""Shares are sums of fractions: two that are equal may differ by less than this."""


class Window(NamedTuple):
    """The evaluations that count, by real steps: the same for all arms, which may differ in their warm-up."""

    first: int
    last: int
    """A run counts once it has been evaluated at this step."""
    settle: int
    """Steps after `first` in which no evaluation counts as low."""


class TrialRun(NamedTuple):
    """What a trial needs of one run."""

    seed: int
    score: float
    """Mean return of its evaluations."""
    low_share: float
    """Share of evaluations below half of the best so far; NaN if none counts."""
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
    """Whether it is whole, ahead of the base, and not less steady by more than a standard error.

    Steadiness is the share of low evaluations.
    """

    @property
    def is_clear(self) -> bool:
        """Whether it is ahead by at least one standard error."""
        return self.ahead >= self.error

    @property
    def scores(self) -> Float64[np.ndarray, " n"]:
        """Those of its runs."""
        return np.array([run.score for run in self.runs], np.float64)


def read_trial(path: Path, window: Window) -> dict[str, list[TrialRun]]:
    """Read the runs at path/ARM/seed_K, by arm; those that are not evaluated at the last step yet are left out."""
    arms: dict[str, list[TrialRun]] = {}
    for file in sorted(path.glob("*/seed_*/evaluations.csv")):
        if re.fullmatch(r"seed_\d+", file.parent.name):
            run = _read_run(file.parent, window)
            arms.setdefault(file.parents[1].name, []).extend([] if run is None else [run])
    if not arms:
        raise UserError(f"trial = '{path}': no run there (no ARM/seed_K/evaluations.csv)")
    return arms


def judge_trial(arms: dict[str, list[TrialRun]], base: str, seeds: int) -> list[ArmResult]:
    """Compare every arm with the base, the highest score first.

    Args:
        seeds: Runs that are planned per arm. An arm is no candidate before it has the same seeds as the base, and the
            base so many.
    """
    if base not in arms:
        raise UserError(f"base = '{base}': no such arm; there are: {', '.join(sorted(arms))}")
    if len(arms[base]) > seeds:
        raise UserError(f"seeds = {seeds}: the base has {len(arms[base])} runs")
    judged = [_judge(name, runs, arms[base], seeds) for name, runs in arms.items()]
    return sorted(judged, key=lambda arm: -finite_mean(arm.scores) if arm.runs else math.inf)


def trial_table(results: Sequence[ArmResult], base: str, seeds: int) -> str:
    """Write a trial as a Markdown table, a row per arm."""
    planned = {run.seed for arm in results if arm.name == base for run in arm.runs}
    titles = [title for title, _ in EXPLAINS.values()]
    names = ["arm", "seeds", "mean return ± deviation", f"ahead of {base} ± standard error", "low evaluations", *titles]
    lines = [f"| {' | '.join([*names, ''])} |", "|---" * (len(names) + 1) + "|"]
    for arm in results:
        deviation = math.sqrt(mean_variance(arm.scores) * len(arm.runs)) if arm.runs else math.nan
        cells = [
            arm.name.replace("|", "\\|"),
            _seeds_text(arm, planned, seeds),
            cell_text(finite_mean(arm.scores), "{:.0f}") + cell_text(deviation, " ± {:.0f}", ""),
            "–" if arm.name == base else cell_text(arm.ahead, "{:+.0f}") + cell_text(arm.error, " ± {:.0f}", ""),
            cell_text(100 * finite_mean([run.low_share for run in arm.runs]), "{:.0f} %"),
            *(
                cell_text(finite_mean([run.explains[name] for run in arm.runs]), form)
                for name, (_, form) in EXPLAINS.items()
            ),
            "base" if arm.name == base else _mark(arm),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seeds_text(arm: ArmResult, planned: set[int], seeds: int) -> str:
    """Return how many runs an arm has, and whether their seeds are not those of the base."""
    count = f"{len(arm.runs)}" if len(arm.runs) >= seeds else f"{len(arm.runs)} of {seeds}"
    return count if len(arm.runs) < seeds or {run.seed for run in arm.runs} == planned else f"{count}, other seeds"


def _mark(arm: ArmResult) -> str:
    if not arm.is_candidate or math.isnan(arm.error):
        return "candidate" if arm.is_candidate else ""
    return f"candidate, ahead by {'at least' if arm.is_clear else 'less than'} one standard error"


def _judge(name: str, runs: list[TrialRun], base: list[TrialRun], seeds: int) -> ArmResult:
    ours, theirs = (np.array([run.score for run in each], np.float64) for each in (runs, base))
    low, standard_low = (np.array([run.low_share for run in each], np.float64) for each in (runs, base))
    ahead, less_steady = finite_mean(ours) - finite_mean(theirs), finite_mean(low) - finite_mean(standard_low)
    is_whole = len(base) == seeds and {run.seed for run in runs} == {run.seed for run in base}
    error, low_error = _difference_error(ours, theirs), _difference_error(low, standard_low)
    is_steady = less_steady <= (0.0 if math.isnan(low_error) else low_error) + ROUNDING
    return ArmResult(name, runs, ahead, error, is_whole and ahead > 0.0 and is_steady)


def _difference_error(ours: Float64[np.ndarray, " n"], theirs: Float64[np.ndarray, " m"]) -> float:
    """Return the standard error of a difference of means; NaN where one of the two has fewer than two values."""
    return math.sqrt(mean_variance(ours) + mean_variance(theirs)) if len(ours) and len(theirs) else math.nan


def _read_run(path: Path, window: Window) -> TrialRun | None:
    """Read a run; None if it has not come to the last step yet."""
    problems: list[str] = []
    table = read_table(path / "evaluations.csv", ("step", "return"), problems)
    steps, returns = mean_returns(table)
    if window.last not in steps:
        return None
    progress = read_table(path / "progress.csv", ("step",), problems)
    counted = (steps >= window.first) & (steps <= window.last)
    steps, returns = steps[counted], returns[counted]
    problems += [
        f"{path / 'evaluations.csv'}: step {step:.0f} has no finite return" for step in steps[np.isnan(returns)]
    ]
    if problems:
        raise UserError(problems[0])
    counts, low = EvaluationCounts(), []
    for step, value in zip(steps, returns, strict=True):
        before, counts = counts, counts.after(float(value))
        if step > window.first + window.settle:
            low.append(float(counts.low > before.low))
    in_window = (progress["step"] > window.first) & (progress["step"] <= window.last)
    explains = {column: finite_mean(progress[column][in_window] if column in progress else ()) for column in EXPLAINS}
    seed = int(path.name.removeprefix("seed_"))
    return TrialRun(seed, float(returns.mean()), finite_mean(low), explains)
