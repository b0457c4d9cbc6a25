"""What the runs of a plan still need on this machine: time, disk and memory.

The time is that of finished runs of the same method and task, scaled by the work; where there are none, it is the work
by the machine's matmul speed. Importing this loads JAX.
"""

import heapq
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from pdml.config.fields import change
from pdml.config.files import read_metadata, read_run
from pdml.config.schema import Settings
from pdml.config.tasks import Task
from pdml.core.errors import UserError
from pdml.core.stopwatch import duration
from pdml.core.transition import Layout
from pdml.envs.task import env_task
from pdml.reporting.read import read_table
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.directory import metadata, recorded_threads
from pdml.runs.resources import EFFICIENCY, Needs, available_memory, estimate
from pdml.sweeps.plan import PlannedRun, state_of

ENOUGH = 5
"""Finished runs per method and task whose time is read."""

SEARCH_SECONDS = 3.0
"""How long finished runs are looked for."""


LONGEST_BLOCK = 10.0
"""How many times as long as the median a block can take by itself: with an evaluation or a long fit."""


class Cost(NamedTuple):
    """What is left to do of a run; nothing if it is done."""

    seconds: float
    disk: float
    """Bytes that it will add to what it has on disk."""
    memory: float
    """Bytes at its end, where it needs most."""
    measured: bool = False
    """Whether the time comes from finished runs."""


Kind = tuple[str, str, int]
"""Environment, method and threads: what a run's speed depends on, beside the machine."""


def costs(runs: Sequence[PlannedRun], out: Path) -> list[Cost]:
    """Return what is left to do of each run.

    Args:
        out: Finished runs are looked for there and in the directory `runs`.
    """
    return _costs(runs, [state_of(run) for run in runs], out)


def describe_plan(runs: Sequence[PlannedRun], jobs: int, needed: Sequence[Cost] | None = None) -> str:
    """Return a line per run, with its time and disk, then what all of them need, and some workers at a time.

    Args:
        jobs: Workers.
        needed: The costs, if they are known already.
    """
    if not runs:
        return "no runs"
    out = runs[0].path.parents[2]
    states = [state_of(run) for run in runs]
    needed = _costs(runs, states, out) if needed is None else needed
    names = [str(run.path.relative_to(out)) if run.path.is_relative_to(out) else str(run.path) for run in runs]
    width = max(map(len, names))
    lines = [
        f"{name:{width}s}  {state:10s}  {duration(cost.seconds):>12s}  {_bytes(cost.disk):>9s}"
        if state != "done"
        else f"{name:{width}s}  {state}"
        for name, state, cost in zip(names, states, needed, strict=True)
    ]
    counts = ", ".join(f"{number} {state}" for state, number in Counter(states).items())
    disk, left = sum(cost.disk for cost in needed), [cost for cost in needed if cost.seconds > 0]
    memory = sum(_largest_memory(left, jobs))
    seconds = sum((cost.seconds for cost in left), 0.0)
    workers = "1 worker needs" if jobs == 1 else f"{jobs} workers need"
    return "\n".join(
        [
            *lines,
            f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} ({counts}): {duration(seconds)} in all, "
            f"{_bytes(disk)} of disk{_only(_free_disk(out), disk)}",
            f"{workers} about {duration(_until_done(left, jobs))} and {_bytes(memory)} of memory"
            f"{_only(available_memory(), memory)}",
            f"times: {_source(left)}",
        ]
    )


def require_disk(runs: Sequence[PlannedRun], needed: Sequence[Cost], out: Path) -> None:
    """Raise if there is less disk than all runs will need."""
    total, free = sum(cost.disk for cost in needed), _free_disk(out)
    if total > free:
        raise UserError(
            f"out = '{out}': its {len(runs)} runs need about {_bytes(total)} of disk, {_bytes(free)} are free; "
            "choose another directory or fewer runs"
        )


def jobs_in_memory(needed: Sequence[Cost], jobs: int) -> int:
    """Return how many runs at a time surely fit into the free memory: at most `jobs`, at least one."""
    free, largest = available_memory(), _largest_memory(needed, jobs)
    if free is None or sum(largest) <= free:
        return jobs
    return max(sum(total <= free for total in accumulate(largest)), 1)


def require_memory(needed: Sequence[Cost], jobs: int) -> None:
    """Raise if some runs may need more memory at a time than is free; a run that needs it alone is refused itself."""
    fitting = jobs_in_memory(needed, jobs)
    if fitting < jobs:
        memory, free = sum(_largest_memory(needed, jobs)), available_memory() or 0.0
        raise UserError(
            f"jobs = {jobs}: so many runs need up to {_bytes(memory)} of memory at a time, {_bytes(free)} are free; "
            f"--jobs {fitting} fits"
        )


def _largest_memory(needed: Sequence[Cost], jobs: int) -> list[float]:
    """Return the memory of the runs that need most, as many as run at a time."""
    return heapq.nlargest(jobs, (cost.memory for cost in needed))


def _free_disk(out: Path) -> float:
    place = next(path for path in (out, *out.absolute().parents) if path.is_dir())
    return shutil.disk_usage(place).free


def _only(free: float | None, needed: float) -> str:
    """Say how much there is, where it is too little."""
    return f" (only {_bytes(free)} are free)" if free is not None and free < needed else ""


def _costs(runs: Sequence[PlannedRun], states: Sequence[str], out: Path) -> list[Cost]:
    speeds = _finished_speeds({_kind_of(run) for run in runs}, (out, Path("runs")))
    return [_cost(run, state, speeds.get(_kind_of(run))) for run, state in zip(runs, states, strict=True)]


def _cost(run: PlannedRun, state: str, measured: float | None) -> Cost:
    """Return what is left of a run.

    Args:
        measured: Seconds per FLOP of finished runs.
    """
    if state == "done":
        return Cost(0.0, 0.0, 0.0, measured is not None)
    layout = _layout(env_task(run.settings.learning.env))
    whole = estimate(run.settings, layout)
    flop, disk = whole.flop, _disk(run.settings, layout, whole)
    if state == "unfinished":
        flop -= estimate(change(run.settings, {"steps": _saved_step(run.path)}), layout).flop
        disk -= sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file())
    per_flop = measured if measured is not None else 1.0 / (EFFICIENCY * _peak(run.threads))
    return Cost(max(flop, 0.0) * per_flop, max(disk, 0.0), whole.memory, measured is not None)


def _disk(settings: Settings, layout: Layout, needs: Needs) -> float:
    """Return the bytes that a run leaves: its archives too, but not the checkpoint that is being written."""
    # Without steps and branches, networks and their optimisers are nearly all of a checkpoint.
    networks = estimate(change(settings, {"steps": 1, "rollouts.batch": 1}), layout).checkpoint
    capacity = settings.learning.replay_capacity
    archives = sum(networks + 4.0 * layout.width * min(step, capacity) for step in settings.run.archive_at)
    return needs.disk - needs.checkpoint + archives


def _saved_step(path: Path) -> int:
    """Return the step from which a run will resume."""
    found = [file.stem.removeprefix("step_") for file in saved_checkpoints(path)]
    return max((int(number) for number in found if number.isdecimal()), default=0)


def _layout(task: Task) -> Layout:
    return Layout(task.obs_size, task.action_size)


def _kind_of(run: PlannedRun) -> Kind:
    config = run.settings.learning
    return config.env, config.method, run.threads


def _finished_speeds(kinds: set[Kind], places: Sequence[Path]) -> dict[Kind, float]:
    """Return the seconds per FLOP of finished runs on a machine like this: their median, per kind."""
    found: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    cpu = metadata(1, "")["machine"]["cpu"]
    until = time.monotonic() + SEARCH_SECONDS
    for path in _runs_at(places):
        if time.monotonic() > until or all(len(rates) >= ENOUGH for rates in found.values()):
            break
        if not (path / "DONE").exists() or _recorded_cpu(path) != cpu:
            continue
        try:
            settings, task = read_run(path)
        except UserError:  # of another version
            continue
        kind = (settings.learning.env, settings.learning.method, recorded_threads(path) or 0)
        if kind in found and len(found[kind]) < ENOUGH:
            found[kind] += _per_flop(path, settings, task)
    return {kind: median(rates) for kind, rates in found.items() if rates}


def _recorded_cpu(path: Path) -> str | None:
    machine = read_metadata(path).get("machine")
    return machine.get("cpu") if isinstance(machine, dict) else None


def _per_flop(path: Path, settings: Settings, task: Task) -> list[float]:
    """Return the seconds per FLOP of a finished run, if its files tell."""
    table = read_table(path / "timing.csv", ("step", "seconds"), [])
    if not len(table.get("seconds", ())):
        return []
    flop = estimate(change(settings, {"steps": int(table["step"][-1])}), _layout(task)).flop
    blocks = np.diff(table["seconds"], prepend=0.0)
    seconds = float(np.minimum(blocks, LONGEST_BLOCK * np.median(blocks)).sum())  # a process may have been suspended
    return [seconds / flop] if flop > 0 and seconds > 0 else []


def _runs_at(places: Sequence[Path]) -> Iterator[Path]:
    """Return the runs at or below some directories, each once; nothing inside a run is looked at."""
    seen: set[Path] = set()
    for place in places:
        for folder, inner, names in os.walk(place):
            if "config.json" in names:
                inner.clear()
                path = Path(folder).resolve()
                if path not in seen:
                    seen.add(path)
                    yield path


@cache
def _peak(threads: int) -> float:
    """Return this machine's matmul peak with a number of threads, which a process of its own sets at its start."""
    # Products of a few milliseconds: some of them run undisturbed, also while other processes compute.
    code = "from pdml.runs.device import available_threads, matmul_peak, prepare\n"
    code += f"prepare(min({threads}, available_threads())); print(matmul_peak(size=512, repeats=60, of_cpu=True))"
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    words, env = [sys.executable, "-c", code], {**os.environ, **limits, "JAX_TRACEBACK_FILTERING": "off"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"the speed of this machine could not be measured: {why}")
    return float(done.stdout)


def _until_done(needed: Sequence[Cost], jobs: int) -> float:
    """Return the seconds until the last run ends, if each worker takes the next run in order."""
    ends = [0.0] * jobs
    for cost in needed:
        heapq.heapreplace(ends, ends[0] + cost.seconds)
    return max(ends)


def _source(needed: Sequence[Cost]) -> str:
    """Say where the times come from."""
    measured = sum(cost.measured for cost in needed)
    if measured == len(needed):
        return "from finished runs of the same method and task"
    estimated = "from the matmul speed of this machine when it is idle, without the environment's own time"
    if not measured:
        return f"{estimated}; finished runs of the same method and task make them better"
    return f"of {measured} runs from finished runs of the same method and task, of the others {estimated}"


def _bytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{max(1, round(number / 1e6))} MB"
