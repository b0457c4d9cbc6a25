"""Figures: rows drawn by matplotlib and kept as png, pdf and csv. A drawing sees its rows and nothing else."""

import csv
import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from pdml.core.errors import UserError
from pdml.reporting import summary
from pdml.reporting.read import Row, Run
from pdml.reporting.style import SEED_LOOKS, Look, looks
from pdml.reporting.summary import Table

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,  # letters stay letters
    "savefig.dpi": 160,
}


MOST_COLUMNS = 4
"""Panels beside each other."""


class Wishes(NamedTuple):
    """What a person may choose beyond the runs."""

    at: tuple[int, ...] = ()
    """Steps after warm-up."""
    threshold: float | None = None
    seed: int = 0
    """Of the bootstrap."""


class Kind(NamedTuple):
    """A figure: how its rows come about, and how they are drawn."""

    rows: Callable[[Sequence[Run], Wishes], Table]
    draw: Callable[[list[Row]], Figure]


def save(kind_name: str, runs: Sequence[Run], out: Path, wishes: Wishes) -> tuple[list[Path], Table]:
    """Draw a figure of some runs and write it three times: png, pdf, and its rows as csv."""
    kind = KINDS[kind_name]
    table = kind.rows(runs, wishes)
    if not table.rows and table.problems:
        raise UserError("; ".join(table.problems))
    if not table.rows:
        raise UserError(f"figure = '{kind_name}': the runs have nothing to draw yet ({'; '.join(table.notes)})")
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{kind_name}.{ending}" for ending in ("csv", "png", "pdf")]
        write_rows(paths[0], table.rows)
        with rc_context(cast(Any, STYLE)):
            figure = kind.draw(table.rows)
            figure.savefig(paths[1])
            figure.savefig(paths[2], metadata={"CreationDate": None})
    except OSError as error:
        raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
    return paths, table


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write rows as csv; numbers read back exactly, and what is not known is empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(column)) for column in columns])


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _canvas(width: float = 6.4, height: float = 4.2, panels: int = 1) -> tuple[Figure, list[Axes]]:
    columns = min(panels, MOST_COLUMNS)
    lines = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for unused in axes[panels:]:
        unused.remove()
    return figure, axes[:panels]


def _of(rows: list[Row], **wanted: Any) -> list[Row]:
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def _column(rows: list[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], float)


def _names(rows: list[Row], column: str = "curve") -> list[Any]:
    return list(dict.fromkeys(row[column] for row in rows))


def _dashes(look: Look) -> Any:
    return (0, tuple(float(length) for length in look.dash.split())) if look.dash else "-"


def _band(axis: Axes, rows: list[Row], x: str, look: Look, text: str) -> None:
    """Draw a mean and its interval; points of one seed have none."""
    place = _column(rows, x)
    alone = "o" if np.isfinite(_column(rows, "mean")).sum() == 1 else None
    axis.plot(place, _column(rows, "mean"), color=look.color, linestyle=_dashes(look), label=text, marker=alone)
    axis.fill_between(place, _column(rows, "low"), _column(rows, "high"), color=look.color, alpha=0.18, linewidth=0)


def _focus(axis: Axes, rows: list[Row]) -> None:
    """Let means decide the vertical range: intervals of two or three seeds may be wide beyond reason."""
    means = _column(rows, "mean")
    means = means[np.isfinite(means)]
    if len(means):
        room = max(float(np.ptp(means)), 0.05 * float(np.abs(means).max()), 1e-12)
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, float(means.min()) - room / 2), min(high, float(means.max()) + room / 2))


def draw_curves(rows: list[Row]) -> Figure:
    """Draw returns over steps; published points are hollow, their bin a whisker to either side."""
    figure, (axis,) = _canvas(7.6)
    for curve, look in looks(_names(rows)).items():
        ours = _of(rows, curve=curve, source="runs")
        paper = [row for row in _of(rows, curve=curve) if row["source"] != "runs"]
        if ours:
            seeds = max(row["seeds"] for row in ours)
            _band(axis, ours, "step", look, f"{curve} ({seeds} seed{'s' if seeds > 1 else ''})")
        if paper:
            _published(axis, paper, look.color)
    axis.set_xlabel("real steps after warm-up")
    axis.set_ylabel("return")
    if math.isfinite(summary.reach(rows)):
        axis.set_xlim(-0.02 * summary.reach(rows), summary.reach(rows))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    _focus(axis, [row for row in rows if row["step"] <= summary.reach(rows)])
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def draw_seeds(rows: list[Row]) -> Figure:
    """Draw the returns of every run by itself, a panel a curve, with the same range of returns in all of them."""
    names, reach = _names(rows), summary.reach(rows)
    figure, axes = _canvas(5.2, panels=len(names))
    shown = _column([row for row in rows if row["step"] <= reach], "mean")
    low, high = shown.min(initial=0.0), shown.max(initial=0.0)
    for axis, curve in zip(axes, names, strict=True):
        ours = _of(rows, curve=curve, source="runs")
        paper = [row for row in _of(rows, curve=curve) if row["source"] != "runs"]
        if paper:
            _published(axis, paper, "#888888")
        for run in _names(ours, "run"):
            line = _of(ours, run=run)
            look = SEED_LOOKS[run % len(SEED_LOOKS)]
            axis.plot(
                _column(line, "step"),
                _column(line, "mean"),
                color=look.color,
                linestyle=_dashes(look),
                marker="." if len(line) == 1 else None,
                label=f"seed {line[0]['seed']}",
            )
        axis.set_title(curve)
        if math.isfinite(reach):
            axis.set_xlim(-0.02 * reach, reach)
        axis.set_ylim(low - 0.03 * (high - low), high + 0.1 * (high - low))
        axis.set_xlabel("real steps after warm-up")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.legend(fontsize=7)
    axes[0].set_ylabel("return")
    return figure


def _published(axis: Axes, rows: list[Row], color: str) -> None:
    """Draw published points, hollow, with their interval and, to either side, their bin."""
    mean = _column(rows, "mean")
    axis.errorbar(
        _column(rows, "step"),
        mean,
        xerr=_column(rows, "half_bin"),
        yerr=np.nan_to_num([mean - _column(rows, "low"), _column(rows, "high") - mean]),
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
    """Name published points in the legend, with what a reader must know of them."""
    note = row.get("note")
    return textwrap.fill(f"{row['source']}: {note}", 34) if note else f"{row['curve']}, {row['source']}"


def draw_errors(rows: list[Row]) -> Figure:
    """Draw the error on the current policy, and that on all policies so far beside it."""
    figure, axes = _canvas(panels=2)
    colors = looks(_names(rows))
    for axis, (kind, title) in zip(
        axes, (("current", "current policy"), ("overall", "all policies so far")), strict=True
    ):
        for curve, look in colors.items():
            _band(axis, _of(rows, curve=curve, error=kind), "step", look, curve)
        axis.set_title(title)
        axis.set_xlabel("real steps after warm-up")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        _focus(axis, rows)
    axes[0].set_ylabel("one-step error of the state (L2)")
    axes[0].legend(fontsize=8)
    return figure


def draw_compounding(rows: list[Row]) -> Figure:
    """Draw the error over the depth of a rollout, a panel a step."""
    steps = _names(rows, "step")
    figure, axes = _canvas(panels=len(steps))
    colors = looks(_names(rows))
    for axis, step in zip(axes, steps, strict=True):
        for curve, look in colors.items():
            _band(axis, _of(rows, curve=curve, step=step), "depth", look, curve)
        axis.set_title(f"step {step}")
        axis.set_xlabel("depth of the rollout")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _focus(axis, _of(rows, step=step))
    axes[0].set_ylabel("error of the state (L2)")
    axes[0].legend(fontsize=8)
    return figure


def draw_weights(rows: list[Row]) -> Figure:
    """Draw the weights of the historical policies, a panel a step."""
    steps = _names(rows, "step")
    figure, axes = _canvas(5.2, 3.8, len(steps))
    colors = looks(_names(rows))
    for axis, step in zip(axes, steps, strict=True):
        for curve, look in colors.items():
            for seed in _names(_of(rows, curve=curve, step=step), "seed"):
                for source, style in (("runs", _dashes(look)), ("paper", ":")):
                    found = _of(rows, curve=curve, step=step, seed=seed, source=source)
                    text = f"{curve}, paper" if source == "paper" else f"{curve}, seed {seed}"
                    if found:
                        weights = _column(found, "weight")
                        axis.plot(_column(found, "policy"), weights, color=look.color, linestyle=style, label=text)
        axis.set_title(f"step {step}")
        axis.set_xlabel("policy")
    axes[0].set_ylabel("weight")
    axes[0].legend(fontsize=8)
    return figure


def draw_heatmap(rows: list[Row]) -> Figure:
    """Draw the weight of each block at each step, a panel a run, on a logarithmic scale."""
    runs = list(dict.fromkeys((row["curve"], row["seed"]) for row in rows))
    figure, axes = _canvas(5.6, 4.2, len(runs))
    shares = _column(rows, "share")
    low = max(float(shares[shares > 0].min(initial=1.0)), 1e-6)
    norm = LogNorm(low, max(float(shares.max()), 10.0 * low))
    by_run: dict[tuple, list[Row]] = {run: [] for run in runs}
    for row in rows:
        by_run[row["curve"], row["seed"]].append(row)
    for axis, ((curve, seed), found) in zip(axes, by_run.items(), strict=True):
        steps = sorted({row["step"] for row in found})
        grid = np.full((max(row["policy"] for row in found) + 1, len(steps)), np.nan)
        column = {step: i for i, step in enumerate(steps)}
        for row in found:
            grid[row["policy"], column[row["step"]]] = row["share"]
        mesh = axis.pcolormesh(steps, np.arange(len(grid)), np.maximum(grid, low), norm=norm, shading="nearest")
        mesh.set(cmap="viridis", rasterized=True)  # as shapes, 70,000 blocks take ten seconds to save
        axis.grid(False)
        axis.set_title(f"{curve}, seed {seed}")
        axis.set_xlabel("real steps after warm-up")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0].set_ylabel("policy (block that it collected)")
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
            axis.scatter(_column(found, "x"), _column(found, "y"), s=4, color=color, label=f"step {step}", linewidths=0)
        axis.set_title(curve)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.grid(False)
    axes[0].legend(fontsize=8, markerscale=3)
    return figure


def draw_time(rows: list[Row]) -> Figure:
    """Draw hours as bars, with how many times MBPO's they are, here and in the paper."""
    figure, (axis,) = _canvas(7.6, 1.2 + 0.5 * len(rows))
    colors = looks(_names(rows))
    values = _column(rows, "hours_per_100k_mean")
    axis.barh(range(len(rows)), np.nan_to_num(values), color=[colors[row["curve"]].color for row in rows], height=0.6)
    for i, row in enumerate(rows):
        axis.annotate(f" {_time_text(row)}", (np.nan_to_num(values[i]), i), va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [f"{row['curve']}\n{row['env']}" for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0.0, 1.5 * max(float(np.nan_to_num(values).max()), 1e-12))
    axis.set_xlabel("hours for 100k real steps after warm-up")
    return figure


def _time_text(row: Row) -> str:
    if math.isnan(row["hours_per_100k_mean"]):
        return "no timing"
    text = f"{row['hours_per_100k_mean']:.3g}"
    if not math.isnan(row["times_mbpo"]):
        text += f", {row['times_mbpo']:.2f} × mbpo"
    return text if math.isnan(row["paper_times_mbpo"]) else f"{text} (paper {row['paper_times_mbpo']:.2f} ×)"


def draw_thresholds(rows: list[Row]) -> Figure:
    """Draw a dot for each seed's first step at the threshold; those that never reached it stand at the right edge."""
    curves = list(dict.fromkeys((row["env"], row["curve"]) for row in rows))
    figure, (axis,) = _canvas(6.4, 1.2 + 0.5 * len(curves))
    finite = _column(rows, "steps")
    edge = 1.08 * max(_column(rows, "evaluated_until").max(), 1.0)
    colors = looks(_names(rows))
    for i, (env, curve) in enumerate(curves):
        steps = _column(_of(rows, env=env, curve=curve), "steps")
        never = np.isinf(steps)
        place = i + 0.4 * (np.arange(len(steps)) + 0.5) / len(steps) - 0.2  # no seed hides another
        axis.plot(steps[~never], place[~never], "o", color=colors[curve].color, markersize=5)
        axis.plot(np.full(never.sum(), edge), place[never], "x", color=colors[curve].color, markersize=5)
    if np.isinf(finite).any():
        axis.annotate("never", (edge, -0.6), ha="center", fontsize=8)
    names = [f"{curve}\n{env} ≥ {_of(rows, env=env, curve=curve)[0]['threshold']:.0f}" for env, curve in curves]
    axis.set_yticks(range(len(curves)), names)
    axis.set_ylim(len(curves) - 0.5, -0.9)
    axis.set_xlim(0.0, 1.05 * edge)
    axis.set_xlabel("real steps after warm-up")
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def draw_aggregates(rows: list[Row]) -> Figure:
    """Draw interquartile mean and optimality gap with their intervals, and who beats whom, each pair once."""
    curves = _names(rows)
    once = [row for row in rows if not row["versus"] or curves.index(row["curve"]) < curves.index(row["versus"])]
    figure, axes = _canvas(4.6, 1.2 + 0.3 * max(len(_of(once, statistic="probability")), len(curves), 3), 3)
    titles = {"iqm": "interquartile mean", "optimality_gap": "optimality gap", "probability": "P(first beats second)"}
    colors = looks(curves)
    for axis, (statistic, title) in zip(axes, titles.items(), strict=True):
        found = _of(once, statistic=statistic)
        for i, row in enumerate(found):
            color = colors[row["curve"]].color
            axis.plot([row["low"], row["high"]], [i, i], color=color, linewidth=6, alpha=0.35, solid_capstyle="butt")
            axis.plot(row["mean"], i, "o", color=color)
        names = [f"{row['curve']} > {row['versus']}" if row["versus"] else row["curve"] for row in found]
        axis.set_yticks(range(len(found)), names, fontsize=8)
        axis.set_ylim(max(len(found), 1) - 0.5, -0.5)
        axis.set_title(title)
    axes[-1].axvline(0.5, color="#999999", linewidth=0.8)
    axes[-1].set_xlim(-0.05, 1.05)
    return figure


KINDS: dict[str, Kind] = {
    "curves": Kind(lambda runs, _: summary.learning_curves(runs), draw_curves),
    "seeds": Kind(lambda runs, _: summary.each_seed(runs), draw_seeds),
    "errors": Kind(lambda runs, _: summary.model_errors(runs), draw_errors),
    "compounding": Kind(lambda runs, wishes: summary.compounding(runs, wishes.at), draw_compounding),
    "weights": Kind(lambda runs, wishes: summary.mixture_weights(runs, wishes.at), draw_weights),
    "heatmap": Kind(lambda runs, _: summary.weight_history(runs), draw_heatmap),
    "tsne": Kind(lambda runs, _: summary.visitation(runs), draw_tsne),
    "ablation": Kind(lambda runs, _: summary.ablation(runs), draw_curves),
    "rates": Kind(lambda runs, _: summary.rates(runs), draw_curves),
    "horizons": Kind(lambda runs, _: summary.horizons(runs), draw_curves),
    "time": Kind(lambda runs, _: summary.training_time(runs), draw_time),
    "thresholds": Kind(lambda runs, wishes: summary.steps_to_threshold(runs, wishes.threshold), draw_thresholds),
    "aggregate": Kind(lambda runs, wishes: summary.aggregates(runs, wishes.seed), draw_aggregates),
}
"""How each figure of `pdml.reporting.style.FIGURES` is made."""
