"""Rows of csv files, and lines of figures, as numbers to compare."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

NAN = float("nan")


def _parsed(text: str) -> float | str:
    if not text:
        return NAN
    try:
        return float(text)
    except ValueError:
        return text


def read_back(path: Path) -> list[dict[str, Any]]:
    """Read a csv file; empty cells are NaN."""
    with path.open(newline="") as file:
        return [{key: _parsed(text) for key, text in row.items()} for row in csv.DictReader(file)]


def pick(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
    """Return the rows with some values."""
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    """Return a column as numbers."""
    return np.array([row[name] for row in rows], float)


def drawn(line: Any) -> np.ndarray:
    """Return the points of a drawn line, x above y."""
    return np.array(line.get_data(), float)
