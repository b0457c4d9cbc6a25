"""A table of runs for results pages: seed by seed, as Markdown."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

from pdml.reporting import published
from pdml.reporting.curves import shared_settings
from pdml.reporting.read import Run, differences, groups, name, returns
from pdml.reporting.statistics import Series, first_reaching, last_mean


def seed_table(runs: Sequence[Run], goal: float = 950.0, last: int = 1, until: int | None = None) -> str:
    """Return per curve the steps, the mean of each seed's last evaluations, that over seeds, and first passages.

    Steps are real steps, warm-up included. Below the table stands what all runs of a curve have in common and its name
    does not say. Where several runs have the same seed, its cell has all their numbers,
    and their mean counts.

    Args:
        goal: The return whose first passage is listed.
        last: Evaluations to average per seed.
        until: Leave out everything after this step.
    """
    end = math.inf if until is None else until
    seeds = sorted({run.config.seed for run in runs})
    names = ["method", "steps", *(f"seed {seed}" for seed in seeds), "mean ± deviation"]
    lines = [f"| {' | '.join(names)} | first at {goal:.0f} or more, by seed |", "|---" * (len(names) + 1) + "|"]
    for curve, group in groups(runs).items():
        seen = [(run.config.seed, _by_real_steps(run, end)) for run in group]
        found = [(seed, value) for seed, series in seen if not math.isnan(value := last_mean(series, last))]
        reached = [first_reaching(series, goal) for _, series in seen]
        first = ", ".join(
            f"{step:.0f}" if math.isfinite(step) else "not yet" if _is_behind(run, end) else "never"
            for step, run in zip(reached, group, strict=True)
        )
        of_seed = [", ".join(f"{value:.0f}" for its, value in found if its == seed) or "–" for seed in seeds]
        cells = " | ".join(of_seed)
        values = _by_seed(found)
        spread = f"{mean(values):.0f} ± {stdev(values):.0f}" if len(values) > 1 else "–"
        lines.append(f"| {curve} | {min(group[0].options.steps, end):.0f} | {cells} | {spread} | {first} |")
    return "\n".join([*lines, *(f"\n{note}." for note in [*shared_settings(runs), *_ends(runs, end)])])


def short_table(runs: Sequence[Run], last: int = 1, until: int | None = None) -> str:
    """Return per curve the mean over seeds of their last evaluations, with its deviation, beside the published one.

    Published numbers appear where the method's authors give one for the same step. Notes below the table say how their
    environments differ, and what all runs of a curve have in common and its name does not say.

    Args:
        last: Evaluations to average per seed.
        until: Leave out everything after this step.
    """
    end = math.inf if until is None else until
    title = "last evaluation" if last == 1 else f"mean of the last {last} evaluations"
    lines = [f"| method | steps | seeds | {title} | published |", "|---|---|---|---|---|"]
    notes = [f"\n{note}." for note in [*shared_settings(runs), *_ends(runs, end)]]
    for curve, group in groups(runs).items():
        found = [(run.config.seed, last_mean(_by_real_steps(run, end), last)) for run in group]
        values = _by_seed([(seed, value) for seed, value in found if not math.isnan(value)])
        spread = f" ± {stdev(values):.0f}" if len(values) > 1 else ""
        ours = f"{mean(values):.0f}{spread}" if values else "–"
        step = min(group[0].options.steps, end)
        known = _published(group[0], step) if last == 1 else None
        cells = [curve, f"{step:.0f}", str(len(values)), ours, known.text if known else "–"]
        lines.append(f"| {' | '.join(cells)} |")
        notes += [f"\n{known.note}."] if known else []
    return "\n".join([*lines, *dict.fromkeys(notes)])


class _Published(NamedTuple):
    """What a method's authors publish for a step."""

    text: str
    note: str
    """Who published it, and how the environment differs."""


def _published(run: Run, step: float) -> _Published | None:
    """Return the published mean, deviation and number of seeds at a real step, where the curve has such a point."""
    config = run.config
    known = None if differences(run) else published.curve(config.env, config.method, updates=config.updates_per_step)
    if known is None or known.half_bin > 0:  # the paper's points are means over bins
        return None
    at = known.steps == step - config.warmup_steps
    if not at.any():
        return None
    value, deviation = float(known.mean[at][0]), float((known.high - known.mean)[at][0])
    return _Published(f"{value:.0f} ± {deviation:.0f}, {known.seeds} seeds", f"{known.label}: {known.note}")


def _by_seed(found: Sequence[tuple[int, float]]) -> list[float]:
    """Return a number per seed: the mean, where several runs have it."""
    return [mean(value for its, value in found if its == seed) for seed in dict(found)]


def _ends(runs: Sequence[Run], end: float) -> list[str]:
    """Name the runs that end before the step of their row, or have not come to it."""
    notes = []
    for group in groups(runs).values():
        for run in group:
            if _is_behind(run, end):
                notes.append(f"{name(run)} is not finished; its last evaluation is at step {_last_step(run, end):.0f}")
            elif run.options.steps < min(group[0].options.steps, end):
                notes.append(f"{name(run)} ends at step {run.options.steps}")
    return notes


def _is_behind(run: Run, end: float) -> bool:
    """Say whether a run has yet to be evaluated, up to the last step that counts."""
    return run.status != "done" and _last_step(run, end) + run.options.eval_every <= min(run.options.steps, end)


def _last_step(run: Run, end: float) -> float:
    """Return the real step of a run's last evaluation up to a step; 0 before the first."""
    return max(_by_real_steps(run, end).steps.tolist(), default=0)


def _by_real_steps(run: Run, end: float) -> Series:
    """Return a run's evaluations up to a step, by real steps."""
    series = returns(run)
    steps = series.steps + run.config.warmup_steps
    return series._replace(steps=steps[steps <= end], values=series.values[steps <= end])
