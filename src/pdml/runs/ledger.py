"""What recording adds up between checkpoints; it is saved with the state, so that resuming counts on."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pdml.config.schedule import Schedule
from pdml.core.evaluation_counts import EvaluationCounts
from pdml.runs.best_policy import BestPolicy
from pdml.training.diagnostics import FreshReservoir
from pdml.training.state import section


@dataclass
class Ledger:
    """Counts and sums of the recorder. Learning never reads them."""

    fresh: FreshReservoir
    """Fresh steps of past policies, if the run is diagnosed."""
    evaluation_steps: int = 0
    """Real steps spent on evaluation, beyond those learned from."""
    recent: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of the training episodes that ended since the last evaluation or the warm-up."""
    evaluated: float = float("nan")
    """Mean return of the evaluation in this block; NaN if there was none."""
    returns: tuple[float, ...] = ()
    """Mean returns of the last evaluations: as many as the best policy is judged by."""
    best: BestPolicy | None = None
    """The best policy so far."""
    evaluations: EvaluationCounts = field(default_factory=EvaluationCounts)
    """All evaluations so far."""


def saved_ledger(ledger: Ledger) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the ledger as arrays and JSON: what `restored_ledger` reads. Names are part of the file format."""
    arrays = {f"probes.{name}": array for name, array in ledger.fresh.arrays().items()}
    note: dict[str, Any] = {
        "evaluation_steps": ledger.evaluation_steps,
        "recent": ledger.recent,
        "evaluated": ledger.evaluated,
    }
    note["evaluations"] = ledger.evaluations._asdict() if ledger.evaluations.total else None
    note |= {"returns": ledger.returns, "best": None if ledger.best is None else ledger.best.note()}
    if ledger.best is not None:
        arrays |= {f"best.{name}": array for name, array in ledger.best.policy.arrays().items()}
    return arrays, note


def restored_ledger(blank: Ledger, arrays: dict[str, np.ndarray], note: dict[str, Any], schedule: Schedule) -> Ledger:
    """Return the ledger that `saved_ledger` described. One that knows of no best policy is of an earlier version.

    Args:
        blank: A new ledger; it is consumed.
    """
    blank.fresh.restore(section(arrays, "probes."))
    evaluated = note["evaluated"] if "evaluated" in note else note["log"]["evaluated"]  # once kept with the block
    return Ledger(
        blank.fresh,
        note["evaluation_steps"],
        [(total, length) for total, length in note["recent"]],
        float("nan") if schedule.at_boundary(note["step"]) else evaluated,
        tuple(note.get("returns", ())),
        None if note.get("best") is None else BestPolicy.of(section(arrays, "best."), note["best"]),
        EvaluationCounts(**(note.get("evaluations") or {})),
    )
