"""The numbers behind figures and reports: each function turns runs into rows, and no figure shows anything else.

Steps count from the end of the warm-up, as the paper's do.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pdml import reference, stats
from pdml.errors import UserError
from pdml.reference import PaperCurve
from pdml.runs import Row, Run, diagnosed, groups, name, one_environment, read_table, returns, shares
from pdml.stats import Curve, Series

HEAT_STEPS = 150
"""Most steps of a run that a heat map shows."""

ABLATION = ("pdml", "pdml-model-only", "pdml-starts-only", "mbpo")


class Table(NamedTuple):
    """Rows of one kind, and what was done to get them."""

    rows: list[Row]
    notes: list[str]
    problems: tuple[str, ...] = ()
    """What could not be read."""


def learning_curves(runs: Sequence[Run]) -> Table:
    """Return over real steps, the mean over seeds with its 95 % interval, and the paper's points."""
    return _with_paper(runs, lambda run: _papers(run, None))


def ablation(runs: Sequence[Run]) -> Table:
    """Return over real steps of PDML, of its weights used by half, and of MBPO, with the paper's points."""
    kept = [run for run in runs if run.config.method in ABLATION]
    if not kept:
        raise UserError(f"no run of {', '.join(ABLATION)}: the ablation compares these")
    return _with_paper(kept, lambda run: _papers(run, "ablation"))


def rates(runs: Sequence[Run]) -> Table:
    """Return over real steps by mixture.rate, with the paper's points."""
    kept = [run for run in runs if run.config.method == "pdml"]
    if not kept:
        raise UserError("no run of pdml: rates are compared among its runs")
    table = _with_paper(kept, lambda run: reference.rate_curve(run.config.env, run.config.mixture.rate))
    named = {run.label: run.config.mixture.rate for run in kept}
    return table._replace(rows=[row | {"rate": named[row["curve"]]} for row in table.rows])


def _papers(run: Run, figure: str | None) -> PaperCurve | None:
    """Return the paper's curve of a method; runs told apart by their settings have none."""
    return reference.curve(run.config.env, run.config.method, figure) if run.label == run.config.method else None


def _with_paper(runs: Sequence[Run], paper: Callable[[Run], PaperCurve | None]) -> Table:
    one_environment(runs)
    rows: list[Row] = []
    notes: list[str] = []
    for curve, group in groups(runs).items():
        found = stats.over_seeds([returns(run) for run in group])
        notes += found.notes
        seeds = [run.config.seed for run in group]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        notes += [f"{curve}: seed {seed} is there {seeds.count(seed)} times and counts as often" for seed in twice]
        rows += curve_rows(curve, group[0].config.method, found)
        known = paper(group[0])
        if known is not None:
            rows += [
                {
                    "curve": curve,
                    "method": group[0].config.method,
                    "source": "paper",
                    "step": float(known.steps[i]),
                    "mean": float(known.mean[i]),
                    "low": float(known.low[i]),
                    "high": float(known.high[i]),
                    "seeds": 0,
                    "half_bin": known.half_bin,
                }
                for i in range(len(known.steps))
            ]
    return Table(rows, notes)


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
            found = stats.over_seeds([diagnosed(run, f"{kind}_l2") for run in group])
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
        columns = [column for column in group[0].diagnostics if column.startswith("compounding_")]
        for step in chosen:
            if step not in steps:
                raise UserError(f"at = {step}: not diagnosed; there are {', '.join(map(str, sorted(steps)))}")
            for column in columns:
                depth = int(column.removeprefix("compounding_"))
                values = [_at(diagnosed(run, column), step) for run in group]
                rows.append(
                    {"curve": curve, "method": group[0].config.method, "step": step, "depth": depth}
                    | _estimate(stats.mean_interval(np.array(values)))
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


def _estimate(estimate: stats.Estimate) -> Row:
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "seeds": estimate.seeds}


def mixture_weights(runs: Sequence[Run], at: Sequence[int] = ()) -> Table:
    """Weights of historical policies at chosen steps, as the paper plots them: without warm-up and newest, sum 1."""
    one_environment(runs)
    rows, notes, shown = [], [], set()
    for run in runs:
        known = shares(run)
        if not known:
            notes.append(f"{name(run)}: no weights of blocks are kept")
        for step in (at or sorted(known)[-1:]) if known else ():
            if step not in known:
                near = min(known, key=lambda other, step=step: abs(other - step))
                raise UserError(f"at = {step}: {name(run)} has no weights of that step; the nearest is {near}")
            historical = known[step]["model"][1:-1].astype(np.float64)
            u = historical / historical.sum() if historical.sum() > 0 else historical
            source = {"curve": run.label, "method": run.config.method, "seed": run.config.seed, "source": "runs"}
            rows += [source | {"step": step, "policy": i + 1, "weight": float(u[i])} for i in range(len(u))]
            paper = reference.mixture(run.config.env, step)
            if paper is not None and run.config.method == "pdml" and step not in shown:
                shown.add(step)
                source |= {"source": "paper"}
                rows += [source | {"step": step, "policy": i + 1, "weight": float(w)} for i, w in enumerate(paper)]
    if not rows:
        raise UserError("none of the runs keeps the weights of its blocks (folder blocks): they have no model")
    return Table(rows, notes)


def weight_history(runs: Sequence[Run]) -> Table:
    """Weight of each block in the model's minibatches, for a whole run: policy by step."""
    one_environment(runs)
    rows, notes = [], []
    for run in runs:
        known = shares(run)
        if not known:
            notes.append(f"{name(run)}: no weights of blocks are kept")
        every = -(-len(known) // HEAT_STEPS)
        if every > 1:
            notes.append(f"{name(run)}: of its {len(known)} blocks one in {every} is shown")
        for step in list(known)[::-1][::every][::-1] if known else []:
            source = {"curve": run.label, "method": run.config.method, "seed": run.config.seed, "step": step}
            rows += [source | {"policy": i, "share": float(share)} for i, share in enumerate(known[step]["model"])]
    if not rows:
        raise UserError("none of the runs keeps the weights of its blocks (folder blocks): they have no model")
    return Table(rows, notes)


def visitation(runs: Sequence[Run]) -> Table:
    """States and actions that policies visited, in the plane: what `pdml analyse tsne` wrote."""
    one_environment(runs)
    rows: list[Row] = []
    problems: list[str] = []
    for run in runs:
        found = read_table(run.path / "analysis" / "tsne.csv", ("step", "x", "y"), problems)
        if not len(found.get("step", ())):
            raise UserError(
                problems[-1] if problems else f"{run.path}: no analysis/tsne.csv; run pdml analyse tsne first"
            )
        source = {"curve": name(run), "method": run.config.method}
        rows += [
            source | {"step": int(step), "x": float(x), "y": float(y)}
            for step, x, y in zip(found["step"], found["x"], found["y"], strict=True)
        ]
    return Table(rows, [], tuple(problems))


def training_time(runs: Sequence[Run]) -> Table:
    """Hours for 100k steps after warm-up, evaluation and diagnosis not counted, beside MBPO's and the paper's."""
    rows, notes = [], []
    for env in sorted({run.config.env for run in runs}):
        of_env = [run for run in runs if run.config.env == env]
        hours = {curve: [_hours(run) for run in group] for curve, group in groups(of_env).items()}
        base = stats.mean_interval(np.array(hours.get("mbpo", [np.nan]))).value
        for curve, group in groups(of_env).items():
            notes += [f"{name(run)}: no timing" for run, h in zip(group, hours[curve], strict=True) if np.isnan(h)]
            estimate = stats.mean_interval(np.array(hours[curve]))
            method = group[0].config.method
            paper, of_mbpo = reference.training_hours(env, method), reference.training_hours(env, "mbpo")
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
    last = {column: float(values[-1]) for column, values in run.timing.items()}
    learning = last["seconds"] - last.get("evaluate", 0.0) - last.get("diagnose", 0.0)
    return learning / 3600.0 * 1e5 / (last["step"] - run.config.warmup_steps)


def steps_to_threshold(runs: Sequence[Run], threshold: float | None = None) -> Table:
    """First step at which each seed's evaluation reaches a return: by default the paper's last point of MBPO."""
    rows, notes = [], []
    for run in runs:
        wanted = reference.threshold(run.config.env) if threshold is None else threshold
        if wanted is None:
            raise UserError(f"the paper has no return of {run.config.env} to reach; give one with --threshold")
        series = returns(run)
        if not len(series.steps):
            notes.append(f"{name(run)}: no evaluation")
        lost = int(np.isnan(series.values).sum())
        if lost:
            notes.append(f"{name(run)}: {lost} evaluations are not numbers; they count as below the threshold")
        reached = stats.first_reaching(series, wanted)
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
    scores: dict[str, dict[str, np.ndarray]] = {}
    notes = []
    envs = sorted({run.config.env for run in runs})
    for env in envs:
        scale = reference.scale(env)
        if scale is None:
            raise UserError(f"{env}: the paper has no scale for its returns; leave it out")
        of_env = [run for run in runs if run.config.env == env]
        step, found = common_end(of_env)
        notes += found
        for curve, group in groups(of_env).items():
            finals = np.array([_at(returns(run), step) for run in group])
            notes += _not_numbers(group, finals)
            scores.setdefault(curve, {})[env] = (finals - scale.zero) / (scale.one - scale.zero)
    rows = []
    for curve, by_env in scores.items():
        if len(by_env) < len(envs):
            notes.append(f"{curve}: runs on {len(by_env)} of {len(envs)} tasks; its aggregates are over these")
        for statistic, function in (("iqm", stats.iqm), ("optimality_gap", stats.optimality_gap)):
            estimate = stats.aggregate(list(by_env.values()), function, seed)
            rows.append({"curve": curve, "statistic": statistic, "versus": ""} | _estimate(estimate))
    for ours in scores:
        for theirs in scores:
            both = [env for env in envs if env in scores[ours] and env in scores[theirs]]
            if ours == theirs or not both:
                continue
            estimate = stats.probability_of_improvement(
                [scores[ours][env] for env in both], [scores[theirs][env] for env in both], seed
            )
            rows.append({"curve": ours, "statistic": "probability", "versus": theirs} | _estimate(estimate))
    return Table(rows, notes)


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
    notes = [f"{env_name(runs)}: compared at step {end}; {', '.join(longer)} went on"] if longer else []
    notes += [f"{name(run)}: no evaluation" for run in runs if not len(returns(run).steps)]
    return end, notes


def env_name(runs: Sequence[Run]) -> str:
    """Name the environment of some runs."""
    return runs[0].config.env


def final_returns(runs: Sequence[Run]) -> Table:
    """Return of the last evaluation: the mean over seeds, its interval, and the paper's last point."""
    rows, notes = [], []
    for env in sorted({run.config.env for run in runs}):
        for curve, group in groups([run for run in runs if run.config.env == env]).items():
            series = [returns(run) for run in group]
            ends = sorted({int(one.steps[-1]) for one in series if len(one.steps)})
            if len(ends) > 1:
                notes.append(f"{curve} on {env}: seeds end at different steps, {ends[0]} to {ends[-1]}")
            values = np.array([one.values[-1] if len(one.steps) else np.nan for one in series])
            notes += [f"{one.name} on {env}: no evaluation" for one in series if not len(one.steps)]
            notes += _not_numbers(group, values)
            method = group[0].config.method
            rows.append(
                {"env": env, "curve": curve, "method": method, "step": ends[-1] if ends else 0}
                | _estimate(stats.mean_interval(values))
                | {"paper": reference.final_return(env, method), "paper_step": _paper_end(env, method)}
            )
    return Table(rows, notes)


def _paper_end(env: str, method: str) -> float | None:
    found = reference.curve(env, method)
    return None if found is None else float(found.steps[-1])
