"""Drawing: one function per figure, from its rows to a matplotlib figure. A drawing sees its rows and nothing else."""

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from pdml.config.methods import BASELINE, Line
from pdml.reporting.curves import last_step_shown
from pdml.reporting.read import Row
from pdml.reporting.style import MARKERS, SEED_LINES, STEPS_TEXT, lines

MOST_COLUMNS = 4
"""Panels side by side."""


def _canvas(
    width: float = 6.4, height: float = 4.2, panels: int = 1, most_columns: int = MOST_COLUMNS
) -> tuple[Figure, list[Axes]]:
    columns = min(panels, most_columns)
    levels = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * levels), layout="constrained")
    axes = list(figure.subplots(levels, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def _of(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], float)


def _names(rows: list[Row], column: str = "curve") -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _dashes(line: Line) -> Any:
    return (0, tuple(float(length) for length in line.dash.split())) if line.dash else "-"


def _label_steps(axis: Axes) -> None:
    axis.set_xlabel(STEPS_TEXT)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def _band(axis: Axes, rows: list[Row], x: str, line: Line, text: str) -> None:
    """Draw a mean and its interval, which points of a single seed do not have."""
    place = _values(rows, x)
    alone = "o" if np.isfinite(_values(rows, "mean")).sum() == 1 else None
    axis.plot(place, _values(rows, "mean"), color=line.color, linestyle=_dashes(line), label=text, marker=alone)
    axis.fill_between(place, _values(rows, "low"), _values(rows, "high"), color=line.color, alpha=0.18, linewidth=0)


def _focus(axis: Axes, rows: list[Row], least: float = -math.inf) -> None:
    """Let the means set the vertical range: intervals of two or three seeds can be very wide.

    Args:
        least: No value is smaller, though an interval may go below it.
    """
    means = _values(rows, "mean")
    means = means[np.isfinite(means)]
    if len(means):
        room = max(float(np.ptp(means)), 0.05 * float(np.abs(means).max()), 1e-12)
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, least, float(means.min()) - room / 2), min(high, float(means.max()) + room / 2))


def draw_curves(rows: list[Row]) -> Figure:
    """Draw returns over steps, beside published points."""
    figure, (axis,) = _canvas(7.6)
    for curve, line in lines(_names(rows)).items():
        ours = _of(rows, curve=curve, source="runs")
        paper = [row for row in _of(rows, curve=curve) if row["source"] != "runs"]
        if ours:
            seeds = max(row["seeds"] for row in ours)
            _band(axis, ours, "step", line, f"{curve} ({seeds} seed{'s' if seeds > 1 else ''})")
        if paper:
            _draw_published(axis, paper, line.color)
    axis.set_ylabel("return")
    _label_steps(axis)
    end = last_step_shown(rows)
    if math.isfinite(end):
        axis.set_xlim(-0.02 * end, end)
    _focus(axis, [row for row in rows if row["step"] <= end])
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def draw_seeds(rows: list[Row]) -> Figure:
    """Draw one line per run and one panel per curve; all panels have the same range of returns."""
    names, end = _names(rows), last_step_shown(rows)
    figure, axes = _canvas(5.2, panels=len(names))
    shown = _values([row for row in rows if row["step"] <= end], "mean")
    low, high = shown.min(initial=0.0), shown.max(initial=0.0)
    for axis, curve in zip(axes, names, strict=True):
        ours = _of(rows, curve=curve, source="runs")
        paper = [row for row in _of(rows, curve=curve) if row["source"] != "runs"]
        if paper:
            _draw_published(axis, paper, "#888888")
        for run in _names(ours, "run"):
            found = _of(ours, run=run)
            line = SEED_LINES[run % len(SEED_LINES)]
            axis.plot(
                _values(found, "step"),
                _values(found, "mean"),
                color=line.color,
                linestyle=_dashes(line),
                marker="." if len(found) == 1 else None,
                label=f"seed {found[0]['seed']}",
            )
        axis.set_title(curve)
        if math.isfinite(end):
            axis.set_xlim(-0.02 * end, end)
        axis.set_ylim(low - 0.03 * (high - low), high + 0.1 * (high - low))
        _label_steps(axis)
        axis.legend(fontsize=7)
    axes[0].set_ylabel("return")
    return figure


def _draw_published(axis: Axes, rows: list[Row], color: str) -> None:
    """Draw published points: hollow, with their interval as a vertical and their bin as a horizontal bar."""
    mean = _values(rows, "mean")
    axis.errorbar(
        _values(rows, "step"),
        mean,
        xerr=_values(rows, "half_bin"),
        yerr=np.nan_to_num([mean - _values(rows, "low"), _values(rows, "high") - mean]),
        color=color,
        linestyle=":",
        marker="o",
        markersize=4,
        markerfacecolor="white",
        linewidth=1.0,
        elinewidth=0.8,
        ecolor=(color, 0.4),
        label=_paper_text(rows[0]),
    )


def _paper_text(row: Row) -> str:
    """Name published points in the legend, with what a reader must know about them."""
    note = row.get("note")
    return textwrap.fill(f"{row['source']}: {note}", 34) if note else f"{row['curve']}, {row['source']}"


def draw_errors(rows: list[Row]) -> Figure:
    """Draw the error on the current policy, and beside it the error on all policies so far."""
    figure, axes = _canvas(panels=2)
    by_curve = lines(_names(rows))
    titles = {"current": "current policy", "overall": "all policies so far"}
    for axis, (kind, title) in zip(axes, titles.items(), strict=True):
        for curve, line in by_curve.items():
            _band(axis, _of(rows, curve=curve, error=kind), "step", line, curve)
        axis.set_title(title)
        _label_steps(axis)
        _focus(axis, rows, least=0.0)
    axes[0].set_ylabel("one-step error of the state (L2)")
    axes[0].legend(fontsize=8)
    return figure


def draw_compounding(rows: list[Row]) -> Figure:
    """Draw the error over the depth of a rollout, one panel per step."""
    steps = _names(rows, "step")
    figure, axes = _canvas(panels=len(steps))
    by_curve = lines(_names(rows))
    for axis, step in zip(axes, steps, strict=True):
        for curve, line in by_curve.items():
            _band(axis, _of(rows, curve=curve, step=step), "depth", line, curve)
        axis.set_title(f"step {step}")
        axis.set_xlabel("depth of the rollout")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _focus(axis, _of(rows, step=step), least=0.0)
    axes[0].set_ylabel("error of the state (L2)")
    axes[0].legend(fontsize=8)
    return figure


def draw_weights(rows: list[Row]) -> Figure:
    """Draw the weights of the historical policies, one panel per step."""
    steps = _names(rows, "step")
    figure, axes = _canvas(5.2, 3.8, len(steps))
    by_curve = lines(_names(rows))
    for axis, step in zip(axes, steps, strict=True):
        for curve, line in by_curve.items():
            for seed in _names(_of(rows, curve=curve, step=step), "seed"):
                for source, style in (("runs", _dashes(line)), ("paper", ":")):
                    found = _of(rows, curve=curve, step=step, seed=seed, source=source)
                    text = f"{curve}, paper" if source == "paper" else f"{curve}, seed {seed}"
                    if found:
                        weights = _values(found, "weight")
                        axis.plot(_values(found, "policy"), weights, color=line.color, linestyle=style, label=text)
        axis.set_title(f"step {step}")
        axis.set_xlabel("policy")
    axes[0].set_ylabel("weight")
    axes[0].legend(fontsize=8)
    return figure


def draw_heatmap(rows: list[Row]) -> Figure:
    """Draw the weight of each block at each step on a logarithmic scale, one panel per run."""
    runs = list(dict.fromkeys((row["curve"], row["seed"]) for row in rows))
    figure, axes = _canvas(5.6, 4.2, len(runs))
    shares = _values(rows, "share")
    low = max(float(shares[shares > 0].min(initial=1.0)), 1e-6)
    norm = LogNorm(low, max(float(shares.max()), 10.0 * low))
    by_run: dict[tuple[str, int], list[Row]] = {run: [] for run in runs}
    for row in rows:
        by_run[row["curve"], row["seed"]].append(row)
    for axis, ((curve, seed), found) in zip(axes, by_run.items(), strict=True):
        steps = sorted({row["step"] for row in found})
        grid = np.full((max(row["policy"] for row in found) + 1, len(steps)), np.nan)
        column = {step: i for i, step in enumerate(steps)}
        for row in found:
            grid[row["policy"], column[row["step"]]] = row["share"]
        mesh = axis.pcolormesh(steps, np.arange(len(grid)), np.maximum(grid, low), norm=norm, shading="nearest")
        mesh.set(cmap="viridis", rasterized=True)  # as vector shapes, 70,000 blocks take ten seconds to save
        axis.grid(False)
        axis.set_title(f"{curve}, seed {seed}")
        _label_steps(axis)
    axes[0].set_ylabel("policy (the block it collected)")
    figure.colorbar(ScalarMappable(norm, "viridis"), ax=axes, label="share of the block")
    return figure


def draw_tsne(rows: list[Row]) -> Figure:
    """Draw visited states and actions in the plane, coloured by the step of their policy."""
    runs = _names(rows, "curve")
    figure, axes = _canvas(5.2, 4.6, len(runs))
    steps = _names(rows, "step")
    for axis, curve in zip(axes, runs, strict=True):
        for i, step in enumerate(steps):
            found = _of(rows, curve=curve, step=step)
            color = colormaps["viridis"](0.95 * i / max(len(steps) - 1, 1))
            axis.scatter(_values(found, "x"), _values(found, "y"), s=4, color=color, label=f"step {step}", linewidths=0)
        axis.set_title(curve)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.grid(False)
    axes[0].legend(fontsize=8, markerscale=3)
    return figure


BEHAVIOUR = {
    "error": "return beside the model's error",
    "standing": "evaluation episodes that stand still",
    "effective": "effective sample size",
    "kept": "how long a return is kept (hollow: to the end)",
    "critics": "critics' value minus return",
}
"""The panels of `behaviour`, with their titles."""


def draw_behaviour(rows: list[Row]) -> Figure:
    """Draw a panel for each measure that the runs have; a dot is one diagnosis or one return, a line a mean."""
    panels = [panel for panel in BEHAVIOUR if _of(rows, panel=panel)]
    figure, axes = _canvas(5.0, 3.8, len(panels), most_columns=3)
    by_curve = lines(_names(rows))
    for axis, panel in zip(axes, panels, strict=True):
        axis.set_title(BEHAVIOUR[panel], fontsize=10)
        for curve, line in by_curve.items():
            found = _of(rows, panel=panel, curve=curve)
            if panel == "error":
                axis.plot(
                    _values(found, "error"),
                    _values(found, "return"),
                    MARKERS[line.dash],
                    color=line.color,
                    markersize=4,
                    markeredgewidth=0,
                    alpha=0.6,
                )
            elif panel == "kept":
                _draw_kept(axis, found, line)
            else:
                _band(axis, found, "step", line, curve)
                axis.lines[-1].set(marker="" if panel == "effective" else MARKERS[line.dash], markersize=4)
        _label_behaviour(axis, panel, _of(rows, panel=panel))
    handles = [
        Line2D([], [], color=line.color, linestyle=_dashes(line), marker=MARKERS[line.dash], markersize=4, label=curve)
        for curve, line in by_curve.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def _draw_kept(axis: Axes, rows: list[Row], line: Line) -> None:
    """Draw returns and how long they were kept; hollow where the run ended first."""
    for lost, fill in ((1, line.color), (0, "none")):
        found = _of(rows, lost=lost)
        x, y = _values(found, "return"), _values(found, "kept")
        axis.plot(x, y, MARKERS[line.dash], color=line.color, markersize=4, markerfacecolor=fill)


def _label_behaviour(axis: Axes, panel: str, rows: list[Row]) -> None:
    """Name the axes of a panel and set their ranges."""
    if panel == "error":
        axis.set(xscale="log", xlabel="one-step error on the current policy (L2)", ylabel="return of the same step")
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif panel == "kept":
        axis.set(xlabel="return", ylabel="steps until below half of it")
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        _label_steps(axis)
        axis.set_ylabel({"critics": "discounted return"}.get(panel, "share"))
    if panel == "critics":
        axis.axhline(0.0, color="#999999", linewidth=0.8)
        _focus(axis, rows)
    elif panel in ("standing", "effective"):
        axis.set_ylim(-0.03, 1.03)


def draw_time(rows: list[Row]) -> Figure:
    """Draw hours as bars, labelled with their ratio to the baseline's, here and in the paper."""
    figure, (axis,) = _canvas(7.6, 1.2 + 0.5 * len(rows))
    by_curve = lines(_names(rows))
    values = _values(rows, "hours_per_100k_mean")
    axis.barh(range(len(rows)), np.nan_to_num(values), color=[by_curve[row["curve"]].color for row in rows], height=0.6)
    for i, row in enumerate(rows):
        axis.annotate(f" {_time_text(row)}", (np.nan_to_num(values[i]), i), va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row['curve']}\n{row['env']}" for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0.0, 1.5 * max(float(np.nan_to_num(values).max()), 1e-12))
    axis.set_xlabel(f"hours per 100k {STEPS_TEXT}")
    return figure


def _time_text(row: Row) -> str:
    if math.isnan(row["hours_per_100k_mean"]):
        return "no timing"
    text = f"{row['hours_per_100k_mean']:.3g}"
    if not math.isnan(row["times_mbpo"]):
        text += f", {row['times_mbpo']:.2f} × {BASELINE}"
    return text if math.isnan(row["paper_times_mbpo"]) else f"{text} (paper {row['paper_times_mbpo']:.2f} ×)"


def draw_thresholds(rows: list[Row]) -> Figure:
    """Draw a dot at the step where each seed reaches the threshold; a cross at the right edge where it never does."""
    curves = list(dict.fromkeys((row["env"], row["curve"]) for row in rows))
    figure, (axis,) = _canvas(6.4, 1.2 + 0.5 * len(curves))
    finite = _values(rows, "steps")
    edge = 1.08 * max(_values(rows, "evaluated_until").max(), 1.0)
    by_curve = lines(_names(rows))
    for i, (env, curve) in enumerate(curves):
        steps = _values(_of(rows, env=env, curve=curve), "steps")
        never = np.isinf(steps)
        place = i + 0.4 * (np.arange(len(steps)) + 0.5) / len(steps) - 0.2  # so that no seed hides another
        axis.plot(steps[~never], place[~never], "o", color=by_curve[curve].color, markersize=5)
        axis.plot(np.full(never.sum(), edge), place[never], "x", color=by_curve[curve].color, markersize=5)
    if np.isinf(finite).any():
        axis.annotate("never", (edge, -0.6), ha="center", fontsize=8)
    names = [f"{curve}\n{env} ≥ {_of(rows, env=env, curve=curve)[0]['threshold']:.0f}" for env, curve in curves]
    axis.set_yticks(range(len(curves)), names)
    axis.set_ylim(len(curves) - 0.5, -0.9)
    axis.set_xlim(0.0, 1.05 * edge)
    _label_steps(axis)
    return figure


def draw_aggregates(rows: list[Row]) -> Figure:
    """Draw interquartile mean and optimality gap with their intervals, and for each pair who beats whom."""
    curves = _names(rows)
    once = [row for row in rows if not row["versus"] or curves.index(row["curve"]) < curves.index(row["versus"])]
    figure, axes = _canvas(4.6, 1.2 + 0.3 * max(len(_of(once, statistic="probability")), len(curves), 3), 3)
    titles = {"iqm": "interquartile mean", "optimality_gap": "optimality gap", "probability": "P(first beats second)"}
    by_curve = lines(curves)
    for axis, (statistic, title) in zip(axes, titles.items(), strict=True):
        found = _of(once, statistic=statistic)
        for i, row in enumerate(found):
            color = by_curve[row["curve"]].color
            axis.plot([row["low"], row["high"]], [i, i], color=color, linewidth=6, alpha=0.35, solid_capstyle="butt")
            axis.plot(row["mean"], i, "o", color=color)
        names = [f"{row['curve']} > {row['versus']}" if row["versus"] else row["curve"] for row in found]
        axis.set_yticks(range(len(found)), names, fontsize=8)
        axis.set_ylim(max(len(found), 1) - 0.5, -0.5)
        axis.set_title(title)
    axes[-1].axvline(0.5, color="#999999", linewidth=0.8)
    axes[-1].set_xlim(-0.05, 1.05)
    return figure
