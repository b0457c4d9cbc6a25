"""The lease of a run: one owner at a time, which is shut out when another takes over."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pdml.core.errors import BusyError, LostRunError, RunError, UserError
from pdml.runs.directory import Table, renew_files, truncate_files
from pdml.runs.lease import Lease, lease_seconds

BUSY = "another process or agent is running it"
LOST = "another process has taken the run over; nothing more was written"


def files(run):
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def newest(run):
    return max((run / "lease").glob("*.json"))


def silent(run, seconds=61.0):
    """Let the newest heartbeat be so many seconds old."""
    then = newest(run).stat().st_mtime - seconds
    os.utime(newest(run), (then, then))


def rewrite(run, **facts):
    newest(run).write_text(json.dumps({**json.loads(newest(run).read_text()), **facts}))


def taken_over(run):
    """Return a lease whose owner is frozen, and that of the process that takes the run over."""
    first = Lease(run)
    silent(run)
    return first, Lease(run)


def test_the_newest_number_owns_a_run_and_says_who_it_is(tmp_path):
    lease = Lease(tmp_path)
    assert files(tmp_path) == ["lease", "lease/000001", "lease/000001.json"]
    facts = json.loads(newest(tmp_path).read_text())
    assert set(facts) == {"host", "machine", "boot", "pid", "started", "seconds", "locked", "released"}
    assert (facts["pid"], facts["seconds"], facts["released"]) == (os.getpid(), 60.0, None)
    lease.check()
    lease.free()
    assert json.loads(newest(tmp_path).read_text())["released"] is not None
    assert files(tmp_path) == ["lease", "lease/000001.json"]
    again = Lease(tmp_path)
    assert again.number == 2
    assert files(tmp_path) == ["lease", "lease/000002", "lease/000002.json"]
    again.free()
    again.free()


def test_a_run_that_is_running_is_busy_and_nothing_is_left_by_who_asks(tmp_path):
    lease = Lease(tmp_path)
    before = files(tmp_path)
    with pytest.raises(BusyError, match=BUSY):
        Lease(tmp_path)
    assert files(tmp_path) == before
    lease.check()


def test_a_lease_that_nobody_keeps_is_free(tmp_path):
    lease = Lease(tmp_path)
    del lease
    assert Lease(tmp_path).number == 2


def test_of_many_that_ask_at_once_one_gets_the_run(tmp_path):
    barrier = threading.Barrier(8)

    def ask(_):
        barrier.wait()
        try:
            return Lease(tmp_path)
        except BusyError:
            return None

    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            found = [lease for lease in pool.map(ask, range(8)) if lease is not None]
        assert len(found) == 1
        found[0].check()
        assert files(tmp_path) == ["lease", f"lease/{found[0].number:06d}", f"lease/{found[0].number:06d}.json"]
        found[0].free()


@pytest.mark.parametrize("end", ["", "os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_the_end_of_a_process_frees_its_run_at_once(end, tmp_path):
    code = f"import os, pathlib; from pdml.runs.lease import Lease; x = Lease(pathlib.Path({str(tmp_path)!r})); {end}"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (json.loads(newest(tmp_path).read_text())["released"] is None) == bool(end)
    lease = Lease(tmp_path)
    assert lease.number == 2
    assert files(tmp_path) == ["lease", "lease/000002", "lease/000002.json"]


def test_the_fork_of_a_process_does_not_free_its_run(tmp_path):
    code = f"""
import os, pathlib, sys
from pdml.runs.lease import Lease
lease = Lease(pathlib.Path({str(tmp_path)!r}))
if child := os.fork():
    os.waitpid(child, 0)
    lease.check()
    try:
        Lease(lease.run)
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
sys.exit()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert BUSY in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("facts", "old", "free"),
    [
        ({"host": "elsewhere"}, 0.0, False),
        ({"host": "elsewhere"}, 59.0, False),
        ({"host": "elsewhere"}, 61.0, True),
        ({"host": "elsewhere"}, -3600.0, True),  # a clock was set back
        ({"host": "elsewhere", "released": "2026-01-01T00:00:00+00:00"}, 0.0, True),
        ({"host": "elsewhere", "seconds": 5.0}, 6.0, True),
        ({"machine": "another of the same name"}, 0.0, False),
        ({"boot": "before"}, 0.0, False),
        ({"locked": False}, 0.0, False),
        ({}, 0.0, True),  # its lock can be had
    ],
)
def test_a_run_is_taken_over_only_from_an_owner_that_is_dead_or_silent(facts, old, free, tmp_path):
    left = Lease(tmp_path)
    text = newest(tmp_path).read_text()
    left.free()
    newest(tmp_path).write_text(text)
    rewrite(tmp_path, **facts)
    silent(tmp_path, old)
    if free:
        assert Lease(tmp_path).number == 2
    else:
        with pytest.raises(BusyError, match=BUSY):
            Lease(tmp_path)


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_the_clock_of_the_machine_does_not_count(ahead, tmp_path, monkeypatch):
    """Both times are the file system's: machines that share it need not agree on the time."""
    lease = Lease(tmp_path)
    text = newest(tmp_path).read_text()
    lease.free()
    newest(tmp_path).write_text(text)
    rewrite(tmp_path, host="elsewhere")
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    with pytest.raises(BusyError, match=BUSY):
        Lease(tmp_path)
    silent(tmp_path)
    assert Lease(tmp_path).number == 2


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_lease_that_cannot_be_read_counts_until_it_is_silent(text, tmp_path):
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "000007.json").write_text(text)
    with pytest.raises(BusyError, match=BUSY):
        Lease(tmp_path)
    silent(tmp_path)
    assert Lease(tmp_path).number == 8


@pytest.mark.slow
def test_the_heartbeat_keeps_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PDML_LEASE_SECONDS", "0.6")
    lease = Lease(tmp_path)
    rewrite(tmp_path, host="elsewhere")
    for _ in range(10):
        time.sleep(0.15)
        with pytest.raises(BusyError, match=BUSY):
            Lease(tmp_path)
    lease.free()


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf"])
def test_a_wrong_length_of_the_lease_is_named(text, tmp_path, monkeypatch):
    monkeypatch.setenv("PDML_LEASE_SECONDS", text)
    with pytest.raises(UserError, match=rf"PDML_LEASE_SECONDS = '{text}': must be a number above 0"):
        lease_seconds()


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "lease").write_text("")
    with pytest.raises(UserError, match=r"cannot be written \(File exists\)"):
        Lease(tmp_path)
    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)"):
        Lease(tmp_path / "nowhere")


def test_who_has_lost_its_run_writes_and_removes_nothing(tmp_path):
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "rows.csv").write_text("a\n")
    (tmp_path / "timing.csv").write_text("step\n1\n")
    first, second = taken_over(tmp_path)
    before = files(tmp_path)
    for attempt in (
        first.check,
        lambda: first.write_text("kept", "late"),
        lambda: first.write_text("new", "late"),
        lambda: first.append(tmp_path / "rows.csv", b"late\n"),
        lambda: first.append(tmp_path / "new.csv", b"late\n"),
        lambda: first.remove(tmp_path / "kept"),
        lambda: Table(first, "progress.csv").add({"step": 1}),
        lambda: renew_files(first),
    ):
        with pytest.raises(LostRunError, match=LOST):
            attempt()
    first.free()
    assert files(tmp_path) == before
    assert (tmp_path / "kept").read_text() == "kept"
    assert (tmp_path / "rows.csv").read_text() == "a\n"
    second.check()


def test_the_second_owner_after_it_is_noticed_too(tmp_path):
    first, second = taken_over(tmp_path)
    second.free()
    third = Lease(tmp_path)
    assert third.number == 3
    with pytest.raises(LostRunError, match=LOST):
        first.check()


def test_a_late_rename_fails_even_after_its_check(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    first, seconds = Lease(tmp_path), []

    def frozen_after_check(self):
        if self is first and not seconds:
            seconds.append(None)
            silent(tmp_path)
            seconds[0] = Lease(tmp_path)
            seconds[0].write_text("file", "new")
        else:
            real(self)

    real = Lease.check
    monkeypatch.setattr(Lease, "check", frozen_after_check)
    with pytest.raises(LostRunError, match=LOST):
        first.write_text("file", "late")
    assert (tmp_path / "file").read_text() == "new"
    assert files(tmp_path) == ["file", "lease", "lease/000002", "lease/000002.json"]


@pytest.mark.parametrize("kept", ["step\n1\n", "step\n1\n2\n"])
def test_a_late_row_goes_to_a_file_that_nobody_sees(kept, tmp_path, monkeypatch):
    first, seconds = Lease(tmp_path), []
    table = Table(first, "progress.csv")
    table.add({"step": 1})
    table.add({"step": 2})

    def frozen_after_check(self):
        if self is first and not seconds:
            seconds.append(None)
            silent(tmp_path)
            seconds[0] = Lease(tmp_path)
            renew_files(seconds[0])
            truncate_files(seconds[0], {"progress.csv": len(kept)}, 1)
            Table(seconds[0], "progress.csv").add({"step": 3})

    monkeypatch.setattr(Lease, "check", frozen_after_check)
    table.add({"step": 9})
    assert (tmp_path / "progress.csv").read_text() == kept + "3\n"
    monkeypatch.undo()
    with pytest.raises(LostRunError, match=LOST):
        table.add({"step": 9})
    assert (tmp_path / "progress.csv").read_text() == kept + "3\n"


def test_a_late_removal_fails_even_after_its_check(tmp_path, monkeypatch):
    """A process that was frozen while it resumed a run does not roll back what the next one wrote."""
    first = Lease(tmp_path)
    real = Lease.check
    silent(tmp_path)
    second = Lease(tmp_path)
    second.write_text("evaluations.csv", "step\n1\n")
    second.write_text("DONE", "1\n")
    monkeypatch.setattr(Lease, "check", lambda self: None if self is first else real(self))
    truncate_files(first, {}, 0)
    assert (tmp_path / "evaluations.csv").read_text() == "step\n1\n"
    assert (tmp_path / "DONE").exists()


def test_what_was_half_written_by_a_dead_owner_is_removed(tmp_path):
    lease = Lease(tmp_path)
    (tmp_path / "lease" / "000001" / "policy.safetensors.partial").write_text("half")
    (tmp_path / "lease" / "someone.draft").write_text("")
    silent(tmp_path)
    other = Lease(tmp_path)
    assert files(tmp_path) == ["lease", "lease/000002", "lease/000002.json"]
    lease.free()
    other.check()


def test_who_looked_before_others_came_and_went_does_not_get_the_run(tmp_path, monkeypatch):
    """It saw that number 1 is free. Others had 2 and 3 and removed 2, so that its own 2 can be made, but too late."""
    Lease(tmp_path).free()
    owners, link = [], os.link

    def late(draft, file):
        monkeypatch.undo()
        text = draft.read_text()
        Lease(tmp_path).free()
        owners.append(Lease(tmp_path))
        draft.write_text(text)  # its draft was removed with the others: let it be written only now
        link(draft, file)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(BusyError, match=BUSY):
        Lease(tmp_path)
    owners[0].check()
    assert files(tmp_path) == ["lease", "lease/000003", "lease/000003.json"]


def test_the_draft_of_who_is_slower_is_removed_and_it_does_not_get_the_run(tmp_path, monkeypatch):
    owners, link = [], os.link

    def late(draft, file):
        monkeypatch.undo()
        owners.append(Lease(tmp_path))
        link(draft, tmp_path / "lease" / "000002.json")

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(BusyError, match=BUSY):
        Lease(tmp_path)
    owners[0].check()
    assert files(tmp_path) == ["lease", "lease/000001", "lease/000001.json"]


def test_a_directory_that_is_removed_meanwhile_is_not_called_taken_over(tmp_path):
    lease = Lease(tmp_path)
    shutil.rmtree(tmp_path / "lease")
    with pytest.raises(RunError, match="its folder lease is gone") as caught:
        lease.write_text("file", "text")
    assert not isinstance(caught.value, LostRunError)


def test_a_full_disk_is_still_a_full_disk(tmp_path):
    lease = Lease(tmp_path)
    with pytest.raises(OSError, match="No space left"), lease.replaced(tmp_path / "file"):
        raise OSError(28, os.strerror(28))
    lease.check()
    assert files(tmp_path) == ["lease", "lease/000001", "lease/000001.json"]
