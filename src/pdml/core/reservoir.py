"""A uniform sample of fixed size from a stream of unknown length."""

import numpy as np
from jaxtyping import Float64, Int


def reservoir_slots(offered: int, draws: Float64[np.ndarray, " n"], capacity: int) -> Int[np.ndarray, " n"]:
    """Return the slot that each of the next n items takes (Vitter's algorithm R); `capacity` or more: none.

    Assign items to their slots in order: a later item replaces an earlier one.

    Args:
        offered: Items offered before.
        draws: Uniform numbers in [0, 1), one per item.
    """
    number = offered + np.arange(len(draws))
    return np.where(number < capacity, number, (draws * (number + 1)).astype(np.int64))
