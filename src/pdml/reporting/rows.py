"""Rows: the numbers of a figure or table, one dictionary per line of its csv file."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pdml.core.files import replaced
from pdml.reporting.read import Row
from pdml.reporting.statistics import Curve, Estimate, Series


class Rows(NamedTuple):
    """Rows of one kind, and what a reader should know about them."""

    rows: list[Row]
    notes: list[str]
    """How they were made: what is missing, left out or scaled."""
    problems: tuple[str, ...] = ()
    """What could not be read."""


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


def estimate_columns(estimate: Estimate) -> Row:
    """Return an estimate as columns of a row."""
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "seeds": estimate.seeds}


def value_at(series: Series, step: int) -> float:
    """Return the value at a step, NaN if there is none."""
    found = series.values[series.steps == step]
    return float(found[0]) if len(found) else float("nan")


def cell_text(value: float, form: str, nothing: str = "–") -> str:
    """Write a number into the cell of a page's table, with a true minus sign; NaN is nothing."""
    return nothing if np.isnan(value) else form.format(value).replace("-", "−")


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write rows as csv. Numbers read back exactly; None and NaN are empty. A file is there whole or not at all."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with replaced(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(row.get(column)) for column in columns])


def other_rows(path: Path, rows: list[Row], by: str) -> list[Row]:
    """Read the rows of a csv file that have a whole number in a column which none of the given rows has there.

    Damaged rows are left out.
    """
    if not path.exists():
        return []
    given = {str(row[by]) for row in rows}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        found = [dict(row) for row in csv.DictReader(file)]
    whole = [row for row in found if None not in row and None not in row.values()]
    return [row for row in whole if row.get(by, "").isdecimal() and row[by] not in given]


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return repr(value) if isinstance(value, float) else str(value)
