"""The lease of a run: which process may write to its directory, also where several machines share it.

`lease/` holds numbered files; the highest number owns the run. Its file says who that is, and its time of change is the
heartbeat. Beside it the owner has a staging folder of the same number. All it writes begins there and is renamed to its
place, and all it removes is renamed into it. Whoever takes the run over removes that folder first, so that a process
that was frozen and wakes up later can no longer rename anything: the file system decides, not a check before the write.
Rows are the exception: they are appended to a file that was opened before `Lease.check`, and a resumed run has copies
of these files, so that a late row goes to a file that nobody sees (`pdml.runs.directory.renew_files`).
"""

import fcntl
import json
import os
import shutil
import socket
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pdml.core.errors import BusyError, LostRunError, RunError, UserError
from pdml.core.files import replaced

LEASE = 60.0
"""Seconds without a heartbeat after which another process may take a run over."""
BEATS = 6
"""Heartbeats in that time."""


class Lease:
    """Keeps other processes away from a run until it is freed, its process ends, or its heartbeat stops for long."""

    def __init__(self, run: Path):
        """Take a run; raise BusyError if another process has it."""
        self.run, self._folder = run, run / "lease"
        seconds = lease_seconds()
        try:
            self._folder.mkdir(exist_ok=True)
            handle, facts = self._take(seconds)
        except OSError as error:
            raise UserError(f"run-dir = '{run}': cannot be written ({error.strerror})") from None
        stop = threading.Event()
        self._end = weakref.finalize(self, _release, handle, facts, stop, self._staging)
        beating = (os.dup(handle), stop, seconds / BEATS)
        threading.Thread(target=_beat, args=beating, name="pdml-lease", daemon=True).start()

    def check(self) -> None:
        """Raise if another process has taken the run over."""
        lost = LostRunError(f"run-dir = '{self.run}': another process has taken the run over; nothing more was written")
        try:
            if max(self._numbers(), default=0) > self.number:
                raise lost
            os.utime(self._staging)  # unlike a look at it, this is never answered from a network client's cache
        except OSError:
            if self._folder.is_dir():
                raise lost from None
            raise RunError(f"run-dir = '{self.run}': its folder lease is gone") from None

    @contextmanager
    def replaced(self, path: Path) -> Generator[Path, None, None]:
        """Yield where to write a file of the run; it gets its name when it is complete, if the run is still ours."""
        partial = self._staging / ("-".join(path.relative_to(self.run).parts) + ".partial")
        with self._fenced(), replaced(path, partial):
            yield partial
            self.check()

    def write_text(self, name: str, text: str) -> None:
        """Replace a small text file of the run; a reader sees the old or the new one."""
        with self.replaced(self.run / name) as partial:
            partial.write_text(text)

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file of the run, or begin it."""
        if not path.exists():
            with self.replaced(path) as partial:
                partial.write_bytes(data)
            return
        with self._fenced(), path.open("r+b") as file:
            self.check()  # after the file is open: who takes the run over later has a copy of it
            file.seek(0, os.SEEK_END)
            file.write(data)

    def remove(self, path: Path) -> None:
        """Remove a file of the run, if it is there and the run is still ours."""
        removed = self._staging / "removed"
        with suppress(FileNotFoundError), self._fenced():
            path.rename(removed)
            removed.unlink()

    def free(self) -> None:
        """Free the run."""
        self._end()

    @contextmanager
    def _fenced(self) -> Generator[None, None, None]:
        """Find out whether what failed did so because the run is no longer ours."""
        try:
            yield
        except OSError:
            self.check()
            raise

    def _take(self, seconds: float) -> tuple[int, dict[str, Any]]:
        """Become the owner; return the open file of the lease, locked, and what it says."""
        draft = self._folder / f"{uuid4().hex}.draft"
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            facts = {**_this_process(), "seconds": seconds, "locked": _locked(handle), "released": None}
            os.pwrite(handle, _text(facts), 0)
            os.fsync(handle)
            os.utime(handle)
            newest = max(self._numbers(), default=0)
            if newest and not _can_be_taken(self._file(newest), os.fstat(handle).st_mtime):
                raise self._busy()
            self.number, self._staging = newest + 1, self._folder / f"{newest + 1:06d}"
            try:
                os.link(draft, self._file(self.number))  # only one process succeeds
            except (FileExistsError, FileNotFoundError):  # the winner removes the drafts of others
                raise self._busy() from None
            self._shut_out_others()
        except BaseException:
            os.close(handle)
            raise
        finally:
            draft.unlink(missing_ok=True)
        return handle, facts

    def _shut_out_others(self) -> None:
        """Make sure that no earlier owner can write any more."""
        self._staging.mkdir(exist_ok=True)
        try:
            self.check()
        except LostRunError:  # others have had the run and removed their numbers since we looked
            _clear(self._staging)
            self._file(self.number).unlink(missing_ok=True)
            raise self._busy() from None
        for entry in list(self._folder.iterdir()):
            if entry.suffix == ".draft" or (entry.stem.isdecimal() and int(entry.stem) < self.number):
                if entry.is_dir():
                    _clear(entry)
                else:
                    entry.unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        """Return the numbers that there are; the newest is never removed."""
        with os.scandir(self._folder) as entries:
            names = [entry.name.partition(".") for entry in entries]
        return [int(stem) for stem, _, suffix in names if suffix == "json" and stem.isdecimal()]

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06d}.json"

    def _busy(self) -> BusyError:
        return BusyError(f"run-dir = '{self.run}': another process or agent is running it")


def lease_seconds() -> float:
    """Return after how many seconds without a heartbeat a run may be taken over."""
    text = os.environ.get("PDML_LEASE_SECONDS", str(LEASE))
    with suppress(ValueError):
        if 0.0 < float(text) < float("inf"):
            return float(text)
    raise UserError(f"PDML_LEASE_SECONDS = '{text}': must be a number above 0")


def _can_be_taken(file: Path, now: float) -> bool:
    """Say whether the owner of the newest lease has freed it or is dead, or has been silent for too long.

    Args:
        now: When a file beside it was changed just now: one clock for both, whichever machine asks.
    """
    try:
        handle = os.open(file, os.O_RDWR)
    except FileNotFoundError:  # a newer one has just been made
        return False
    try:
        facts, here = _read(handle), _this_process()
        if facts.get("released") is not None:
            return True
        if abs(now - os.fstat(handle).st_mtime) > facts.get("seconds", LEASE):
            return True
        if any(facts.get(name) != here[name] for name in ("host", "machine", "boot")):  # copies of a machine share two
            return False
        return bool(facts.get("locked")) and _locked(handle)
    finally:
        os.close(handle)


def _this_process() -> dict[str, Any]:
    """Return who asks; a machine that was started again, or a copy of it, has another boot id."""
    machine, boot = Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(),
        "machine": machine.read_text().strip() if machine.exists() else "",
        "boot": boot.read_text().strip() if boot.exists() else "",
        "pid": os.getpid(),
        "started": _now(),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts) + "\n").encode()


def _read(handle: int) -> dict[str, Any]:
    """Read what a lease says; nothing if it is being written."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _locked(handle: int) -> bool:
    """Try to lock an open file; the lock disappears with its process."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _clear(folder: Path) -> None:
    """Remove a folder, also if another process is just making a file in it."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    raise UserError(f"'{folder}': cannot be removed")


def _beat(handle: int, stop: threading.Event, seconds: float) -> None:
    """Touch the file of a lease, until it is freed."""
    while not stop.wait(seconds):
        with suppress(OSError):
            os.utime(handle)
    os.close(handle)


def _release(handle: int, facts: dict[str, Any], stop: threading.Event, staging: Path) -> None:
    """End a lease; if another process has the run by now, its file has no name any more."""
    if os.getpid() != facts["pid"]:  # a fork of the owner
        return
    stop.set()
    shutil.rmtree(staging, ignore_errors=True)
    with suppress(OSError):
        os.pwrite(handle, _text({**facts, "released": _now()}), 0)  # longer than before
        os.fsync(handle)
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)  # the thread may still have it open
    os.close(handle)
