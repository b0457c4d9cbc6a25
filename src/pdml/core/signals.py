"""Ctrl-C and SIGTERM set a flag that is read where the state is consistent, so that nothing learned is lost.

A signal between a dispatch and its assignment would lose donated arrays, so handlers only set the flag. After a real
step, the flag saves the run and stops it. Inside long work (fits, adaptation, update phases, evaluations) it abandons
that work, and the last checkpoint remains. The end of an input can ask for the same.
"""

import os
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """The run was asked to stop; `number` says by which signal."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_asked: list[tuple[int, float]] = []


@contextmanager
def listening() -> Generator[None, None, None]:
    """Treat Ctrl-C and SIGTERM as requests to stop; a second one ends the process at once."""
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return
    before = {number: signal.signal(number, _ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _asked.clear()


def _ask(number: int, frame: FrameType | None) -> None:
    _asked.append((number, time.monotonic()))
    signal.signal(number, signal.SIG_DFL)


def stop_at_end_of(handle: int, patience: float = 60.0) -> None:
    """Treat the end of an input as SIGTERM; a process that has not ended so many seconds later is ended hard.

    A scheduler holds the other end. It is closed when the scheduler ends, however it ends.
    """

    def wait() -> None:
        try:
            while os.read(handle, 4096):
                pass
        except OSError:  # it was never open
            pass
        _asked.append((signal.SIGTERM, time.monotonic()))
        time.sleep(patience)
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=wait, name="pdml-stdin", daemon=True).start()


def asked() -> bool:
    """Say whether the run was asked to stop."""
    return bool(_asked)


def stop_if_asked(patience: float = 0.0) -> None:
    """Raise if the run was asked to stop at least so many seconds ago."""
    if _asked and time.monotonic() - _asked[0][1] >= patience:
        raise Stopped(_asked[0][0])
