"""How often a run has lost what it had learned."""

import math

import pytest

from pdml.core.evaluation_counts import EvaluationCounts


def counted(values):
    counts = EvaluationCounts()
    for value in values:
        counts = counts.after(value)
    return counts


@pytest.mark.parametrize(
    ("values", "low", "share"),
    [
        ([], 0, math.nan),
        ([100.0, 49.0, 50.0, 300.0, 149.0], 2, 0.4),  # 50 is not below half of 100; 149 is below half of 300
        ([10.0, 20.0, 40.0], 0, 0.0),
        ([-50.0, -200.0], 0, 0.0),  # half of a negative return says nothing
        ([-50.0, 10.0, -1.0], 1, pytest.approx(1 / 3)),
    ],
)
def test_evaluations_below_half_of_the_highest_so_far_are_counted(values, low, share):
    counts = counted(values)
    assert (counts.total, counts.low) == (len(values), low)
    assert counts.low_share == share or (math.isnan(share) and math.isnan(counts.low_share))
