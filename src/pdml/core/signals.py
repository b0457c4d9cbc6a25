"""Ctrl-C and SIGTERM: a flag that is read where the state is whole, so that nothing learned is lost.

A signal between a dispatch and its assignment would lose donated arrays; so handlers only set the flag. It is read
after every real step, where the whole state is saved, and inside long work on a block (fits, adaptation, lessons) and
long evaluations, where that is abandoned and the last checkpoint stands.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """The run was asked to stop; `number` says by which signal."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_asked: list[tuple[int, float]] = []


@contextmanager
def listening() -> Iterator[None]:
    """Take Ctrl-C and SIGTERM as requests meanwhile; a second one ends the process at once."""
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


def asked() -> bool:
    """Say whether the run was asked to stop."""
    return bool(_asked)


def check(patience: float = 0.0) -> None:
    """Stop if that was asked for, and so many seconds ago."""
    if _asked and time.monotonic() - _asked[0][1] >= patience:
        raise Stopped(_asked[0][0])
