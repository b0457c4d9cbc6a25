"""Arrays of fixed shapes, so that compiled functions compile once whatever the number of rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pdml.core.errors import UserError

CHUNK_ROWS = 4096


def in_chunks(function: Callable[[np.ndarray, int], Any], rows: np.ndarray, size: int = CHUNK_ROWS) -> np.ndarray:
    """Return the function of all rows, computed chunk by chunk.

    The function is given a fresh chunk, padded with zeros, and the chunk's number. All chunks are dispatched before
    the first result is waited for.
    """
    results = []
    for number, first in enumerate(range(0, len(rows), size)):
        chunk = np.zeros((size, *rows.shape[1:]), rows.dtype)
        part = rows[first : first + size]
        chunk[: len(part)] = part
        results.append(function(chunk, number))
    return np.concatenate([np.asarray(result) for result in results])[: len(rows)]


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """Return a fresh array of a fixed length, padded with zeros; floats become float32."""
    dtype = np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype
    result = np.zeros((length, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result


def power_of_two(rows: int) -> int:
    """Return the next power of two: batches of any length then have few shapes, and compile few times."""
    return 1 << max(rows - 1, 0).bit_length()


def capacity_of(rows: int) -> int:
    """Return the length to which rows are padded: it changes only when the data have doubled."""
    return max(4096, power_of_two(rows))


def as_batch(obs: Any, size: int, name: str = "obs") -> np.ndarray:
    """Return one vector or a batch of them as a batch of float32, or say what is wrong with it."""
    try:
        array = np.array(obs, np.float32)
    except (TypeError, ValueError):
        pair = isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], dict)
        hint = "; env.reset() returns a pair, of which it is the first" if pair else ""
        raise UserError(f"{name}: must be an array of numbers{hint}") from None
    if array.ndim not in (1, 2) or array.shape[-1] != size:
        raise UserError(f"{name}: has shape {array.shape}; ({size},) or (n, {size}) is needed")
    return array.reshape(-1, size)
