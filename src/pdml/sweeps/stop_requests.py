"""Signals that ask a command with many runs to stop."""

import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_requests(stop: threading.Event, end: Callable[[], None]) -> Generator[list[int], None, None]:
    """Set the event at the first Ctrl-C, SIGTERM or SIGHUP, call `end` at later ones; yield the signals received."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()
        if len(received) > 1:
            end()

    kept = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    for number, handler in kept.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handle)
    try:
        yield received
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def join_all(threads: Sequence[threading.Thread]) -> None:
    """Wait for the end of all threads, and handle signals all the time."""
    for thread in threads:
        while thread.is_alive():
            thread.join(1.0)  # a signal that comes just before the wait is handled after it
