"""Wall-clock time, per phase and in words. Kept apart from everything that must be the same in every run of a seed."""

import resource
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


def peak_memory_mb() -> float:
    """Return the peak memory of this process."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1e6 if sys.platform == "darwin" else 1e3)


def duration(seconds: float) -> str:
    """Write a time in the units that matter."""
    minutes = round(seconds / 60)
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"


PHASES = ("collect", "weigh", "fit", "imagine", "refine", "improve", "evaluate", "diagnose", "save")


class Stopwatch:
    """Adds up the seconds spent in each phase, on a monotonic clock."""

    def __init__(self, total: float = 0.0, seconds: dict[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0) | (seconds or {})
        self._start = time.monotonic() - total
        self.entered: Callable[[str], None] = lambda phase: None
        """Called when a phase begins."""

    @contextmanager
    def __call__(self, phase: str) -> Generator[None, None, None]:
        """Count the time spent inside."""
        self.entered(phase)
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - start

    def total(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._start
