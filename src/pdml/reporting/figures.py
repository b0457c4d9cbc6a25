"""Figures of runs: rows, drawn by matplotlib and saved as png, pdf and csv."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image, UnidentifiedImageError

from pdml.core.errors import UserError
from pdml.reporting import behaviour, blocks, curves, draw, model_errors, summary
from pdml.reporting.read import Row, Run
from pdml.reporting.rows import Rows, write_rows
from pdml.reporting.style import ENDINGS

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
    "behaviour": FigureKind(lambda runs, _: behaviour.behaviour(runs), draw.draw_behaviour),
    "time": FigureKind(lambda runs, _: summary.training_time(runs), draw.draw_time),
    "thresholds": FigureKind(
        lambda runs, options: summary.steps_to_threshold(runs, options.threshold), draw.draw_thresholds
    ),
    "aggregate": FigureKind(lambda runs, options: summary.aggregates(runs, options.seed), draw.draw_aggregates),
}
"""How each figure of `pdml.reporting.style.FIGURES` is made."""


DIGEST = "pdml rows"
"""The entry of a png that says which rows it was drawn from."""


def save_figure(
    name: str, runs: Sequence[Run], out: Path, options: FigureOptions, endings: Sequence[str] = ENDINGS
) -> tuple[list[Path], Rows]:
    """Draw a figure of some runs; write its rows as csv, and the drawing as png and pdf.

    Args:
        endings: Which of the three files to write.
    """
    found = _figure_rows(name, runs, options)
    about: dict[str, dict[str, Any]] = {"png": {DIGEST: rows_digest(found.rows)}, "pdf": {"CreationDate": None}}
    paths = [out / f"{name}.{ending}" for ending in endings]
    try:
        out.mkdir(parents=True, exist_ok=True)
        with rc_context(cast(Any, STYLE)):
            figure = KINDS[name].draw(found.rows) if set(endings) - {"csv"} else None
            for path, ending in zip(paths, endings, strict=True):
                if figure is None or ending == "csv":
                    write_rows(path, found.rows)
                else:
                    figure.savefig(path, metadata=about[ending])
    except OSError as error:
        raise UserError(f"out = '{out}': cannot be written ({error.strerror})") from None
    return paths, found


def is_current(name: str, runs: Sequence[Run], out: Path, options: FigureOptions) -> bool:
    """Say whether a figure's png was drawn from the rows that the runs have now."""
    try:
        with Image.open(out / f"{name}.png") as image:
            drawn_from = image.info.get(DIGEST)
    except (OSError, UnidentifiedImageError):
        return False
    return drawn_from == rows_digest(_figure_rows(name, runs, options).rows)


def _figure_rows(name: str, runs: Sequence[Run], options: FigureOptions) -> Rows:
    found = KINDS[name].rows(runs, options)
    if not found.rows and found.problems:
        raise UserError("; ".join(found.problems))
    if not found.rows:
        raise UserError(f"figure = '{name}': the runs have nothing to draw yet ({'; '.join(found.notes)})")
    return found


def rows_digest(rows: Sequence[Row]) -> str:
    """Return a hash of rows. Numbers count with six digits: the last ones may differ between machines."""
    plain = [[(key, _six_digits(value)) for key, value in row.items()] for row in rows]
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def _six_digits(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
