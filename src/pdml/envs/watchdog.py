"""A thread that ends the process when an environment hangs: nothing else can, since the call never returns."""

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_deadlines: dict[int, tuple[float, str]] = {}
"""By thread: when its call must have returned, and the message if it has not."""
_error_file: Path | None = None
_thread: threading.Thread | None = None


def watch(error_file: Path | None) -> None:
    """Set the file that the reason is written to; None: no file."""
    global _error_file
    _error_file = error_file


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
    try:
        if _error_file is not None:
            _error_file.write_text(message + "\n")
    finally:
        said = message if _error_file is None else f"the run failed ({message}); the last checkpoint stands"
        print(f"pdml: {said}", file=sys.stderr, flush=True)
        os._exit(1)
