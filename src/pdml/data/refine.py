"""The seam for what a method changes after the rollouts of a block: AMPO its model, MaPER its critics."""

from typing import Any, Protocol, runtime_checkable

from pdml.core.types import Metrics
from pdml.data.model_buffer import ModelBuffer
from pdml.data.replay import RealRows


@runtime_checkable
class Refine(Protocol):
    """Changes model or agent after the rollouts of a block."""

    def __call__(
        self, model: Any, agent: Any, buffer: ModelBuffer, real: RealRows, fitted: Metrics, step: int, /
    ) -> tuple[Any, Any, Metrics]:
        """Return model, agent and metrics.

        Args:
            fitted: Metrics of the fit of this block.
        """
        ...


def refine_nothing(
    model: Any, agent: Any, buffer: ModelBuffer, real: RealRows, fitted: Metrics, step: int, /
) -> tuple[Any, Any, Metrics]:
    """Change nothing: most methods."""
    return model, agent, {}
