"""The best policy of a run. A run may end in a bad phase; this is the policy to use then.

It is the policy with the highest score: the lesser of the mean return of its own evaluation and the mean of the last
`best_over` evaluations up to it. So neither a lucky evaluation among bad ones nor a bad one after good ones is taken
for the best. While there are fewer evaluations than `best_over`, every policy is judged by the mean of all so far.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pdml.runs.lease import Lease
from pdml.runs.policy import Policy
from pdml.runs.policy_files import FILES
from pdml.runs.tensor_file import write_arrays


class BestPolicy(NamedTuple):
    """A policy, and by what it was judged."""

    policy: Policy
    own: float
    """Mean return of its own evaluation."""
    mean: float
    """Mean return of the last evaluations up to its own."""
    over: int
    """How many these are."""

    @property
    def score(self) -> float:
        """What is compared."""
        return min(self.own, self.mean)

    def note(self) -> dict[str, Any]:
        """Return all but the policy's arrays, as files keep it."""
        return {"step": self.policy.step, "return": self.own, "mean_return": self.mean, "evaluations": self.over}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> "BestPolicy":
        """Make it from what files keep."""
        policy = Policy.of(arrays, arrays["low"], arrays["high"], note["step"])
        return cls(policy, note["return"], note["mean_return"], note["evaluations"])


def best_of(best: BestPolicy | None, returns: tuple[float, ...], policy: Callable[[], Policy]) -> BestPolicy:
    """Return the best policy after an evaluation: the best so far, or the one that was evaluated.

    Of two policies with the same score the one with the higher return is the better; else the first stays.

    Args:
        returns: Mean returns of the last evaluations, at most `best_over`; the last is that of the newest policy.
        policy: Returns that policy; called only if it is the best.
    """
    own, mean, over = returns[-1], sum(returns) / len(returns), len(returns)
    if best is not None and best.over < over:  # the evaluations are still growing in number, and its own is among them
        best = best._replace(mean=mean, over=over)
    if best is not None and (best.score, best.own) >= (min(own, mean), own):
        return best
    return BestPolicy(policy(), own, mean, over)


def write_best(best: BestPolicy | None, lease: Lease) -> None:
    """Make the file of the best policy what it is to be; remove it where there is none."""
    file = lease.run / FILES["best"]
    if best is None:
        lease.remove(file)
    else:
        write_arrays(file, best.policy.arrays(), best.note(), lease.replaced)
