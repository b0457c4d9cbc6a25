"""A thread that ends the process when an environment hangs: nothing else can, since the call never returns."""

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from pdml.core.errors import BUSY_EXIT, LostRunError

_deadlines: dict[int, tuple[float, str]] = {}
"""By thread: when its call must have returned, and the message if it has not."""
_note: Callable[[str], None] | None = None
"""Writes down why the process ends."""
_thread: threading.Thread | None = None


def watch(note: Callable[[str], None] | None) -> None:
    """Set what writes down the reason; None: nothing does."""
    global _note
    _note = note


@contextmanager
def limit(seconds: float, message: str) -> Generator[None, None, None]:
    """End the process with a message if the body takes longer; 0: no limit."""
    if seconds <= 0:
        yield
        return
    _start()
    _deadlines[threading.get_ident()] = (time.monotonic() + seconds, message)
    try:
        yield
    finally:
        del _deadlines[threading.get_ident()]


def _start() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_wait, name="pdml-watchdog", daemon=True)
        _thread.start()


def _wait() -> None:
    while True:
        for deadline, message in list(_deadlines.values()):
            if time.monotonic() > deadline:
                _end(message)
        time.sleep(0.1)


def _end(message: str) -> None:
    """Write the reason and end the process; the run can be resumed from its last checkpoint."""
    code, said = 1, message if _note is None else f"the run failed ({message}); the last checkpoint stands"
    try:
        if _note is not None:
            _note(message + "\n")
    except LostRunError as error:
        code, said = BUSY_EXIT, str(error)
    finally:
        print(f"pdml: {said}", file=sys.stderr, flush=True)
        os._exit(code)
