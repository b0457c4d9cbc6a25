"""The report: one html page about runs, complete in itself. Python writes words, tables and numbers; `page` draws."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from pdml.config.schema import DOUBLE
from pdml.core.errors import UserError
from pdml.core.stopwatch import PHASES
from pdml.reporting import published, statistics, summary
from pdml.reporting.read import Row, Run, block_files, column, differences, groups, name
from pdml.reporting.style import looks
from pdml.runs.directory import package_version

HEAT_BYTES = 4_000_000
"""Room for heat maps in a page."""

MOST_STRIPS = 4
"""Policies that are shown at work; each takes about a second to render."""

STEPS_TEXT = "real steps after warm-up"

HOLDOUT = {
    False: (
        "holdout",
        "holdout error",
        "Model error on held-out rows",
        "Mean over the networks that imagine, after each fit, on rows held out of it; in the units of the method's own "
        "model loss.",
    ),
    True: (
        "score",
        "holdout score",
        "Score of the double-horizon model on held-out rows",
        "Minus the log-likelihood, but for a constant, of held-out rows under the networks' mean, spread and noise, in "
        "units of the targets' scales; lower is better, and it may be negative.",
    ),
}
"""Panels of the double-horizon methods' model and of the others': id, axis, title and text."""


def write(runs: Sequence[Run], out: Path, problems: list[str], frames: bool = True) -> int:
    """Write the page; return its size in bytes.

    Args:
        problems: What could not be read; takes up what is found on the way.
    """
    problems += [problem for run in runs for problem in run.problems]
    text = page(runs, strips(runs) if frames else {}, problems)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
    return len(text.encode())


def page(runs: Sequence[Run], pictures: dict[Path, str], problems: list[str]) -> str:
    """Return the html of a report.

    Args:
        pictures: For some runs, frames of the policy at work as an open img tag, or in words why there are none.
    """
    envs = sorted({run.config.env for run in runs})
    panels: list[Row] = []
    by_env = [[run for run in runs if run.config.env == env] for env in envs]
    sections = [_section(of_env, panels, pictures, problems) for of_env in by_env]
    shown = looks(run.label for run in runs)
    methods = [{"name": curve, "label": curve, "color": look.color, "dash": look.dash} for curve, look in shown.items()]
    data = json.dumps(_finite({"methods": methods, "panels": panels}), allow_nan=False).replace("<", "\\u003c")
    source = files("pdml.reporting") / "page"
    named = list(dict.fromkeys(run.config.method for run in runs))
    title = f"{', '.join(envs)}: {', '.join(named) if len(named) <= 3 else f'{len(named)} methods'}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{(source / "page.css").read_text()}</style></head><body>
<h1>{escape(title)}</h1>
<p class="lead">{_summary(runs)}</p>
<div id="legend"></div>
{"".join(sections)}
{_problems(problems)}
<footer>Written by pdml {package_version("pdml")} from the csv files of the runs. Steps count from the end of the
warm-up. Bands are 95 % intervals (Student) of the mean over seeds. Hollow points are published ones, as far as the
runs go: the paper's, each with the bin in which it may belong, or DHMBPO's, of which their panel says more.</footer>
<script type="application/json" id="data">{data}</script>
<script>{(source / "page.js").read_text()}</script>
</body></html>
"""


def _summary(runs: Sequence[Run]) -> str:
    counts = {status: sum(run.status == status for run in runs) for status in ("done", "unfinished", "failed")}
    parts = [_badge(status, f"{count} {status}") for status, count in counts.items() if count]
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {', '.join(parts)}."


def _badge(status: str, text: str) -> str:
    return f'<span class="status-{status}">{escape(text)}</span>'


def _section(runs: list[Run], panels: list[Row], pictures: dict[Path, str], problems: list[str]) -> str:
    """Write all about one environment, and add its panels."""
    env = runs[0].config.env
    notes: list[str] = []
    parts = [
        f'<h2 id="{escape(env)}">{escape(env)}</h2>',
        _finals(runs, notes),
        f'<div class="panels">{_returns(env, runs, panels, notes)}{"".join(_errors(env, runs, panels, notes))}</div>',
        _weights(_heat_maps(env, runs, panels, notes, problems)),
        _strips(runs, pictures),
        _timing(runs, notes),
        _settings(runs),
        _runs(runs),
    ]
    listed = "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(notes))
    if listed:
        parts.append(f'<details><summary>Notes on these numbers</summary><ul class="note">{listed}</ul></details>')
    return "\n".join(parts)


def _table(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table of cells that are html already."""
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _finals(runs: list[Run], notes: list[str]) -> str:
    found = summary.final_returns(runs)
    notes += found.notes
    goal = published.threshold(runs[0].config.env)
    reached = {} if goal is None else _reached(runs)
    rows = [
        (
            escape(row["curve"]),
            str(row["seeds"]),
            f"{row['step']:,}" if row["first_step"] == row["step"] else f"{row['first_step']:,} to {row['step']:,}",
            _number(row["mean"]),
            f"{_number(row['low'])} to {_number(row['high'])}" if row["seeds"] > 1 else "–",
            _number(row["last_five"]),
            *([escape(reached[row["curve"]])] if reached else []),
            _last_point(row),
        )
        for row in found.rows
    ]
    first = [] if goal is None else [f"first step at {_number(goal)}, by seed"]
    head = ("method", "seeds", "at step", "return", "95 % interval", "of the last five", *first, "last point published")
    return _table("Last evaluation, mean over seeds", head, rows)


def _reached(runs: list[Run]) -> dict[str, str]:
    """Return the first step of each seed at the return that counts as reached, or how far it was looked for."""
    result: dict[str, list[str]] = {}
    for row in summary.steps_to_threshold(runs).rows:
        text = f"{row['steps']:,.0f}" if math.isfinite(row["steps"]) else f"> {row['evaluated_until']:,}"
        result.setdefault(row["curve"], []).append(text)
    return {curve: "; ".join(texts) for curve, texts in result.items()}


def _last_point(row: Row) -> str:
    if row["paper"] is None:
        return "–"
    whose = "" if row["paper_label"] == "paper" else f" ({row['paper_label']})"
    return f"{_number(row['paper'])} at {row['paper_step'] / 1000:.0f}k{escape(whose)}"


def _number(value: float) -> str:
    """Write a number for a table: four digits will do."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _panel(panels: list[Row], panel: Row, title: str, text: str) -> str:
    panels.append(panel)
    return (
        f'<figure class="panel" data-panel="{escape(panel["id"])}"><h3>{escape(title)}</h3>'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )


def _series(rows: list[Row], x: str) -> list[Row]:
    """Put the rows of each curve into the columns that the page draws."""
    result = []
    for curve in dict.fromkeys(row["curve"] for row in rows):
        found = [row for row in rows if row["curve"] == curve]
        columns = {key: [row[key] for row in found] for key in ("mean", "low", "high", "seeds")}
        result.append({"method": curve, "x": [row[x] for row in found], **columns})
    return result


def _returns(env: str, runs: list[Run], panels: list[Row], notes: list[str]) -> str:
    found = summary.learning_curves(runs)
    notes += found.notes
    ours = [row for row in found.rows if row["source"] == "runs"]
    reach = summary.reach(found.rows)
    papers = [row for row in found.rows if row["source"] != "runs" and row["step"] <= reach]
    first = {row["curve"]: row for row in reversed(papers)}
    known = [_reference(series, first[series["method"]]) for series in _series(papers, "step")]
    text = [f"{row['source']}: {row['note']}." for row in first.values() if "note" in row]
    panel = {"id": f"{env}/return", "kind": "curves", "x": STEPS_TEXT, "y": "return", "log": False}
    return _panel(
        panels,
        panel | {"series": _series(ours, "step"), "reference": known},
        "Return",
        " ".join(["Mean return of each evaluation.", *text]),
    )


def _reference(series: Row, row: Row) -> Row:
    """Return published points as the page knows them: by their bin, and without a count of seeds."""
    label = f"paper, {row['curve']}" if row["source"] == "paper" else row["source"]
    return {key: series[key] for key in ("method", "x", "mean", "low", "high")} | {
        "label": label,
        "half_bin": row["half_bin"],
    }


def _errors(env: str, runs: list[Run], panels: list[Row], notes: list[str]) -> list[str]:
    """Add what is known of the model: its holdout error, and its errors on fresh steps if it was diagnosed."""
    result = []
    panel = {"kind": "curves", "x": STEPS_TEXT, "log": True, "reference": []}
    for is_double, (id, y, title, text) in HOLDOUT.items():
        rows: list[Row] = []
        for curve, group in groups(runs).items():
            seeds = [column(run, run.progress, "model/holdout_error") for run in group]
            if (group[0].config.method in DOUBLE) == is_double and any(len(one.steps) for one in seeds):
                rows += summary.curve_rows(curve, group[0].config.method, statistics.over_seeds(seeds))
        if rows:
            holdout = panel | {"id": f"{env}/{id}", "y": y, "log": not is_double, "series": _series(rows, "step")}
            result.append(_panel(panels, holdout, title, text))
    if not any(len(run.diagnostics.get("step", ())) for run in runs):
        return result
    found = summary.model_errors(runs)
    notes += found.notes
    for kind, title in (("current", "the current policy"), ("overall", "all policies so far")):
        chosen = [row for row in found.rows if row["error"] == kind]
        fresh = panel | {"id": f"{env}/{kind}", "y": "L2 error of the next state", "series": _series(chosen, "step")}
        text = f"One-step error of the networks' mean on fresh steps of {title}, which are never learned from."
        result.append(_panel(panels, fresh, f"Model error on {title}", text))
    try:
        deep = summary.compounding(runs)
    except UserError as error:
        notes.append(str(error))
        return result
    notes += deep.notes
    step = deep.rows[0]["step"]
    depth = panel | {"id": f"{env}/compounding", "x": "depth of the rollout", "y": "L2 error of the state"}
    text = f"Difference from the real state after so many steps of the same actions, at step {step:,}."
    result.append(_panel(panels, depth | {"series": _series(deep.rows, "depth")}, "Compounding model error", text))
    return result


def _heat_maps(env: str, runs: list[Run], panels: list[Row], notes: list[str], problems: list[str]) -> list[str]:
    """Add the weights of the first seed of each method that weighs rows, while there is room."""
    result = []
    for curve, group in groups(runs).items():
        kept = [run for run in group if block_files(run)]
        if not kept:
            continue
        run, found = kept[0], summary.weight_history(kept[:1], most=100)
        problems += found.problems
        columns: dict[int, list[float]] = {}
        for row in found.rows:
            columns.setdefault(row["step"], []).append(float(f"{row['share']:.3g}"))
        panel: Row = {"id": f"{env}/weights/{curve}", "kind": "heat", "x": STEPS_TEXT, "value": "share of the block"}
        panel |= {"y": "policy", "xs": list(columns), "rows": max(map(len, columns.values()), default=0)}
        panel |= {"columns": list(columns.values())}
        used = sum(len(json.dumps(other)) for other in panels if other["kind"] == "heat")
        if used + len(json.dumps(panel)) > HEAT_BYTES:
            notes.append(f"{curve}: no heat map, to keep the page small; pdml figure heatmap draws it")
            continue
        notes += found.notes
        text = "Share of each block of rows, by the policy that collected it; 0 is the warm-up."
        result.append(_panel(panels, panel, f"Weights of {name(run)}", text))
    return result


def _weights(figures: list[str]) -> str:
    """Show the heat maps, folded up if there are many."""
    if not figures:
        return ""
    opened = " open" if len(figures) <= 4 else ""
    return f'<details{opened}><summary>Weights</summary><div class="panels">{"".join(figures)}</div></details>'


def strips(runs: Sequence[Run]) -> dict[Path, str]:
    """Render the policy of the first run of each method that has one; say why where that cannot be done."""
    from pdml.studies.video import NoRendererError, strip

    result: dict[Path, str] = {}
    for env in sorted({run.config.env for run in runs}):
        for group in groups([run for run in runs if run.config.env == env]).values():
            ready = [run for run in group if (run.path / "policy.safetensors").exists()]
            if not ready or len(result) == MOST_STRIPS:
                continue
            try:
                picture, width = strip(ready[0].path)
                address = f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
                result[ready[0].path] = f'<img src="{address}" style="max-width: {width}px"'
            except UserError as error:
                result[ready[0].path] = f"no pictures: {error}"
                if isinstance(error, NoRendererError):
                    return result
    return result


def _strips(runs: list[Run], pictures: dict[Path, str]) -> str:
    result = ""
    for run in runs:
        found = pictures.get(run.path)
        if found is not None and found.startswith("<img"):
            text = escape(f"{name(run)}: one episode of its last policy, from left to right.")
            result += f'<figure class="strip">{found} alt="{text}"><figcaption>{text}</figcaption></figure>'
        elif found is not None:
            result += f'<p class="note">{escape(found)}</p>'
    if len(pictures) == MOST_STRIPS:
        result += f'<p class="note">Of all policies, {MOST_STRIPS} are shown; pdml video records any of them.</p>'
    return result


def _timing(runs: list[Run], notes: list[str]) -> str:
    rows = []
    found = summary.training_time(runs)
    for row in found.rows:
        group = groups(runs)[row["curve"]]
        timed = [run for run in group if len(run.timing.get("step", ()))]
        if not timed:
            continue
        spent = {phase: sum(float(run.timing[phase][-1]) for run in timed if phase in run.timing) for phase in PHASES}
        total = sum(float(run.timing["seconds"][-1]) for run in timed)
        shares = [f"{100 * seconds / total:.0f} %" if seconds else "–" for seconds in spent.values()]
        rows.append((escape(row["curve"]), _number(row["hours_per_100k_mean"]), _number(row["times_mbpo"]), *shares))
    if not rows:
        return ""
    notes += found.notes
    head = ("method", "hours per 100k steps", "times MBPO", *PHASES)
    return _table("Time: evaluation and diagnosis are not in the hours; the shares are of the wall-clock", head, rows)


def _settings(runs: list[Run]) -> str:
    rows = [
        (escape(curve), escape(", ".join(differences(group[0].config)) or "none: the method's defaults"))
        for curve, group in groups(runs).items()
    ]
    table = _table("Settings that are not the defaults of method and environment", ("method", "differences"), rows)
    return f"<details><summary>Settings</summary>{table}</details>"


def _runs(runs: list[Run]) -> str:
    rows = []
    for run in runs:
        reached = max(
            (int(t["step"][-1]) for t in (run.progress, run.evaluations) if len(t.get("step", ()))), default=0
        )
        rows.append(
            (
                escape(run.label),
                str(run.config.seed),
                _badge(run.status, run.status) + (f" {escape(run.message)}" if run.message else ""),
                f"{reached:,} of {run.config.steps:,}",
                f"<code>{escape(run.path.as_posix())}</code>",
            )
        )
    some = any(run.status != "done" for run in runs)
    table = _table("Steps count the warm-up here", ("method", "seed", "status", "steps", "directory"), rows)
    return f"<details{' open' if some else ''}><summary>Runs</summary>{table}</details>"


def _problems(problems: list[str]) -> str:
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f"<h2>Damaged files</h2><ul>{listed}</ul>" if problems else ""


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite by null, which the page leaves out."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
