"""Runs in a few numbers, as rows: final returns, steps to a threshold, training time, aggregates over tasks.

Steps count from the end of the warm-up, as the paper's do.
"""

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from pdml.config.methods import BASELINE
from pdml.core.errors import UserError
from pdml.reporting import published, statistics
from pdml.reporting.curves import published_curve, shared_settings
from pdml.reporting.read import Row, Run, differences, groups, name, returns
from pdml.reporting.rows import Rows, estimate_columns, value_at


def final_returns(runs: Sequence[Run]) -> Rows:
    """Return the mean over seeds of the last evaluation, its interval, and the last published point.

    `last_five` averages, over seeds, the mean of the last five evaluations.
    """
    rows: list[Row] = []
    notes: list[str] = []
    for env in sorted({run.config.env for run in runs}):
        for curve, group in groups([run for run in runs if run.config.env == env]).items():
            row, found = _final_return(env, curve, group)
            rows.append(row)
            notes += found
    return Rows(rows, notes)


def _final_return(env: str, curve: str, group: Sequence[Run]) -> tuple[Row, list[str]]:
    series = [returns(run) for run in group]
    notes = [f"{one.name} on {env}: no evaluation" for one in series if not len(one.steps)]
    good = [np.isfinite(one.values) for one in series]
    lost = [one.name for one, g in zip(series, good, strict=True) if len(g) and not g[-1]]
    notes += [f"{one} on {env}: its last return is not finite; the last finite one is used" for one in lost]
    last = [(one.steps[g][-1], one.values[g][-1]) for one, g in zip(series, good, strict=True) if g.any()]
    ends = [int(step) for step, _ in last] or [0]
    if min(ends) < max(ends):
        notes.append(f"{curve} on {env}: seeds end at different steps, {min(ends)} to {max(ends)}")
    five = np.array([statistics.last_mean(one) for one in series])
    if 0 < np.isfinite(five).sum() < len(five):
        notes.append(f"{curve} on {env}: the mean of the last five leaves out seeds with fewer evaluations")
    paper = published_curve(group[0])
    row = (
        {"env": env, "curve": curve, "method": group[0].config.method}
        | {"first_step": min(ends), "step": max(ends)}
        | estimate_columns(statistics.mean_interval(np.array([value for _, value in last], float)))
        | {"last_five": statistics.finite_mean(five)}
        | {"paper": None if paper is None else float(paper.mean[-1])}
        | {"paper_step": None if paper is None else float(paper.steps[-1] + paper.half_bin)}
        | {"paper_label": None if paper is None else paper.label}
    )
    return row, notes


def steps_to_threshold(runs: Sequence[Run], threshold: float | None = None) -> Rows:
    """Return the first step at which each seed's evaluation reaches a return.

    Args:
        threshold: The return; by default the paper's last point of MBPO.
    """
    rows: list[Row] = []
    notes: list[str] = []
    for run in runs:
        wanted = published.threshold(run.config.env) if threshold is None else threshold
        if wanted is None:
            raise UserError(f"the paper has no return of {run.config.env} to reach; give one with --threshold")
        series = returns(run)
        if not len(series.steps):
            notes.append(f"{name(run)}: no evaluation")
        lost = int(np.isnan(series.values).sum())
        if lost:
            total = len(series.values)
            notes.append(f"{name(run)}: {lost} of {total} evaluations are NaN and count as below the threshold")
        rows.append(
            {
                "env": run.config.env,
                "curve": run.label,
                "method": run.config.method,
                "seed": run.config.seed,
                "threshold": wanted,
                "steps": statistics.first_reaching(series, wanted),
                "evaluated_until": int(series.steps[-1]) if len(series.steps) else 0,
            }
        )
    return Rows(rows, notes)


def training_time(runs: Sequence[Run]) -> Rows:
    """Return the hours per 100k steps after warm-up, relative to the baseline's here and in the paper.

    Evaluation and diagnosis are not counted.
    """
    rows: list[Row] = []
    notes: list[str] = []
    for env in sorted({run.config.env for run in runs}):
        of_env = groups([run for run in runs if run.config.env == env])
        hours = {curve: [_hours(run) for run in group] for curve, group in of_env.items()}
        base = statistics.finite_mean(hours.get(BASELINE, ()))
        paper_base = published.training_hours(env, BASELINE)
        for curve, group in of_env.items():
            notes += [f"{name(run)}: no timing" for run, h in zip(group, hours[curve], strict=True) if np.isnan(h)]
            notes += [f"{name(run)}: {run.status}; its time is extrapolated" for run in group if run.status != "done"]
            estimate = statistics.mean_interval(np.array(hours[curve]))
            method = group[0].config.method
            paper = None if differences(group[0]) else published.training_hours(env, method)
            rows.append(
                {"env": env, "curve": curve, "method": method}
                | {f"hours_per_100k_{key}": v for key, v in estimate_columns(estimate).items() if key != "seeds"}
                | {"seeds": estimate.seeds, "times_mbpo": estimate.value / base}
                | {"paper_times_mbpo": paper / paper_base if paper and paper_base else float("nan")}
            )
    return Rows(rows, notes)


def _hours(run: Run) -> float:
    """Return the hours that 100k steps after warm-up take, NaN if nothing was timed after it."""
    if not len(run.timing.get("step", ())):
        return float("nan")
    last = {title: float(values[-1]) for title, values in run.timing.items()}
    steps = last["step"] - run.config.warmup_steps
    seconds = last["seconds"] - last.get("evaluate", 0.0) - last.get("diagnose", 0.0)
    return seconds / 3600.0 * 1e5 / steps if steps > 0 else float("nan")


def aggregates(runs: Sequence[Run], seed: int = 0) -> Rows:
    """Return the interquartile mean and optimality gap of normalised returns over tasks, and who beats whom.

    Args:
        seed: Of the bootstrap.
    """
    scores, notes = _normalised(runs)
    envs = sorted({run.config.env for run in runs})
    rows: list[Row] = []
    for curve, by_env in scores.items():
        if len(by_env) < len(envs):
            notes.append(f"{curve}: runs on {len(by_env)} of {len(envs)} tasks; its aggregates are over these")
        if len({len(values) for values in by_env.values()}) > 1:
            notes.append(f"{curve}: tasks have different numbers of seeds; every seed has the same weight")
        for statistic, function in (("iqm", statistics.iqm), ("optimality_gap", statistics.optimality_gap)):
            estimate = statistics.aggregate(list(by_env.values()), function, seed)
            rows.append({"curve": curve, "statistic": statistic, "versus": ""} | estimate_columns(estimate))
    for ours, theirs in permutations(scores, 2):
        both = [env for env in envs if env in scores[ours] and env in scores[theirs]]
        if both:
            first, second = ([scores[curve][env] for env in both] for curve in (ours, theirs))
            estimate = statistics.probability_of_improvement(first, second, seed)
            rows.append({"curve": ours, "statistic": "probability", "versus": theirs} | estimate_columns(estimate))
    return Rows(rows, notes)


def _normalised(runs: Sequence[Run]) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    """Return the scaled returns of each curve on each environment, at the last step that all its runs have."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    notes: list[str] = []
    for env in sorted({run.config.env for run in runs}):
        scale = published.scale(env)
        if scale is None:
            raise UserError(f"{env}: the paper has no scale for its returns; leave it out")
        of_env = [run for run in runs if run.config.env == env]
        step, found = common_end(of_env)
        notes += shared_settings(of_env) + found
        for curve, group in groups(of_env).items():
            finals = np.array([value_at(returns(run), step) for run in group])
            notes += _not_finite(group, finals)
            scores.setdefault(curve, {})[env] = (finals - scale.zero) / (scale.one - scale.zero)
    return scores, notes


def _not_finite(runs: Sequence[Run], finals: np.ndarray) -> list[str]:
    """Name the runs whose evaluation has no finite return."""
    lost = [run for run, value in zip(runs, finals, strict=True) if len(returns(run).steps) and not np.isfinite(value)]
    return [f"{name(run)} on {run.config.env}: its last return is not finite and was left out" for run in lost]


def common_end(runs: Sequence[Run]) -> tuple[int, list[str]]:
    """Return the last step that every evaluated run of an environment has, and name the runs that are cut there."""
    known = [series for series in map(returns, runs) if len(series.steps)]
    if not known:
        raise UserError("no evaluation in any of the runs")
    common = set.intersection(*(set(series.steps.tolist()) for series in known))
    if not common:
        raise UserError("the runs have no evaluated step in common")
    end = max(common)
    longer = [series.name for series in known if series.steps[-1] > end]
    notes = [f"{runs[0].config.env}: compared at step {end}; {', '.join(longer)} ran longer"] if longer else []
    notes += [f"{name(run)}: no evaluation" for run in runs if not len(returns(run).steps)]
    return end, notes
