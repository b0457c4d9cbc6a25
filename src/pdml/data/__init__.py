"""Where transitions live: the replay buffer, the model buffer, how minibatches are drawn, and prior transitions."""

from pdml.data.prior import from_minari

__all__ = ["from_minari"]
