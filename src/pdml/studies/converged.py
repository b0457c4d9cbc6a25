"""The converged model: archived models trained further, to a plateau or 500 epochs, and tested on fresh steps.

[Wang et al. 2023, Sec. 3 and its appendices].
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdml.config.fields import change
from pdml.config.methods import METHODS
from pdml.config.schema import Settings
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, key
from pdml.data.replay import Replay
from pdml.reporting import published
from pdml.runs.tensor_file import read_arrays
from pdml.studies.open_run import OpenRun, opened, restored_tree
from pdml.training.diagnostics import diagnosis
from pdml.training.state import section


def converged_errors(
    path: Path, steps: Sequence[int] = (), patience: int = 20, max_epochs: int = 500, fresh: int = 1000
) -> Iterator[dict[str, Any]]:
    """Train archived models further, on all data of their step uniformly, until the holdout error stops falling.

    Before and after, the error is measured on fresh steps of the archived policy. Rows come one by one, since a model
    may take many minutes.

    Args:
        steps: Archived steps, after warm-up; by default all.
    """
    with opened(path, lambda settings: with_longer_fits(settings, patience, max_epochs)) as run:
        if run.parts.recipe.model is None:
            raise UserError(f"run = '{path}': method '{run.config.method}' has no model")
        for step, file in run.chosen_archives(steps).items():
            yield _converge(run, file, step, fresh)


def with_longer_fits(settings: Settings, patience: int, max_epochs: int) -> Settings:
    """Let fits last longer.

    A fit of MBPO's family stops after five epochs without a gain of 1 %; here after `patience` without one of 0.1 %.
    DHMBPO's fit stops by a test of its own; it waits and lasts at least as long as in the run.
    """
    own = settings.learning.dynamics
    if METHODS[settings.learning.method].is_double_horizon:
        patience, max_epochs = max(patience, own.patience), max(max_epochs, own.max_epochs)
        settings = change(settings, {"double.first_factor": 1})
    else:
        settings = change(settings, {"dynamics.improvement": 1e-3})
    return change(settings, {"dynamics.patience": patience, "dynamics.max_epochs": max_epochs})


def _converge(run: OpenRun, file: Path, after_warmup: int, fresh: int) -> dict[str, Any]:
    agent, dynamics = run.parts.recipe.agent, run.parts.model.dynamics
    arrays, note = read_arrays(file)
    state = restored_tree(agent.init(key(0, Purpose.AGENT_INIT)), arrays, "agent", file)
    model = restored_tree(dynamics.init(key(0, Purpose.MODEL_INIT)), arrays, "model", file)
    replay = Replay(run.layout, run.config.replay_capacity)
    replay.restore(section(arrays, "replay."))
    measure, real = diagnosis(run.layout, dynamics.means), replay.stored()
    probe = run.fresh(state.actor, note["step"], fresh)
    before = measure.errors(model, probe.rows)
    uniform = np.full(len(real.rows), 1.0 / len(real.rows))
    model, fitted = dynamics.fit(model, real, uniform, state, note["step"])
    after = measure.errors(model, probe.rows)
    return {
        "step": note["step"],
        "steps_after_warmup": after_warmup,
        "rows": len(real.rows),
        "fresh_steps": fresh,
        "archived_l2": before.l2,
        "archived_mse": before.mse,
        "converged_l2": after.l2,
        "converged_mse": after.mse,
        "epochs": int(fitted["model/epochs"]),
        "capped": int(fitted["model/capped"]),
        "paper_archived": published.model_error(run.config.env, run.config.method, after_warmup),
        "paper_converged": published.model_error(run.config.env, "converged", after_warmup),
    }
