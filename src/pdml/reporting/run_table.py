"""The report's table of runs: how each ended, its last and its best return, and what it started from."""

from collections.abc import Sequence
from html import escape

from pdml.core.evaluation_counts import EvaluationCounts
from pdml.reporting.read import KeptBest, Run, kept_best, returns
from pdml.reporting.sections import Section, badge, number_text, table_html


def runs_table(runs: Sequence[Run]) -> Section:
    """Return the table of runs, open if one of them is not done; where one started from another run, it says so."""
    rows = []
    problems: list[str] = []
    started = any(run.start is not None for run in runs)
    for run in runs:
        reached = max(
            (int(t["step"][-1]) for t in (run.progress, run.evaluations) if len(t.get("step", ()))), default=0
        )
        rows.append(
            (
                escape(run.label),
                str(run.config.seed),
                badge(run.status, run.status) + (f" {escape(run.message)}" if run.message else ""),
                f"{reached:,} of {run.options.steps:,}",
                _last_evaluation(run),
                _best_evaluation(kept_best(run, problems)),
                _low_share(run),
                f"<code>{escape(run.path.as_posix())}</code>",
                *([_started_from(run)] if started else []),
            )
        )
    opened = " open" if any(run.status != "done" for run in runs) else ""
    head = (
        "method",
        "seed",
        "status",
        "steps",
        "return of the last policy",
        "return of the best policy",
        "evaluations below half of the best so far",
        "directory",
        *(["started from"] if started else []),
    )
    table = table_html("Steps include the warm-up here", head, rows)
    return Section(f"<details{opened}><summary>Runs</summary>{table}</details>", problems=tuple(problems))


def _started_from(run: Run) -> str:
    """Return the run that a run started from, and what it took over."""
    if run.start is None:
        return "–"
    taken = ", ".join(f"{run.start.rows:,} rows" if part == "rows" else part for part in run.start.parts)
    which = f"{run.start.method} on {run.start.env}, seed {run.start.seed}, at step {run.start.step:,}"
    return f"<code>{escape(run.start.path)}</code>: {escape(which)}; {escape(taken)}"


def _last_evaluation(run: Run) -> str:
    """Return the mean return of a run's last evaluation, and its step."""
    found = returns(run)
    return (
        f"{number_text(found.values[-1])} at {found.steps[-1] + run.config.warmup_steps:,}" if len(found.steps) else "–"
    )


def _low_share(run: Run) -> str:
    """Return the share of evaluations that lost half of what had been learned."""
    counted = EvaluationCounts()
    for value in returns(run).values:
        counted = counted.after(float(value))
    return f"{counted.low} of {counted.total}" if counted.total else "–"


def _best_evaluation(best: KeptBest | None) -> str:
    """Return the mean return of the evaluation of the best policy, its step, and the mean that it was judged by."""
    if best is None:
        return "–"
    return f"{number_text(best.own)} at {best.step:,} (mean of {best.over}: {number_text(best.mean)})"
