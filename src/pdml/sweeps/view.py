"""What a person sees of a sweep: a live table on a terminal, a line per change elsewhere."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live

from pdml.sweeps.plan import PlannedRun
from pdml.sweeps.status import RunStatus, runs_below, status_counts, status_lines, status_of, status_table
from pdml.sweeps.worker import Outcome

EVERY = 2.0
"""Seconds between two looks at the files of running runs."""

OTHER_COLUMNS = 65
"""Characters that the columns beside the path and the note take."""

ALIVE = ("running", "silent")


class SweepView:
    """Shows runs as they start and end. Use it as a context; `changed` is called at every start and end.

    Nothing is shown before the first change, so that an early error is the only output.
    """

    def __init__(self, title: str, runs: Sequence[PlannedRun], done: Sequence[PlannedRun], out: Path):
        """Know the runs to do, and those that are done already."""
        self._title, self._out, self._total = title, out, len(runs) + len(done)
        self._rows = {run.path: _waiting(run.path) for run in runs}
        self._rows |= {run.path: _waiting(run.path)._replace(state="done") for run in done}
        self._live: Live | None = None
        self._begun = False

    def __enter__(self) -> "SweepView":
        """Begin; nothing is drawn yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last table on the screen."""
        if self._live is not None:
            self._live.stop()

    def _begin(self) -> None:
        self._begun = True
        print(self._title, flush=True)
        if sys.stdout.isatty():
            self._live = Live(
                get_renderable=self._table, console=Console(), refresh_per_second=1 / EVERY, vertical_overflow="crop"
            )
            self._live.start()

    def changed(self, run: PlannedRun, outcome: Outcome | None) -> None:
        """Take note of a start, or of an end with its outcome."""
        if not self._begun:
            self._begin()
        row = status_of(run.path)
        if outcome is None:
            row = row._replace(state="running", note="")
        else:
            row = row._replace(state=outcome.state, note=outcome.reason, seconds_left=None)
        self._rows[run.path] = row
        if self._live is None:
            ended = sum(row.state not in ("waiting", "running") for row in self._rows.values())
            print(f"{time.strftime('%H:%M:%S')}  {ended} of {self._total}  {self._line(row, outcome)}", flush=True)

    def failures(self) -> list[RunStatus]:
        """Return the runs that have failed so far."""
        return [row for row in self._rows.values() if row.state == "failed"]

    def _line(self, row: RunStatus, outcome: Outcome | None) -> str:
        """Return one line about a run."""
        name = row.path.relative_to(self._out) if row.path.is_relative_to(self._out) else row.path
        if outcome is None:
            return f"started  {name}"
        last = "" if row.last_return is None else f"  return {row.last_return:,.1f}"
        return f"{row.state:8s} {name}" + (f": {row.note}" if row.note else last)

    def _table(self) -> RenderableType:
        """Look at the runs that are running, and return the table."""
        for path, row in tuple(self._rows.items()):
            if row.state in ALIVE:
                found = status_of(path)
                if self._rows[path].state in ALIVE:  # it has not ended meanwhile
                    self._rows[path] = found if found.state in ALIVE else found._replace(state="running", note="")
        return _screenful(tuple(self._rows.values()), self._out)


def _screenful(rows: Sequence[RunStatus], base: Path) -> RenderableType:
    """Return the table of runs, the interesting ones first, as far as the screen goes."""
    order = (*ALIVE, "failed", "stopped", "done", "waiting")
    screen = Console().size
    shown = sorted(rows, key=lambda row: order.index(row.state))[: max(screen.height - 4, 5)]
    table = status_table(shown, base, max(min(screen.width - OTHER_COLUMNS, screen.width // 2), 16))
    table.caption = status_counts(rows)
    return table


def _waiting(path: Path) -> RunStatus:
    return RunStatus(path, "waiting", 0, None, None, None, None, "")


def watch_runs(path: Path, seconds: float = EVERY) -> None:
    """Show how the runs below a directory stand until all are done or have failed, or until Ctrl-C."""
    console = Console()
    rows = [status_of(run) for run in runs_below([path])]
    with suppress(KeyboardInterrupt):
        if not sys.stdout.isatty():
            _print_until_ended(path, rows, 5 * seconds)
            return
        with Live(_screenful(rows, path), console=console, auto_refresh=False) as live:
            while not all(row.ended for row in rows):
                time.sleep(seconds)
                rows = [status_of(run) for run in runs_below([path])]
                live.update(_screenful(rows, path), refresh=True)


def _print_until_ended(path: Path, rows: Sequence[RunStatus], seconds: float) -> None:
    """Print the table whenever it has changed."""
    printed: list[str] = []
    while True:
        lines = status_lines(rows, path)
        if lines != printed:
            print("\n".join(lines), flush=True)
            printed = lines
        if all(row.ended for row in rows):
            return
        time.sleep(seconds)
        rows = [status_of(run) for run in runs_below([path])]
