"""Figures of runs: rows, drawn by matplotlib and saved as png, pdf and csv."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from matplotlib import rc_context
from matplotlib.figure import Figure

from pdml.core.errors import UserError
from pdml.reporting import blocks, curves, draw, model_errors, summary
from pdml.reporting.read import Row, Run
from pdml.reporting.rows import Rows, write_rows

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "pdf.fonttype": 42,  # keep text as text
    "savefig.dpi": 160,
}


class FigureOptions(NamedTuple):
    """What can be chosen besides the runs; a figure reads what concerns it."""

    at: tuple[int, ...] = ()
    """Steps after warm-up."""
    threshold: float | None = None
    """Return to reach; None: the paper's last point of MBPO."""
    seed: int = 0
    """Of the bootstrap."""


class FigureKind(NamedTuple):
    """How the rows of a figure are made, and how they are drawn."""

    rows: Callable[[Sequence[Run], FigureOptions], Rows]
    draw: Callable[[list[Row]], Figure]


KINDS: dict[str, FigureKind] = {
    "curves": FigureKind(lambda runs, _: curves.learning_curves(runs), draw.draw_curves),
    "seeds": FigureKind(lambda runs, _: curves.each_seed(runs), draw.draw_seeds),
    "errors": FigureKind(lambda runs, _: model_errors.one_step_errors(runs), draw.draw_errors),
    "compounding": FigureKind(
        lambda runs, options: model_errors.compounding_errors(runs, options.at), draw.draw_compounding
    ),
    "weights": FigureKind(lambda runs, options: blocks.policy_weights(runs, options.at), draw.draw_weights),
    "heatmap": FigureKind(lambda runs, _: blocks.weight_history(runs), draw.draw_heatmap),
    "tsne": FigureKind(lambda runs, _: blocks.visited_states(runs), draw.draw_tsne),
    "ablation": FigureKind(lambda runs, _: curves.ablation(runs), draw.draw_curves),
    "rates": FigureKind(lambda runs, _: curves.rates(runs), draw.draw_curves),
    "horizons": FigureKind(lambda runs, _: curves.horizons(runs), draw.draw_curves),
    "time": FigureKind(lambda runs, _: summary.training_time(runs), draw.draw_time),
    "thresholds": FigureKind(
        lambda runs, options: summary.steps_to_threshold(runs, options.threshold), draw.draw_thresholds
    ),
    "aggregate": FigureKind(lambda runs, options: summary.aggregates(runs, options.seed), draw.draw_aggregates),
}
"""How each figure of `pdml.reporting.style.FIGURES` is made."""


def save_figure(name: str, runs: Sequence[Run], out: Path, options: FigureOptions) -> tuple[list[Path], Rows]:
    """Draw a figure of some runs; write its rows as csv, and the drawing as png and pdf."""
    kind = KINDS[name]
    found = kind.rows(runs, options)
    if not found.rows and found.problems:
        raise UserError("; ".join(found.problems))
    if not found.rows:
        raise UserError(f"figure = '{name}': the runs have nothing to draw yet ({'; '.join(found.notes)})")
    try:
        out.mkdir(parents=True, exist_ok=True)
        paths = [out / f"{name}.{ending}" for ending in ("csv", "png", "pdf")]
        write_rows(paths[0], found.rows)
        with rc_context(cast(Any, STYLE)):
            figure = kind.draw(found.rows)
            figure.savefig(paths[1])
            figure.savefig(paths[2], metadata={"CreationDate": None})
    except OSError as error:
        raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
    return paths, found
