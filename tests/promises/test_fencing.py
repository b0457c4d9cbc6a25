"""A process that was frozen, replaced by another and woken up writes nothing more, wherever it was."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killing import __file__ as KILLING  # noqa: N812
from run_files import assert_same_files
from tiny import tiny_of

from pdml.config.fields import change
from pdml.config.files import to_json

SECONDS = 2.0
CHANGES = {"checkpoint_every": 25, "archive_at": (80, 120)}
LOST = "another process has taken the run over; nothing more was written"


def words_of(path, method):
    """Return the words that train a tiny run, or resume it."""
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(change(tiny_of(method), CHANGES)))
    return ["train", "--config", str(file), "--run-dir", str(path), "--threads", "1", "--resume"]


def start(path, *stop, method="sac"):
    """Start a process that trains a run, and that freezes itself at a point of `killing`; SAC is quick to start."""
    line = [sys.executable, KILLING, "STOP", *map(str, stop), "--", *words_of(path, method)]
    environment = {**os.environ, "PDML_LEASE_SECONDS": str(SECONDS)}
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait_until_frozen(process):
    deadline = time.monotonic() + 300
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wake(process):
    """Wake a process up; return its exit code and the last line that it said."""
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=300)[1]
    return process.returncode, said.rstrip("\n").rpartition("\n")[2]


def state_of_files(path):
    """Return every file of a run with its content and the time of its change."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in sorted(path.rglob("*"))
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return the finished run of a method."""

    @functools.cache
    def find(method):
        path = tmp_path_factory.mktemp("unbroken") / "run"
        assert wake(start(path, "collect", 10**6, 0, method=method))[0] == 0
        return path

    return find


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "frozen", "next_frozen"),
    [
        ("pdml", ("fit", 3, 0), ("collect", 20, 0)),  # the next begins at 75 and has not come as far
        ("sac", ("row", 2, 0), ("save", 1, 0)),
        ("sac", ("best", 2, 0), ("policy", 1, 0)),
        ("sac", ("unnamed", 5, 0), ("unnamed", 1, 0)),  # both are writing the same file
        ("sac", ("named", 5, 0), ("named", 2, 0)),
    ],
    ids=lambda point: point if isinstance(point, str) else f"{point[0]}{point[1]}",
)
def test_a_frozen_process_that_was_replaced_writes_nothing_when_it_wakes_up(
    method, frozen, next_frozen, unbroken, tmp_path
):
    path, processes = tmp_path / "run", []
    try:
        first = start(path, *frozen, method=method)
        processes.append(first)
        wait_until_frozen(first)
        time.sleep(SECONDS)
        second = start(path, *next_frozen, method=method)
        processes.append(second)
        wait_until_frozen(second)
        before = state_of_files(path)
        code, said = wake(first)
        assert (code, said) == (3, f"pdml: run-dir = '{path}': {LOST}")
        assert state_of_files(path) == before
        assert wake(second)[0] == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert_same_files(path, unbroken(method))
    assert not (path / "error.txt").exists()
    assert sorted(file.name for file in (path / "lease").iterdir()) == ["000002.json"]


@pytest.mark.slow
def test_a_process_that_was_frozen_but_not_replaced_goes_on(unbroken, tmp_path):
    path = tmp_path / "run"
    process = start(path, "improve", 30, 0)
    try:
        wait_until_frozen(process)
        time.sleep(2 * SECONDS)
        assert wake(process)[0] == 0
    finally:
        process.kill()
        process.communicate()
    assert_same_files(path, unbroken("sac"))


@pytest.mark.slow
def test_a_process_that_is_not_silent_for_long_enough_is_not_replaced(tmp_path):
    path = tmp_path / "run"
    process = start(path, "collect", 100, 0)
    try:
        wait_until_frozen(process)
        (path / "lease" / "000001.json").write_text((path / "lease" / "000001.json").read_text().replace("2.0", "600"))
        before = state_of_files(path)
        other = start(path, "collect", 1, 0)
        assert (
            other.communicate(timeout=300)[1] == f"pdml: run-dir = '{path}': another process or agent is running it\n"
        )
        assert other.returncode == 3
        after = state_of_files(path)
        assert {name for name in before if before[name] != after[name]} <= {"lease"}  # something was tried there
        assert before.keys() == after.keys()
    finally:
        process.kill()
        process.communicate()
