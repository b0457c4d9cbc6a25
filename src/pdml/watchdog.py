"""A thread that ends the process when an environment hangs: nothing else can, since the call never comes back."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_deadline: tuple[float, str] | None = None
_error_file: Path | None = None
_thread: threading.Thread | None = None


def watch(error_file: Path | None) -> None:
    """Say where the reason is to be written, from now on."""
    global _error_file
    _error_file = error_file


@contextmanager
def limit(seconds: float, message: str) -> Iterator[None]:
    """End the process with a message if what is inside takes longer; 0: any time."""
    global _deadline
    if seconds <= 0:
        yield
        return
    _start()
    outer, _deadline = _deadline, (time.monotonic() + seconds, message)
    try:
        yield
    finally:
        _deadline = outer


def _start() -> None:
    global _thread
    if _thread is None or not _thread.is_alive():
        _thread = threading.Thread(target=_wait, name="pdml-watchdog", daemon=True)
        _thread.start()


def _wait() -> None:
    while True:
        found = _deadline
        if found is not None and time.monotonic() > found[0]:
            _end(found[1])
        time.sleep(0.1)


def _end(message: str) -> None:
    """Write why, and end: the last checkpoint stands."""
    try:
        if _error_file is not None:
            _error_file.write_text(message + "\n")
    finally:
        said = message if _error_file is None else f"the run failed ({message}); the last checkpoint stands"
        print(f"pdml: {said}", file=sys.stderr, flush=True)
        os._exit(1)
