"""Throughput of several pinned runs at a time over one run with as many threads: what a sweep gains.

Each run is a process of its own that goes through the training loop on Hopper. All begin at the same moment. A phase's
time is the best of several: on a shared machine the best is what repeats.
"""

import subprocess
import sys
from contextlib import suppress
from typing import Any

from pdml.core.errors import RunError
from pdml.runs.device import device_name, prepare

COMMAND = (sys.executable, "-m", "pdml.studies.bench_jobs")

ROWS = 5000
"""Real transitions that each run has."""

READY = "ready on "
"""What a run says, before its device, when all is compiled."""

ENDED = "a run of the benchmark ended early"


def measure_jobs(method: str, jobs: int, rows: int = ROWS, repeats: int = 3) -> dict[str, Any]:
    """Measure the real steps per second of one run with `jobs` threads, then of `jobs` runs with one thread each."""
    device, together = _throughput(method, 1, jobs, rows, repeats)
    _, pinned = _throughput(method, jobs, 1, rows, repeats)
    return {
        "device": device,
        "method": method,
        "jobs": jobs,
        "real_rows": rows,
        "one_run_steps_per_second": round(together[0], 3),
        "pinned_steps_per_second": [round(rate, 3) for rate in pinned],
        "ratio": round(sum(pinned) / together[0], 3),
    }


def jobs_table(result: dict[str, Any]) -> str:
    """Format the throughput of pinned runs."""
    jobs, rates = result["jobs"], result["pinned_steps_per_second"]
    each = " + ".join(f"{rate:.2f}" for rate in rates)
    return "\n".join(
        [
            f"device {result['device']}",
            f"real steps per second of {result['method']} on Hopper with {result['real_rows']} real rows",
            f"one run, {jobs} threads        {result['one_run_steps_per_second']:8.2f}",
            f"{jobs} runs, 1 thread each      {sum(rates):8.2f}  ({each})",
            f"{jobs} pinned runs do {result['ratio']:.2f} times as much as one run with {jobs} threads",
        ]
    )


def _throughput(method: str, processes: int, threads: int, rows: int, repeats: int) -> tuple[str, list[float]]:
    """Return the device, and the real steps per second of each of some runs at a time."""
    command = [*COMMAND, method, str(threads), str(rows), str(repeats)]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    try:
        devices = [_said(run).removeprefix(READY) for run in runs]
        if not all(devices):
            raise RunError(ENDED)
        for run in runs:
            assert run.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, which is found below
                run.stdin.write("go\n")
                run.stdin.flush()
        said = [_said(run) for run in runs]
        if not all(said):
            raise RunError(ENDED)
        return devices[0], [1e3 / float(text) for text in said]
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def _said(run: "subprocess.Popen[str]") -> str:
    assert run.stdout is not None
    return run.stdout.readline().strip()


def serve(method: str, threads: int, rows: int, repeats: int) -> None:
    """Be one of the runs: say when all is compiled, wait for the start, then print the milliseconds of a real step."""
    prepare(threads)

    from pdml.studies.benchmark import step_times

    go = step_times(method, rows)
    go()
    print(f"{READY}{device_name()}", flush=True)
    if sys.stdin.readline():  # else whoever measures has gone
        times = [go() for _ in range(repeats)]
        print(sum(min(each[phase] for each in times) for phase in times[0]), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:]))
