"""Functions of many host rows, computed in chunks of one fixed size, so that they compile once whatever the count."""

from collections.abc import Callable
from typing import Any

import numpy as np

CHUNK_ROWS = 4096


def in_chunks(function: Callable[[np.ndarray, int], Any], rows: np.ndarray, size: int = CHUNK_ROWS) -> np.ndarray:
    """Return the function of all rows; it is given a fresh chunk, padded with zeros, and the chunk's number.

    All chunks are dispatched before the first is waited for.
    """
    results = []
    for number, first in enumerate(range(0, len(rows), size)):
        chunk = np.zeros((size, *rows.shape[1:]), rows.dtype)
        part = rows[first : first + size]
        chunk[: len(part)] = part
        results.append(function(chunk, number))
    return np.concatenate([np.asarray(result) for result in results])[: len(rows)]
