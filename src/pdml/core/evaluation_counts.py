"""How often a run has lost what it had learned, counted over its evaluations."""

import math
from typing import NamedTuple


class EvaluationCounts(NamedTuple):
    """How many evaluations there were, and how many of them were bad."""

    total: int = 0
    highest: float = -math.inf
    """Highest mean return so far."""
    low: int = 0
    """Those below half of the highest so far; none while that is not above 0."""

    def after(self, value: float) -> "EvaluationCounts":
        """Count one more evaluation of this mean return."""
        highest = max(self.highest, value)
        return EvaluationCounts(self.total + 1, highest, self.low + (highest > 0.0 and value < 0.5 * highest))

    @property
    def low_share(self) -> float:
        """The share of those below half of the highest so far; NaN before the first."""
        return self.low / self.total if self.total else math.nan
