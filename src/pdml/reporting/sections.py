"""Parts of the report: each function turns the runs of one environment into a `Section` of the page."""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from pdml.config.methods import BASELINE, METHODS
from pdml.core.errors import UserError
from pdml.core.stopwatch import PHASES
from pdml.reporting import model_errors, published, summary
from pdml.reporting.blocks import block_files, weight_history
from pdml.reporting.curves import last_step_shown, learning_curves, progress_curves
from pdml.reporting.read import PRIOR_SHARE, Row, Run, differences, groups, name
from pdml.reporting.style import STEPS_TEXT

HEAT_BYTES = 4_000_000
"""Room for heat maps in a page."""

HEAT_COLUMNS = 100
"""Most steps of a heat map in a page."""

MOST_PICTURES = 4
"""Policies that are shown at work; each takes about a second to render."""

HOLDOUT = {
    False: (
        "holdout",
        "holdout error",
        "Model error on held-out transitions",
        "Mean over the networks that make rollouts, after each fit, on transitions held out of it; in the units of the "
        "method's own model loss.",
    ),
    True: (
        "score",
        "holdout score",
        "Score of the double-horizon model on held-out transitions",
        "Negative log-likelihood, up to a constant, of held-out transitions under the networks' mean, spread and "
        "noise, in units of the targets' scales; lower is better, and it may be negative.",
    ),
}
"""Holdout panels, of the double-horizon methods and of the others: id, axis, title and text."""

STABILITY = {
    "eval/low_share": (
        "share of evaluations",
        "Evaluations that lost what was learned",
        "Share of all evaluations so far below half of the highest up to then.",
    ),
    "agent/value_bias": (
        "value minus return",
        "Critics against the model's own returns",
        "Value of the policy's actions minus the soft return of long rollouts of the model from the same states; above "
        "0, the critics are too high.",
    ),
    "agent/action_change": (
        "change of an action's entry",
        "Change of the policy in an update phase",
        "Mean change of the deterministic action, whose entries lie in [-1, 1], from the policy that collected the "
        "block to the one after the update phase.",
    ),
    "agent/renewal_change": (
        "change of an action's entry",
        "Change of the policy by the new normaliser alone",
        "The part of the change that comes from new means and scales of observations, without any update.",
    ),
    "agent/divergence": (
        "nats",
        "Divergence of the policy in an update phase",
        "Mean Kullback-Leibler divergence of the policy after the update phase from the one that collected the block.",
    ),
}
"""Panels of how steadily a policy learns: column of progress.csv, axis, title and text."""


class Section(NamedTuple):
    """A part of the page, and what it adds to the rest of it."""

    html: str = ""
    panels: tuple[Row, ...] = ()
    """What the page's script draws."""
    notes: tuple[str, ...] = ()
    """What a reader should know about the numbers."""
    problems: tuple[str, ...] = ()
    """What could not be read."""


class Picture(NamedTuple):
    """A policy at work: some frames of an episode side by side."""

    jpeg: bytes
    width: int
    """In pixels."""


def joined(sections: Iterable[Section], before: str = "", after: str = "") -> Section:
    """Put sections one after the other, between two pieces of html."""
    parts = list(sections)
    return Section(
        before + "".join(part.html for part in parts) + after,
        tuple(panel for part in parts for panel in part.panels),
        tuple(note for part in parts for note in part.notes),
        tuple(problem for part in parts for problem in part.problems),
    )


def badge(status: str, text: str) -> str:
    """Return a text in the colour of a status."""
    return f'<span class="status-{status}">{escape(text)}</span>'


def table_html(caption: str, head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells that are html already."""
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def number_text(value: float) -> str:
    """Write a number for a table, with about four digits."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def final_table(runs: Sequence[Run]) -> Section:
    """Return the table of last evaluations."""
    found = summary.final_returns(runs)
    goal = published.threshold(runs[0].config.env)
    reached = {} if goal is None else _reached(runs)
    rows = [
        (
            escape(row["curve"]),
            str(row["seeds"]),
            f"{row['step']:,}" if row["first_step"] == row["step"] else f"{row['first_step']:,} to {row['step']:,}",
            number_text(row["mean"]),
            f"{number_text(row['low'])} to {number_text(row['high'])}" if row["seeds"] > 1 else "–",
            number_text(row["last_five"]),
            *([escape(reached[row["curve"]])] if reached else []),
            _last_point(row),
        )
        for row in found.rows
    ]
    first = [] if goal is None else [f"first step at {number_text(goal)}, by seed"]
    head = ("method", "seeds", "at step", "return", "95 % interval", "mean of the last five", *first)
    return Section(
        table_html("Last evaluation, mean over seeds", (*head, "last published point"), rows), notes=tuple(found.notes)
    )


def _reached(runs: Sequence[Run]) -> dict[str, str]:
    """Return the first step of each seed at the threshold, or the last evaluated step if it never got there."""
    result: dict[str, list[str]] = {}
    for row in summary.steps_to_threshold(runs).rows:
        text = f"{row['steps']:,.0f}" if math.isfinite(row["steps"]) else f"> {row['evaluated_until']:,}"
        result.setdefault(row["curve"], []).append(text)
    return {curve: "; ".join(texts) for curve, texts in result.items()}


def _last_point(row: Row) -> str:
    if row["paper"] is None:
        return "–"
    whose = "" if row["paper_label"] == "paper" else f" ({row['paper_label']})"
    return f"{number_text(row['paper'])} at {row['paper_step'] / 1000:.0f}k{escape(whose)}"


def _panel(panel: Row, title: str, text: str, notes: Iterable[str] = ()) -> Section:
    """Return a panel with the place that the page's script draws it in."""
    html = (
        f'<figure class="panel" data-panel="{escape(panel["id"])}"><h3>{escape(title)}</h3>'
        f"<figcaption>{escape(text)}</figcaption></figure>"
    )
    return Section(html, (panel,), tuple(notes))


def _series(rows: list[Row], x: str) -> list[Row]:
    """Turn the rows of each curve into the columns that the page draws."""
    result = []
    for curve in dict.fromkeys(row["curve"] for row in rows):
        found = [row for row in rows if row["curve"] == curve]
        columns = {key: [row[key] for row in found] for key in ("mean", "low", "high", "seeds")}
        result.append({"method": curve, "x": [row[x] for row in found], **columns})
    return result


def return_panel(env: str, runs: Sequence[Run]) -> Section:
    """Return the learning curves, beside published points as far as the runs go."""
    found = learning_curves(runs)
    ours = [row for row in found.rows if row["source"] == "runs"]
    end = last_step_shown(found.rows)
    papers = [row for row in found.rows if row["source"] != "runs" and row["step"] <= end]
    first = {row["curve"]: row for row in reversed(papers)}
    known = [_reference(series, first[series["method"]]) for series in _series(papers, "step")]
    text = [f"{row['source']}: {row['note']}." for row in first.values() if "note" in row]
    panel = {"id": f"{env}/return", "kind": "curves", "x": STEPS_TEXT, "y": "return", "log": False}
    panel |= {"series": _series(ours, "step"), "reference": known}
    return _panel(panel, "Return", " ".join(["Mean return of each evaluation.", *text]), found.notes)


def _reference(series: Row, row: Row) -> Row:
    """Return published points as the page knows them: with their bin, and without a number of seeds."""
    label = f"paper, {row['curve']}" if row["source"] == "paper" else row["source"]
    return {key: series[key] for key in ("method", "x", "mean", "low", "high")} | {
        "label": label,
        "half_bin": row["half_bin"],
    }


def error_panels(env: str, runs: Sequence[Run]) -> Section:
    """Return the model's errors: on held-out transitions, and on fresh steps where runs were diagnosed."""
    result = []
    panel = {"kind": "curves", "x": STEPS_TEXT, "log": True, "reference": []}
    for is_double_horizon, (id, y, title, text) in HOLDOUT.items():
        rows = model_errors.holdout_errors(runs, is_double_horizon)
        if rows:
            holdout = panel | {"id": f"{env}/{id}", "y": y, "log": not is_double_horizon}
            result.append(_panel(holdout | {"series": _series(rows, "step")}, title, text))
    if any(len(run.diagnostics.get("step", ())) for run in runs):
        result += [_one_step_panels(env, runs, panel), _compounding_panel(env, runs, panel)]
    return joined(result)


def stability_panels(env: str, runs: Sequence[Run]) -> Section:
    """Return how steadily the policy learned: what it lost again, and how far its update phases moved it."""
    result = []
    for title, (y, heading, text) in STABILITY.items():
        rows = progress_curves(runs, title)
        if rows:
            panel: Row = {"id": f"{env}/{title}", "kind": "curves", "x": STEPS_TEXT, "y": y, "log": False}
            result.append(_panel(panel | {"series": _series(rows, "step"), "reference": []}, heading, text))
    if not result:
        return Section()
    start = '<details><summary>Stability of the policy</summary><div class="panels">'
    return joined(result, start, "</div></details>")


def _one_step_panels(env: str, runs: Sequence[Run], panel: Row) -> Section:
    found = model_errors.one_step_errors(runs)
    result = [Section(notes=tuple(found.notes))]
    for kind, title in (("current", "the current policy"), ("overall", "all policies so far")):
        chosen = [row for row in found.rows if row["error"] == kind]
        fresh = panel | {"id": f"{env}/{kind}", "y": "L2 error of the next state", "series": _series(chosen, "step")}
        text = f"One-step error of the networks' mean on fresh steps of {title}; nothing is ever learned from them."
        result.append(_panel(fresh, f"Model error on {title}", text))
    return joined(result)


def _compounding_panel(env: str, runs: Sequence[Run], panel: Row) -> Section:
    try:
        found = model_errors.compounding_errors(runs)
    except UserError as error:
        return Section(notes=(str(error),))
    step = found.rows[0]["step"]
    depth = panel | {"id": f"{env}/compounding", "x": "depth of the rollout", "y": "L2 error of the state"}
    text = f"Distance from the real state after the same actions, by number of steps, at step {step:,}."
    return _panel(depth | {"series": _series(found.rows, "depth")}, "Compounding model error", text, found.notes)


def prior_panel(env: str, runs: Sequence[Run]) -> Section:
    """Return how much transitions from before the runs still count, if any run has them."""
    rows = progress_curves([run for run in runs if run.has_prior], PRIOR_SHARE)
    if not rows:
        return Section()
    panel = {"id": f"{env}/prior", "kind": "curves", "x": STEPS_TEXT, "y": "share of the weight", "log": False}
    text = (
        "Share of the sampling weight on transitions from before the run: another run's, or prior data. It is their "
        "share of all transitions without weights, and before block mixture.first_block."
    )
    return _panel(panel | {"series": _series(rows, "step"), "reference": []}, "Weight of prior transitions", text)


def heat_bytes(section: Section) -> int:
    """Return the room that the heat maps of a section take."""
    return sum(len(json.dumps(panel)) for panel in section.panels if panel["kind"] == "heat")


def heat_maps(env: str, runs: Sequence[Run], room: int) -> Section:
    """Return the weights of the first seed of each method that has any, as long as there is room for them."""
    result: list[Section] = []
    for curve, group in groups(runs).items():
        kept = [run for run in group if block_files(run)]
        if not kept:
            continue
        found = weight_history(kept[:1], HEAT_COLUMNS)
        columns: dict[int, list[float]] = {}
        for row in found.rows:
            columns.setdefault(row["step"], []).append(float(f"{row['share']:.3g}"))
        panel: Row = {"id": f"{env}/weights/{curve}", "kind": "heat", "x": STEPS_TEXT, "value": "share of the block"}
        panel |= {"y": "policy", "xs": list(columns), "rows": max(map(len, columns.values()), default=0)}
        panel |= {"columns": list(columns.values())}
        size = len(json.dumps(panel))
        if size > room:
            note = f"{curve}: no heat map, to keep the page small; pdml figure heatmap draws it"
            result.append(Section(notes=(note,), problems=found.problems))
            continue
        room -= size
        text = "Share of each block of transitions, by the policy that collected it; 0 is the warm-up."
        shown = _panel(panel, f"Weights of {name(kept[0])}", text, found.notes)
        result.append(shown._replace(problems=found.problems))
    if not any(part.panels for part in result):
        return joined(result)
    opened = " open" if sum(len(part.panels) for part in result) <= 4 else ""
    start = f'<details{opened}><summary>Weights</summary><div class="panels">'
    return joined(result, start, "</div></details>")


def pictures_of(runs: Sequence[Run], pictures: Mapping[Path, Picture | str]) -> Section:
    """Return the pictures of policies at work, or why there are none."""
    html = ""
    for run in runs:
        found = pictures.get(run.path)
        if isinstance(found, Picture):
            text = escape(f"{name(run)}: one episode of its last policy, from left to right.")
            source = f"data:image/jpeg;base64,{base64.b64encode(found.jpeg).decode()}"
            html += f'<figure class="strip"><img src="{source}" style="max-width: {found.width}px" alt="{text}">'
            html += f"<figcaption>{text}</figcaption></figure>"
        elif found is not None:
            html += f'<p class="note">{escape(found)}</p>'
    if len(pictures) == MOST_PICTURES:
        html += f'<p class="note">At most {MOST_PICTURES} policies are shown; pdml video records any of them.</p>'
    return Section(html)


def time_table(runs: Sequence[Run]) -> Section:
    """Return the table of training times and of the shares of each phase."""
    rows = []
    found = summary.training_time(runs)
    for row in found.rows:
        timed = [run for run in groups(runs)[row["curve"]] if len(run.timing.get("step", ()))]
        if not timed:
            continue
        spent = {phase: sum(float(run.timing[phase][-1]) for run in timed if phase in run.timing) for phase in PHASES}
        total = sum(float(run.timing["seconds"][-1]) for run in timed)
        shares = [f"{100 * seconds / total:.0f} %" if seconds else "–" for seconds in spent.values()]
        rows.append(
            (escape(row["curve"]), number_text(row["hours_per_100k_mean"]), number_text(row["times_mbpo"]), *shares)
        )
    if not rows:
        return Section()
    head = ("method", "hours per 100k steps", f"times {METHODS[BASELINE].paper_name}", *PHASES)
    caption = "Training time: hours without evaluation and diagnosis; phases as shares of the wall-clock time"
    return Section(table_html(caption, head, rows), notes=tuple(found.notes))


def differences_table(runs: Sequence[Run]) -> Section:
    """Return the table of settings off the defaults."""
    rows = [
        (escape(curve), escape(", ".join(differences(group[0])) or "none")) for curve, group in groups(runs).items()
    ]
    caption = "Settings that differ from the defaults of method and environment"
    table = table_html(caption, ("method", "differences"), rows)
    return Section(f"<details><summary>Settings</summary>{table}</details>")
