"""`pdml.sweep`: all runs of a study on this machine, from Python, and what came out of them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pdml.config.parse import path_of, whole
from pdml.core.signals import Stopped
from pdml.reporting.read import read_all
from pdml.reporting.summary import final_returns
from pdml.runs.device import available_threads, physical_cores
from pdml.sweeps.cost import costs, jobs_in_memory, require_disk, require_memory
from pdml.sweeps.local import run_local
from pdml.sweeps.plan import PlannedRun, plan, split_done
from pdml.sweeps.study import read_study, study_from
from pdml.sweeps.view import SweepView
from pdml.sweeps.worker import Outcome


class Sweep(NamedTuple):
    """The runs of a study after a sweep."""

    done: tuple[Path, ...]
    """Directories of the finished runs; `pdml.Agent.load` and every command take them."""
    failed: dict[Path, str]
    """Directories of the others, with the reason; the same call tries them again."""

    def final_returns(self) -> list[dict[str, Any]]:
        """Return a row for each environment and method: the mean over seeds of the last evaluation.

        `low` and `high` are its 95 % interval by Student, NaN for one seed; `seeds` says how many there are, `step` how
        many steps after the warm-up the evaluation was, `last_five` is the mean over the last five evaluations. What is
        missing is a warning.
        """
        found = final_returns(read_all(self.done))
        for note in found.notes:
            warnings.warn(note, stacklevel=2)
        return found.rows


def sweep(
    study: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    jobs: int | None = None,
    cpus_per_run: int = 1,
    progress_bar: bool = True,
) -> Sweep:
    """Do all runs of a study, as `pdml sweep` does: each in a process of its own, several at a time.

    A finished run is skipped and a broken one resumed, so the same call continues after Ctrl-C, which saves all runs.

    Args:
        study: What a study's file has, as a dict: envs, methods, seeds, steps, settings and so on. Or such a file, or
            the name of a study of the package.
        out: Its runs are at out/env/method[-settings]/seed_K.
        jobs: Runs at a time; by default as many as there are physical cores, if memory suffices.
        cpus_per_run: Cores of each run.
        progress_bar: Show a table on a terminal, elsewhere a line for each start and end.
    """
    out = path_of("out", out)
    cpus = whole("cpus_per_run", str(cpus_per_run), most=available_threads())
    most = max(physical_cores() // cpus, 1) if jobs is None else whole("jobs", str(jobs))
    chosen = study_from(out.resolve().name, study) if isinstance(study, Mapping) else read_study(str(study))
    runs = plan(chosen, out, cpus)
    done, left = split_done(runs)
    needed = costs(runs, out)
    at_a_time = jobs_in_memory(needed, most) if jobs is None else most
    require_disk(left, needed, out)
    require_memory(needed, at_a_time)
    title = f"{chosen.name}: {len(runs)} runs in {out}, {len(done)} done already"
    view = SweepView(title, left, done, out)
    try:
        with view:
            ended = run_local(left, at_a_time, view.changed if progress_bar else _silent)
    except Stopped as stopped:
        raise KeyboardInterrupt(f"{stopped}; the same call continues") from None
    failed = {run.path: outcome.reason for run, outcome in ended if outcome.code != 0}
    return Sweep(tuple(run.path for run in runs if run.path not in failed), failed)


def _silent(run: PlannedRun, outcome: Outcome | None) -> None:
    """Show nothing."""
