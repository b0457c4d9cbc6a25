"""Many runs on this machine: a queue, and a thread per job that starts one process after the other."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from pdml.core.signals import Stopped
from pdml.sweeps import worker
from pdml.sweeps.plan import PlannedRun
from pdml.sweeps.status import status_of
from pdml.sweeps.stop_requests import join_all, stop_requests
from pdml.sweeps.worker import Outcome, Work

Changed = Callable[[PlannedRun, Outcome | None], None]
"""Called when a run starts, with None, and when it has ended, with its outcome; from one thread at a time."""


def run_local(
    runs: Sequence[PlannedRun], jobs: int, changed: Changed, work: Work = worker.work
) -> list[tuple[PlannedRun, Outcome]]:
    """Do all runs, `jobs` at a time, in their order; return how each ended.

    A run that another process is running goes to the end of the queue, so that two sweeps of the same directory share
    the work. The first Ctrl-C, SIGTERM or SIGHUP makes every run stop; the second ends their processes. Planned runs
    that have not begun by then leave nothing behind.

    Raises:
        Stopped: After all processes have ended, if there was such a signal.
    """
    pool = _Pool(runs, changed, work)
    worker.mark_planned([run.path for run in runs])
    threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(min(jobs, len(runs)))]
    with stop_requests(pool.stop, worker.end_children) as received:
        for thread in threads:
            thread.start()
        join_all(threads)
    if pool.stop.is_set():
        worker.unmark_planned([run.path for run in runs])
    if pool.errors:
        raise pool.errors[0]
    if received:
        raise Stopped(received[0])
    return pool.ended


class _Pool:
    """What the threads share."""

    def __init__(self, runs: Sequence[PlannedRun], changed: Changed, work: Work):
        self._waiting, self._changed, self._work = deque(runs), changed, work
        self._put_off: set[Path] = set()
        self._one_at_a_time = threading.Lock()
        self.stop = threading.Event()
        self.ended: list[tuple[PlannedRun, Outcome]] = []
        self.errors: list[BaseException] = []

    def serve(self) -> None:
        """Take one run after the other, until none is left."""
        try:
            while not self.stop.is_set() and self._waiting:
                try:
                    run = self._waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                if run.path not in self._put_off and status_of(run.path).state == "running":
                    self._put_off.add(run.path)
                    self._waiting.append(run)
                else:
                    self._do(run)
        except BaseException as error:  # the view failed: stop
            self.errors.append(error)
            self.stop.set()

    def _do(self, run: PlannedRun) -> None:
        with self._one_at_a_time:
            self._changed(run, None)
        outcome = worker.attempt(self._work, run.words, run.path, self.stop)
        with self._one_at_a_time:
            self.ended.append((run, outcome))
            self._changed(run, outcome)
