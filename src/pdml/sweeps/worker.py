"""One run as a process of its own. A scheduler, local or on a cluster, only has to call `work`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from pdml.core.errors import BUSY_EXIT, UserError
from pdml.runs.lease import lease_seconds
from pdml.sweeps.status import SWEEP_NOTE, last_line, lease_sign

OUTPUT = "output.txt"
"""What a run that a worker started has printed."""

COMMAND = (sys.executable, "-m", "pdml")

POLL = 0.05
"""Seconds between two looks at a process."""

RETRIES = 3
"""How often a run that was killed is started again without a new checkpoint in between."""

REFUSED = 2
"""Exit code of a command that was a mistake."""

STOPPED = 128 + signal.SIGTERM
"""Exit code of a run that stopped because it was asked to."""

STOP_CODES = (128 + signal.SIGINT, STOPPED)
"""Exit codes of a run that stopped; a person may have sent it Ctrl-C."""


class Outcome(NamedTuple):
    """How a run ended."""

    code: int
    """Exit code of its command; negative: the signal that killed it."""
    reason: str
    """Why it did not finish, in one line; empty if it is done."""

    @property
    def state(self) -> str:
        """done, stopped or failed."""
        return "done" if self.code == 0 else "stopped" if self.code in STOP_CODES else "failed"


class Work(Protocol):
    """Does one run; `work` is the real one."""

    def __call__(self, words: Sequence[str], path: Path, stop: threading.Event | None = None) -> Outcome:
        """Run a command until it has ended for good."""
        ...


_children: set["subprocess.Popen[bytes]"] = set()


def work(words: Sequence[str], path: Path, stop: threading.Event | None = None) -> Outcome:
    """Run a command until it has ended for good.

    The process ends with this one: it reads the end of its standard input when this process dies, however it dies.
    Where another process runs the same directory, wait until that one has ended, and then start again, which does
    nothing if the run is done. A killed run is started again, as long as it makes progress.

    Args:
        words: A `pdml train` command that may be repeated: `("train", ..., "--run-dir", path, "--resume")`.
        path: The run's directory; what the command prints is appended to output.txt there.
        stop: Once set, the run stops; it saves first unless it is in the middle of a fit or of an update phase.
    """
    stop = threading.Event() if stop is None else stop
    kills, saved = 0, _newest_checkpoint(path)
    while True:
        is_new = not (path / "config.json").exists()
        outcome = _run_once(words, path, stop)
        if outcome.code == BUSY_EXIT:
            _wait_until_free(path, stop)
        elif outcome.code == REFUSED and is_new and (path / "config.json").exists():
            pass  # another process has begun the same run at the same moment
        elif outcome.code >= 0:
            return outcome
        elif not stop.is_set():
            before, saved = saved, _newest_checkpoint(path)
            kills = kills + 1 if saved == before else 1
            if kills > RETRIES:
                return outcome
        if stop.is_set():
            return Outcome(STOPPED, "killed before it had saved" if outcome.code == -signal.SIGKILL else "stopped")


def attempt(work: Work, words: Sequence[str], path: Path, stop: threading.Event) -> Outcome:
    """Do one run and leave its outcome for `pdml status`; if the worker raises, as on a full disk, the run failed."""
    try:
        outcome = work(words, path, stop)
    except Exception as error:
        outcome = Outcome(1, " ".join(f"{type(error).__name__}: {error}".split()))
    note_outcome(path, outcome)
    return outcome


def end_children() -> None:
    """End every process that `work` has started in this process, at once."""
    for child in tuple(_children):
        if child.poll() is None:
            _kill_group(child)


def mark_planned(paths: Sequence[Path]) -> None:
    """Create the directories of planned runs with an empty note, so that `pdml status` knows of them."""
    for i, path in enumerate(paths):
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / SWEEP_NOTE).write_text("")
        except OSError as error:
            unmark_planned(paths[: i + 1])
            raise UserError(f"run-dir = '{path}': cannot be written ({error.strerror})") from None


def unmark_planned(paths: Sequence[Path]) -> None:
    """Remove the notes of planned runs that have not begun, and their directories if nothing else is there."""
    for path in paths:
        with suppress(OSError):
            if not (path / "config.json").exists() and not (path / SWEEP_NOTE).read_text():
                (path / SWEEP_NOTE).unlink()
                path.rmdir()


def note_outcome(path: Path, outcome: Outcome) -> None:
    """Write why a run failed where `pdml status` reads it; other runs need no note any more."""
    if outcome.state == "stopped":
        unmark_planned([path])
    with suppress(OSError):
        if outcome.state == "failed":
            (path / SWEEP_NOTE).write_text(f"{outcome.reason}\n")
        elif outcome.state == "done":
            (path / SWEEP_NOTE).unlink()


def _open_output(path: Path) -> BinaryIO:
    """Mark a run as taken up, and open its output."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another sweep stops just now and removes the empty directory
            (path / SWEEP_NOTE).write_text("")
            return (path / OUTPUT).open("ab")


def _run_once(words: Sequence[str], path: Path, stop: threading.Event) -> Outcome:
    """Start the command once and wait for its end."""
    command = [*COMMAND, *words, "--stop-with-stdin"]
    with _open_output(path) as output:
        start = output.tell()
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(words),
        )
    _children.add(child)
    try:
        while child.poll() is None and not stop.wait(POLL):
            pass
        if child.poll() is None:
            child.terminate()
        code = child.wait()
        if code < 0:  # it could not end what it had started itself
            _kill_group(child)
    finally:
        _children.discard(child)
        if child.stdin is not None:
            child.stdin.close()
    return Outcome(code, _reason(code, path / OUTPUT, start))


def _environment(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of a run's process; NumPy may be imported there before the command sets its threads."""
    threads = words[words.index("--threads") + 1 :][:1] if "--threads" in words else ()
    limits = {name: number for number in threads for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**limits, **os.environ}


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and every process that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _reason(code: int, output: Path, start: int) -> str:
    """Say in one line why a command did not succeed."""
    if code == 0:
        return ""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    said = last_line(output, start).removeprefix("pdml: ")
    for more in ("; see ", "; resume with: "):  # which name the run's own directory
        said = said.partition(more)[0]
    return said or f"exit code {code}, and no output"


def _wait_until_free(path: Path, stop: threading.Event) -> None:
    """Wait until another process has finished or left a run, or has given no sign of life for the length of a lease."""
    sign, since = lease_sign(path), time.monotonic()
    while not stop.wait(1.0) and not (path / "DONE").exists():
        now = lease_sign(path)
        if now is None or (now == sign and time.monotonic() - since > lease_seconds()):
            return
        if now != sign:
            sign, since = now, time.monotonic()


def _newest_checkpoint(path: Path) -> str:
    return max((file.name for file in (path / "checkpoints").glob("step_*.safetensors")), default="")
