"""The numbers behind figures and reports: each function turns runs into rows, and no figure shows anything else.

Steps count from the end of the warm-up, as the paper's do.
"""

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pdml.config.schema import DOUBLE, get
from pdml.core.errors import UserError
from pdml.reporting import published, statistics
from pdml.reporting.published import PaperCurve
from pdml.reporting.read import (
    Row,
    Run,
    block_files,
    block_weights,
    column,
    differences,
    groups,
    name,
    one_environment,
    read_table,
    returns,
)
from pdml.reporting.statistics import Curve, Series

HEAT_STEPS = 150
"""Most steps of a run that a heat map shows."""

ABLATION = ("pdml", "pdml-model-only", "pdml-starts-only", "mbpo", *DOUBLE)
RATED = ("pdml", "pdml-dhmbpo")


class Table(NamedTuple):
    """Rows of one kind, and what was done to get them."""

    rows: list[Row]
    notes: list[str]
    problems: tuple[str, ...] = ()
    """What could not be read."""


def learning_curves(runs: Sequence[Run]) -> Table:
    """Return over real steps, the mean over seeds with its 95 % interval, and published points."""
    return _with_paper(runs, lambda run: _papers(run, None))


def each_seed(runs: Sequence[Run]) -> Table:
    """Return over real steps of every run by itself, numbered within its curve, and published points."""
    one_environment(runs)
    rows: list[Row] = []
    notes = _shared_settings(runs)
    for curve, group in groups(runs).items():
        for number, run in enumerate(group):
            found = statistics.over_seeds([returns(run)])
            notes += found.notes
            own: Row = {"run": number, "seed": run.config.seed}
            rows += [row | own for row in curve_rows(curve, run.config.method, found)]
        known = _papers(group[0], None)
        if known is not None:
            rows += _paper_rows(curve, group[0].config.method, known)
            notes += [f"{known.label}: {known.note}"] if known.note else []
    return Table(rows, list(dict.fromkeys(notes)))


def ablation(runs: Sequence[Run]) -> Table:
    """Return over real steps of PDML, of its weights used by half, and of what it builds on, with published points."""
    kept = [run for run in runs if run.config.method in ABLATION]
    if not kept:
        raise UserError(f"no run of {', '.join(ABLATION)}: the ablation compares these")
    return _with_paper(kept, lambda run: _papers(run, "ablation"))


def rates(runs: Sequence[Run]) -> Table:
    """Return over real steps by mixture.rate, with published points."""
    return _sweep(runs, RATED, {"rate": "mixture.rate"}, _papers_rate)


def horizons(runs: Sequence[Run]) -> Table:
    """Return over real steps by the lengths of far and near rollouts, with DHMBPO's published points."""
    return _sweep(runs, DOUBLE, {"far": "double.far", "near": "double.near"}, lambda run: _papers(run, None))


def _sweep(
    runs: Sequence[Run],
    methods: Sequence[str],
    options: dict[str, str],
    paper: Callable[[Run], PaperCurve | None],
) -> Table:
    """Return the curves of some methods, each row with the settings that are compared, by column."""
    kept = [run for run in runs if run.config.method in methods]
    if not kept:
        raise UserError(f"no run of {', '.join(methods)}: their runs are compared by {' and '.join(options.values())}")
    table = _with_paper(kept, paper)
    named = {run.label: {title: get(run.config, option) for title, option in options.items()} for run in kept}
    return table._replace(rows=[row | named[row["curve"]] for row in table.rows])


def _papers(run: Run, figure: str | None) -> PaperCurve | None:
    """Return the published curve of a method; runs with other settings than its defaults have none.

    Beside both double-horizon methods it is DHMBPO's, for its own preset and its numbers of updates a step too.
    """
    words = differences(run.config)
    if run.config.method not in DOUBLE:
        return None if words else published.curve(run.config.env, run.config.method, figure)
    other = [word for word in words if word != "preset=published" and not word.startswith("updates_per_step=")]
    return None if other else published.dhmbpo_curve(run.config.env, run.config.updates_per_step)


def _papers_rate(run: Run) -> PaperCurve | None:
    """Return the paper's curve of a rate; runs in which something else differs too have none."""
    if run.config.method in DOUBLE:
        return _papers(run, None)
    other = [word for word in differences(run.config) if not word.startswith("mixture.rate=")]
    return None if other else published.rate_curve(run.config.env, run.config.mixture.rate)


def _shared_settings(runs: Sequence[Run]) -> list[str]:
    """Name the settings off the defaults that no label shows, since all runs of a method share them."""
    notes = []
    for curve, group in groups(runs).items():
        hidden = [word for word in differences(group[0].config) if word not in curve.split()]
        if hidden:
            notes.append(f"{curve} on {group[0].config.env}: all its runs have {', '.join(hidden)}")
    return notes


def _with_paper(runs: Sequence[Run], paper: Callable[[Run], PaperCurve | None]) -> Table:
    one_environment(runs)
    rows: list[Row] = []
    notes = _shared_settings(runs)
    shown: set[str] = set()
    for curve, group in groups(runs).items():
        found = statistics.over_seeds([returns(run) for run in group])
        notes += found.notes
        seeds = [run.config.seed for run in group]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        notes += [f"{curve}: seed {seed} is there {seeds.count(seed)} times and counts as often" for seed in twice]
        rows += curve_rows(curve, group[0].config.method, found)
        known = paper(group[0])
        if known is None or known.label in shown:
            continue
        rows += _paper_rows(curve, group[0].config.method, known)
        if known.note:  # of another paper, and the same for several curves: shown beside the first
            shown.add(known.label)
            notes.append(f"{known.label}: {known.note}")
    return Table(rows, notes)


def _paper_rows(curve: str, method: str, known: PaperCurve) -> list[Row]:
    return [
        {
            "curve": curve,
            "method": method,
            "source": known.label,
            "step": float(known.steps[i]),
            "mean": float(known.mean[i]),
            "low": float(known.low[i]),
            "high": float(known.high[i]),
            "seeds": known.seeds,
            "half_bin": known.half_bin,
        }
        | ({"note": known.note} if known.note else {})
        for i in range(len(known.steps))
    ]


def reach(rows: list[Row]) -> float:
    """Return how far a plot of curves goes: a little further than the runs, so that the paper's do not squash them."""
    return 1.1 * max((row["step"] for row in rows if row["source"] == "runs"), default=math.inf)


def curve_rows(curve: str, method: str, found: Curve) -> list[Row]:
    """Return the rows of a curve over seeds."""
    return [
        {
            "curve": curve,
            "method": method,
            "source": "runs",
            "step": int(found.steps[i]),
            "mean": float(found.mean[i]),
            "low": float(found.low[i]),
            "high": float(found.high[i]),
            "seeds": int(found.seeds[i]),
            "half_bin": 0.0,
        }
        for i in range(len(found.steps))
    ]


def model_errors(runs: Sequence[Run]) -> Table:
    """Model's error on fresh steps of the current policy, and of all policies so far (runs with --diagnose)."""
    one_environment(runs)
    rows: list[Row] = []
    known, notes = _diagnosed(runs)
    for curve, group in groups(known).items():
        for kind in ("current", "overall"):
            found = statistics.over_seeds([column(run, run.diagnostics, f"{kind}_l2") for run in group])
            notes += found.notes if kind == "current" else []
            rows += [row | {"error": kind} for row in curve_rows(curve, group[0].config.method, found)]
    return Table(rows, notes)


def compounding(runs: Sequence[Run], at: Sequence[int] = ()) -> Table:
    """Model's error after 1, 2, ... steps of the same actions, by default at the last step that all runs have."""
    one_environment(runs)
    known, notes = _diagnosed(runs)
    steps = {step for run in known for step in run.diagnostics["steps_after_warmup"].astype(int).tolist()}
    common = [step for step in steps if all(step in run.diagnostics["steps_after_warmup"] for run in known)]
    if not at and not common:
        raise UserError("the runs have no diagnosed step in common; choose with --at")
    chosen = at or [max(common)]
    rows: list[Row] = []
    for curve, group in groups(known).items():
        titles = [title for title in group[0].diagnostics if title.startswith("compounding_")]
        for step in chosen:
            if step not in steps:
                raise UserError(f"at = {step}: not diagnosed; there are {', '.join(map(str, sorted(steps)))}")
            for title in titles:
                depth = int(title.removeprefix("compounding_"))
                values = [_at(column(run, run.diagnostics, title), step) for run in group]
                rows.append(
                    {"curve": curve, "method": group[0].config.method, "step": step, "depth": depth}
                    | _estimate(statistics.mean_interval(np.array(values)))
                )
            absent = [name(run) for run in group if step not in run.diagnostics["steps_after_warmup"]]
            notes += [f"{one}: not diagnosed at step {step}" for one in absent]
            made = [row for row in rows if row["curve"] == curve and row["step"] == step]
            short = [row["depth"] for row in made if row["seeds"] < len(group) - len(absent)]
            if short:
                notes.append(f"{curve}, step {step}: from depth {short[0]} on, not every seed had an episode so long")
    return Table(rows, notes)


def _diagnosed(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    kept = [run for run in runs if len(run.diagnostics.get("step", ()))]
    if not kept:
        raise UserError("none of the runs was diagnosed: train with --diagnose")
    return kept, [f"{name(run)}: not diagnosed" for run in runs if not len(run.diagnostics.get("step", ()))]


def _at(series: Series, step: int) -> float:
    found = series.values[series.steps == step]
    return float(found[0]) if len(found) else float("nan")


def _estimate(estimate: statistics.Estimate) -> Row:
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "seeds": estimate.seeds}


def mixture_weights(runs: Sequence[Run], at: Sequence[int] = ()) -> Table:
    """Weights of historical policies at chosen steps, as the paper plots them: without warm-up and newest, sum 1."""
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
            historical = shares[1:-1].astype(np.float64)
            u = historical / historical.sum() if historical.sum() > 0 else historical
            source = _source(run) | {"source": "runs", "step": step}
            rows += [source | {"policy": i + 1, "weight": float(u[i])} for i in range(len(u))]
            paper = published.mixture(run.config.env, step)
            if paper is not None and run.config.method == "pdml" and not differences(run.config) and step not in shown:
                shown.add(step)
                source |= {"source": "paper"}
                rows += [source | {"policy": i + 1, "weight": float(w)} for i, w in enumerate(paper)]
    return Table(rows, notes, tuple(problems))


def weight_history(runs: Sequence[Run], most: int = HEAT_STEPS) -> Table:
    """Weight of each block where its method uses weights, for a whole run: policy by step, thinned to `most` steps."""
    one_environment(runs)
    rows: list[Row] = []
    problems: list[str] = []
    kept, notes = _with_blocks(runs)
    for run, files in kept:
        every = -(-len(files) // most)
        if every > 1:
            notes.append(f"{name(run)}: of its {len(files)} blocks one in {every} is shown")
        for step in sorted(files)[::-1][::every][::-1]:
            shares = block_weights(run, files[step])
            if shares is None:
                problems.append(f"{files[step]}: is damaged and was left out")
                continue
            source = _source(run) | {"step": step}
            rows += [source | {"policy": i, "share": share} for i, share in enumerate(shares.tolist())]
    return Table(rows, notes, tuple(problems))


def _source(run: Run) -> Row:
    return {"curve": run.label, "method": run.config.method, "seed": run.config.seed}


def _with_blocks(runs: Sequence[Run]) -> tuple[list[tuple[Run, dict[int, Path]]], list[str]]:
    """Return the runs that keep the weights of their blocks, and name those that do not."""
    files = [(run, block_files(run)) for run in runs]
    kept = [(run, found) for run, found in files if found]
    if not kept:
        raise UserError("none of the runs keeps the weights of its blocks (folder blocks): they have no model")
    return kept, [f"{name(run)}: no weights of blocks are kept" for run, found in files if not found]


def visitation(runs: Sequence[Run]) -> Table:
    """States and actions that policies visited, in the plane: what `pdml analyse tsne` wrote."""
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
    return Table(rows, notes, tuple(problems))


def training_time(runs: Sequence[Run]) -> Table:
    """Hours for 100k steps after warm-up, evaluation and diagnosis not counted, beside MBPO's and the paper's."""
    rows, notes = [], []
    for env in sorted({run.config.env for run in runs}):
        of_env = [run for run in runs if run.config.env == env]
        hours = {curve: [_hours(run) for run in group] for curve, group in groups(of_env).items()}
        base = statistics.mean_interval(np.array(hours.get("mbpo", [np.nan]))).value
        for curve, group in groups(of_env).items():
            notes += [f"{name(run)}: no timing" for run, h in zip(group, hours[curve], strict=True) if np.isnan(h)]
            notes += [f"{name(run)}: {run.status}; its time is scaled up" for run in group if run.status != "done"]
            estimate = statistics.mean_interval(np.array(hours[curve]))
            method = group[0].config.method
            paper = None if differences(group[0].config) else published.training_hours(env, method)
            of_mbpo = published.training_hours(env, "mbpo")
            rows.append(
                {"env": env, "curve": curve, "method": method}
                | {f"hours_per_100k_{key}": value for key, value in _estimate(estimate).items() if key != "seeds"}
                | {"seeds": estimate.seeds, "times_mbpo": estimate.value / base}
                | {"paper_times_mbpo": paper / of_mbpo if paper and of_mbpo else float("nan")}
            )
    return Table(rows, notes)


def _hours(run: Run) -> float:
    if not len(run.timing.get("step", ())):
        return float("nan")
    last = {title: float(values[-1]) for title, values in run.timing.items()}
    learned = last["step"] - run.config.warmup_steps
    seconds = last["seconds"] - last.get("evaluate", 0.0) - last.get("diagnose", 0.0)
    return seconds / 3600.0 * 1e5 / learned if learned > 0 else float("nan")


def steps_to_threshold(runs: Sequence[Run], threshold: float | None = None) -> Table:
    """First step at which each seed's evaluation reaches a return: by default the paper's last point of MBPO."""
    rows, notes = [], []
    for run in runs:
        wanted = published.threshold(run.config.env) if threshold is None else threshold
        if wanted is None:
            raise UserError(f"the paper has no return of {run.config.env} to reach; give one with --threshold")
        series = returns(run)
        if not len(series.steps):
            notes.append(f"{name(run)}: no evaluation")
        lost = int(np.isnan(series.values).sum())
        if lost:
            notes.append(f"{name(run)}: {lost} evaluations are not numbers; they count as below the threshold")
        reached = statistics.first_reaching(series, wanted)
        rows.append(
            {
                "env": run.config.env,
                "curve": run.label,
                "method": run.config.method,
                "seed": run.config.seed,
                "threshold": wanted,
                "steps": reached,
                "evaluated_until": int(series.steps[-1]) if len(series.steps) else 0,
            }
        )
    return Table(rows, notes)


def aggregates(runs: Sequence[Run], seed: int = 0) -> Table:
    """Interquartile mean and optimality gap of normalised returns over tasks, and who is likely to beat whom."""
    scores, notes = _normalised(runs)
    envs = sorted({run.config.env for run in runs})
    rows = []
    for curve, by_env in scores.items():
        if len(by_env) < len(envs):
            notes.append(f"{curve}: runs on {len(by_env)} of {len(envs)} tasks; its aggregates are over these")
        if len({len(values) for values in by_env.values()}) > 1:
            notes.append(f"{curve}: tasks have different numbers of seeds; each seed counts alike")
        for statistic, function in (("iqm", statistics.iqm), ("optimality_gap", statistics.optimality_gap)):
            estimate = statistics.aggregate(list(by_env.values()), function, seed)
            rows.append({"curve": curve, "statistic": statistic, "versus": ""} | _estimate(estimate))
    for ours, theirs in permutations(scores, 2):
        both = [env for env in envs if env in scores[ours] and env in scores[theirs]]
        if both:
            first, second = ([scores[curve][env] for env in both] for curve in (ours, theirs))
            estimate = statistics.probability_of_improvement(first, second, seed)
            rows.append({"curve": ours, "statistic": "probability", "versus": theirs} | _estimate(estimate))
    return Table(rows, notes)


def _normalised(runs: Sequence[Run]) -> tuple[dict[str, dict[str, np.ndarray]], list[str]]:
    """Return the scaled returns of each curve on each environment, at the last step that all runs of it have."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    notes: list[str] = []
    for env in sorted({run.config.env for run in runs}):
        scale = published.scale(env)
        if scale is None:
            raise UserError(f"{env}: the paper has no scale for its returns; leave it out")
        of_env = [run for run in runs if run.config.env == env]
        step, found = common_end(of_env)
        notes += _shared_settings(of_env) + found
        for curve, group in groups(of_env).items():
            finals = np.array([_at(returns(run), step) for run in group])
            notes += _not_numbers(group, finals)
            scores.setdefault(curve, {})[env] = (finals - scale.zero) / (scale.one - scale.zero)
    return scores, notes


def _not_numbers(runs: Sequence[Run], finals: np.ndarray) -> list[str]:
    """Name the runs that were evaluated, but to no finite number."""
    lost = [run for run, value in zip(runs, finals, strict=True) if len(returns(run).steps) and not np.isfinite(value)]
    return [f"{name(run)} on {run.config.env}: its last return is not a number and was left out" for run in lost]


def common_end(runs: Sequence[Run]) -> tuple[int, list[str]]:
    """Return the last step that every evaluated run of an environment has, and what was cut off."""
    known = [series for series in map(returns, runs) if len(series.steps)]
    if not known:
        raise UserError("no evaluation in any of the runs")
    common = set.intersection(*(set(series.steps.tolist()) for series in known))
    if not common:
        raise UserError("the runs have no evaluated step in common")
    end = max(common)
    longer = [series.name for series in known if series.steps[-1] > end]
    notes = [f"{runs[0].config.env}: compared at step {end}; {', '.join(longer)} went on"] if longer else []
    notes += [f"{name(run)}: no evaluation" for run in runs if not len(returns(run).steps)]
    return end, notes


def final_returns(runs: Sequence[Run]) -> Table:
    """Return of each seed's last evaluation: the mean over seeds, its interval, and the last published point.

    `last_five` is the mean over seeds of the mean of each one's last five evaluations.
    """
    rows, notes = [], []
    for env in sorted({run.config.env for run in runs}):
        for curve, group in groups([run for run in runs if run.config.env == env]).items():
            series = [returns(run) for run in group]
            notes += [f"{one.name} on {env}: no evaluation" for one in series if not len(one.steps)]
            good = [np.isfinite(one.values) for one in series]
            lost = [one.name for one, g in zip(series, good, strict=True) if len(g) and not g[-1]]
            notes += [f"{one} on {env}: its last return is not a number; the last that is one is taken" for one in lost]
            last = [(one.steps[g][-1], one.values[g][-1]) for one, g in zip(series, good, strict=True) if g.any()]
            ends = [int(step) for step, _ in last] or [0]
            if min(ends) < max(ends):
                notes.append(f"{curve} on {env}: seeds end at different steps, {min(ends)} to {max(ends)}")
            five = np.array([statistics.last_mean(one) for one in series])
            if 0 < np.isfinite(five).sum() < len(five):
                notes.append(f"{curve} on {env}: seeds with fewer than five evaluations are not in the last five")
            paper = _papers(group[0], None)
            rows.append(
                {"env": env, "curve": curve, "method": group[0].config.method}
                | {"first_step": min(ends), "step": max(ends)}
                | _estimate(statistics.mean_interval(np.array([value for _, value in last], float)))
                | {"last_five": statistics.mean_interval(five).value}
                | {"paper": None if paper is None else float(paper.mean[-1])}
                | {"paper_step": None if paper is None else float(paper.steps[-1])}
                | {"paper_label": None if paper is None else paper.label}
            )
    return Table(rows, notes)
