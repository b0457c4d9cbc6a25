"""A table of what may explain the returns, for results pages: one row per curve, as Markdown."""

import math
from collections.abc import Sequence

import numpy as np

from pdml.reporting.behaviour import (
    BIN,
    critic_column,
    critic_table,
    effective_share,
    errors_and_returns,
    kept_spans,
    stands,
)
from pdml.reporting.curves import shared_settings
from pdml.reporting.read import Run, groups, one_environment
from pdml.reporting.rows import cell_text, value_at
from pdml.reporting.statistics import finite_mean, median_duration, rank_correlation

CRITICS = ("value_mean", "return_mean", "bias")
_FORMS = ("{:.0f}", "{:.0f}", "{:+.0f}")


def behaviour_table(runs: Sequence[Run], problems: list[str]) -> str:
    """Return per curve the means over seeds of the measures; a return's time is pooled over seeds.

    Below the table stands what all runs of a curve have in common and its name does not say.

    Args:
        problems: Collects what could not be read.
    """
    one_environment(runs)
    critics = {run.path: critic_table(run, problems) for run in runs}
    steps = sorted({int(step) for run in runs for step in critic_column(run, critics[run.path], "bias").steps})
    names = [
        "method",
        "seeds",
        "error and return, rank correlation",
        "episodes standing still",
        f"effective size, last {BIN // 1000}k steps",
        "median steps a return is kept",
        *(f"critics {step} steps after warm-up: bias (value, return)" for step in steps),
    ]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for curve, group in groups(runs).items():
        found = [{title: critic_column(run, critics[run.path], title) for title in CRITICS} for run in group]
        cells = [
            curve,
            str(len(group)),
            cell_text(finite_mean([_correlation(run) for run in group]), "{:+.2f}"),
            cell_text(100 * finite_mean([finite_mean(stands(run)) for run in group]), "{:.0f} %"),
            cell_text(100 * finite_mean([_last_share(run) for run in group]), "{:.0f} %"),
            _kept(group),
            *(_critics([[value_at(one[title], step) for one in found] for title in CRITICS]) for step in steps),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(f"\n{note}." for note in shared_settings(runs))])


def _correlation(run: Run) -> float:
    _, error, value = errors_and_returns(run)
    return rank_correlation(error, value)


def _last_share(run: Run) -> float:
    """Return the mean effective share over the last bin's length of a run."""
    share = effective_share(run)
    return finite_mean(share.values[share.steps > share.steps[-1] - BIN]) if len(share.steps) else math.nan


def _kept(group: Sequence[Run]) -> str:
    """Return the median over all seeds; if too few returns were lost to say, how long the runs are."""
    spans = [span for run in group for span in kept_spans(run)]
    if not spans:
        return "–"
    median = median_duration(np.array([span.kept for span in spans], float), np.array([span.lost for span in spans]))
    if math.isfinite(median):
        return f"{median:.0f}"
    return f"> {max(span.kept for span in spans)}"


def _critics(columns: list[list[float]]) -> str:
    """Write the seeds' mean bias, value and return."""
    value, later, bias = (cell_text(finite_mean(values), form) for values, form in zip(columns, _FORMS, strict=True))
    return f"{bias} ({value}, {later})" if bias != "–" else bias
