"""The status of runs, from their files alone, even while another process or another machine writes them."""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from pdml.core.stopwatch import duration

SILENT = 180.0
"""Seconds without a sign of life after which a run may be dead."""

TAIL = 16_384
"""Bytes at the end of a csv file that are read: dozens of blocks, and several evaluations."""

WINDOW = 20
"""Blocks over which the speed is averaged: evaluations and fits are spread over them."""

SWEEP_NOTE = "sweep_note.txt"
"""Marks a run that a sweep has planned; empty unless the sweep gave the run up, then it says why."""

COLORS = {"running": "cyan", "done": "green", "failed": "red", "silent": "yellow", "stopped": "yellow"}


class RunStatus(NamedTuple):
    """How a run stands."""

    path: Path
    state: str
    """waiting, running, silent, done, failed or stopped."""
    step: int
    """The last real step that a file tells of."""
    steps: int | None
    """Real steps that it is meant to have, if that is known yet."""
    last_return: float | None
    """Mean of its last evaluation."""
    rate: float | None
    """Real steps per second, lately."""
    seconds_left: float | None
    note: str
    """Why it failed, or may be dead."""

    @property
    def ended(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in ("done", "failed")


def runs_below(paths: Iterable[Path]) -> list[Path]:
    """Return every run at or below some directories, and those that a sweep has planned there, in order."""
    found: list[Path] = []
    for path in paths:
        for folder, inner, files in os.walk(path):
            if "config.json" in files or SWEEP_NOTE in files:
                found.append(Path(folder))
                inner.clear()
    return sorted(set(found))


def status_of(path: Path) -> RunStatus:
    """Return how a run stands."""
    steps = _steps_meant(path)
    step = max(_last_checkpoint(path), *(_last_step(path / name) for name in ("progress.csv", "evaluations.csv")))
    state, note = _state(path)
    if state == "stopped" and steps is not None and step >= steps:  # collected results have no DONE
        state = "done"
    rate = _rate(path)
    left = None
    if state == "running" and rate and steps is not None:
        left = max(steps - step, 0) / rate
    return RunStatus(path, state, step, steps, _last_return(path), rate, left, note)


def lease_sign(path: Path) -> tuple[str, int] | None:
    """Return the newest lease of a run and when its owner last gave a sign of life; None if nobody holds the run."""
    newest = _newest_lease(path)
    if newest is None:
        return None
    try:
        held = json.loads(newest[0].read_text())
    except (OSError, ValueError):  # it is being written, or is damaged
        held = {}
    return None if isinstance(held, dict) and held.get("released") else (newest[0].name, newest[1])


def _newest_lease(path: Path) -> tuple[Path, int] | None:
    """Return the file of the newest lease of a run, and when it was last changed."""
    newest = max((path / "lease").glob("*.json"), key=lambda file: file.name, default=None)
    if newest is None:
        return None
    try:
        return newest, newest.stat().st_mtime_ns
    except OSError:  # a newer one has just replaced it
        return newest, time.time_ns()


def last_line(path: Path, start: int = 0) -> str:
    """Return the last line of a text file that is not empty.

    Args:
        start: Bytes at the beginning that do not count.
    """
    lines = [line.strip() for line in _tail(path, start).decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _state(path: Path) -> tuple[str, str]:
    """Return the state of a run, and a note."""
    begun = (path / "config.json").exists()
    if begun and (path / "DONE").exists():
        return "done", ""
    if begun and (path / "error.txt").exists():
        return "failed", last_line(path / "error.txt") or "no reason given"
    if reason := _given_up(path):
        return "failed", reason
    return _by_lease(path) if begun else ("waiting", "")


def _given_up(path: Path) -> str:
    """Return why a sweep gave a run up; nothing if a process has had the run since."""
    reason = last_line(path / SWEEP_NOTE)
    newest = _newest_lease(path) if reason else None
    if newest is None:
        return reason
    try:
        return reason if (path / SWEEP_NOTE).stat().st_mtime_ns >= newest[1] else ""
    except FileNotFoundError:  # the run was done at this moment
        return ""


def _by_lease(path: Path) -> tuple[str, str]:
    """Return the state of a run that is neither done nor failed, and a note."""
    sign = lease_sign(path)
    if sign is None:
        return "stopped", ""
    age = _clock(path) - sign[1] / 1e9
    if age > SILENT:
        return "silent", f"no sign of life for {duration(age)}; it may be dead"
    return "running", ""


def _clock(path: Path) -> float:
    """Return the time by the clock of a directory's file system: on a shared one, heartbeats have its times."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            os.utime(file.fileno())
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # this process may only read there
        return time.time()


def _steps_meant(path: Path) -> int | None:
    try:
        found = json.loads((path / "config.json").read_text())["steps"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) else None


def _tail(path: Path, start: int = 0) -> bytes:
    """Return the end of a file; nothing if there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - TAIL))
            return file.read()
    except OSError:
        return b""


def _last_rows(path: Path, *columns: str) -> list[tuple[float, ...]]:
    """Return columns of the last whole rows of a csv file; nothing if it lacks one of them."""
    try:
        with path.open("rb") as file:
            head = file.readline(TAIL)
    except OSError:
        return []
    names = head.decode(errors="replace").strip().split(",")
    if not set(columns) <= set(names):
        return []
    tail = _tail(path, len(head))
    lines = tail[: tail.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    rows: list[tuple[float, ...]] = []
    for line in lines:
        cells = line.split(",")
        if len(cells) != len(names):  # the first one may be cut
            continue
        try:
            row = dict(zip(names, map(float, cells), strict=True))
        except ValueError:
            continue
        rows.append(tuple(row[column] for column in columns))
    return rows


def _last_step(path: Path) -> int:
    rows = _last_rows(path, "step")
    return int(rows[-1][0]) if rows and math.isfinite(rows[-1][0]) else 0


def _last_checkpoint(path: Path) -> int:
    """Return the step of the newest checkpoint: during the warm-up nothing else tells the step."""
    found = [file.stem.removeprefix("step_") for file in (path / "checkpoints").glob("step_*.safetensors")]
    return max((int(number) for number in found if number.isdecimal()), default=0)


def _last_return(path: Path) -> float | None:
    rows = _last_rows(path / "evaluations.csv", "step", "return")
    last = [value for step, value in rows if step == rows[-1][0]]
    return sum(last) / len(last) if last else None


def _rate(path: Path) -> float | None:
    rows = _last_rows(path / "timing.csv", "step", "seconds", "steps_per_second")[-WINDOW:]
    if not rows:
        return None
    steps, seconds = rows[-1][0] - rows[0][0], rows[-1][1] - rows[0][1]
    return steps / seconds if steps > 0 and seconds > 0 else rows[-1][2]


HEAD = ("run", "state", "step", "last return", "steps/s", "time left", "")


def status_cells(row: RunStatus, base: Path | None = None) -> tuple[str, ...]:
    """Return how a run stands as texts, one for each of `HEAD`.

    Args:
        base: Directory that paths are shown relative to.
    """
    shown = row.path.relative_to(base) if base is not None and row.path.is_relative_to(base) else row.path
    begun = row.state != "waiting"
    meant = "-" if row.steps is None else f"{row.step:,} of {row.steps:,}"
    return (
        str(shown),
        row.state,
        meant if begun else "-",
        "-" if row.last_return is None else f"{row.last_return:,.1f}",
        "-" if row.rate is None else f"{row.rate:.1f}",
        "-" if row.seconds_left is None else duration(row.seconds_left),
        row.note,
    )


def status_table(rows: Sequence[RunStatus], base: Path | None = None, width: int | None = None) -> Table:
    """Return the table that is shown on a terminal.

    Args:
        base: Directory that paths are shown relative to.
        width: Characters of a path that are shown, its last ones; then every run takes one line.
    """
    table = Table(box=None, pad_edge=False, caption=status_counts(rows), caption_justify="left")
    cells = [[Text(cell) for cell in status_cells(row, base)] for row in rows]
    if width is not None:
        for line in cells:
            line[0] = line[0] if len(line[0]) <= width else Text(f"…{line[0].plain[1 - width :]}")
    least = max((len(line[0]) for line in cells), default=0) if width is not None else None
    for name in HEAD:
        aligned = "right" if name in HEAD[2:6] else "left"
        table.add_column(name, justify=aligned, overflow="ellipsis" if width else "fold", no_wrap=width is not None)
    table.columns[0].min_width = least
    for row, line in zip(rows, cells, strict=True):
        line[1].stylize(COLORS.get(row.state, ""))
        table.add_row(*line)
    return table


def status_lines(rows: Sequence[RunStatus], base: Path | None = None) -> list[str]:
    """Return the same as plain lines."""
    cells = [HEAD, *(status_cells(row, base) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [*lines, status_counts(rows)]


def status_counts(rows: Sequence[RunStatus]) -> str:
    """Say how many runs there are of each state."""
    order = ("done", "running", "waiting", "stopped", "silent", "failed")
    counts = {state: sum(row.state == state for row in rows) for state in order}
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    return f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}: {', '.join(parts)}"
