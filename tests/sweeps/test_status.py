"""The status of runs is read from their files alone, even while they are being written."""

import json
import os
import sys
import time
from types import SimpleNamespace

import pytest
from fake_runs import write_run
from rich.console import Console

from pdml.cli import main
from pdml.sweeps import status
from pdml.sweeps.status import lease_sign, runs_below, status_lines, status_of, status_table
from pdml.sweeps.worker import Outcome, note_outcome


def lease(path, number=1, age=0.0, released=None):
    """Write the lease of a run whose owner last gave a sign of life so many seconds ago."""
    (path / "lease").mkdir(exist_ok=True)
    file = path / "lease" / f"{number:06d}.json"
    file.write_text(json.dumps({"host": "far", "pid": 1, "released": released}))
    then = time.time() - age
    os.utime(file, (then, then))


def unfinished(path, **options):
    return write_run(path, finished=False, returns=(500.0, 1000.0), **options)


def test_a_run_that_is_done(tmp_path):
    found = status_of(write_run(tmp_path / "run"))
    assert (found.state, found.step, found.steps, found.last_return) == ("done", 9000, 9000, 2000.0)
    assert (found.seconds_left, found.note, found.ended) == (None, "", True)


def test_a_run_with_a_heartbeat_is_running_and_its_time_left_is_that_of_its_speed(tmp_path):
    path = unfinished(tmp_path / "run")
    lease(path, age=30.0)
    found = status_of(path)
    assert (found.state, found.step, found.steps, found.last_return) == ("running", 7000, 9000, 1000.0)
    assert found.rate == pytest.approx(2.5)  # 250 steps in 100 s
    assert found.seconds_left == pytest.approx(2000 / 2.5)
    assert not found.ended


def test_a_run_that_has_been_silent_for_long_may_be_dead(tmp_path):
    path = unfinished(tmp_path / "run")
    lease(path, age=600.0)
    found = status_of(path)
    assert (found.state, found.note) == ("silent", "no sign of life for 10 min; it may be dead")
    assert not found.ended
    lease(path, number=2)  # another process has taken it over
    assert status_of(path).state == "running"


def test_a_run_that_was_freed_is_stopped_and_one_without_a_lease_too(tmp_path):
    path = unfinished(tmp_path / "run")
    assert status_of(path).state == "stopped"
    lease(path, released="now")
    assert status_of(path).state == "stopped"
    assert lease_sign(path) is None


def test_a_lease_that_is_half_written_counts_as_a_sign_of_life(tmp_path):
    path = unfinished(tmp_path / "run")
    lease(path)
    (path / "lease" / "000001.json").write_text("{")
    assert status_of(path).state == "running"
    then = time.time() - 600.0
    os.utime(path / "lease" / "000001.json", (then, then))
    assert status_of(path).state == "silent"


def test_a_run_that_failed_says_why(tmp_path):
    path = unfinished(tmp_path / "run", error="RuntimeError: the motor is on fire")
    assert status_of(path)[1] == "failed"
    assert status_of(path).note == "RuntimeError: the motor is on fire"
    (path / "error.txt").write_text("")
    assert status_of(path).note == "no reason given"


def test_a_planned_run_waits_and_one_that_was_refused_has_failed(tmp_path):
    (tmp_path / "sweep_note.txt").touch()
    assert status_of(tmp_path)[1:] == ("waiting", 0, None, None, None, None, "")
    note_outcome(tmp_path, Outcome(2, "memory: the run needs about 9 TB"))
    found = status_of(tmp_path)
    assert (found.state, found.note) == ("failed", "memory: the run needs about 9 TB")


@pytest.mark.parametrize("released", [None, "now"])
def test_a_run_that_its_sweep_gave_up_has_failed_until_another_process_takes_it(tmp_path, released):
    """Its process was killed, or ended with an error that is no fault of the run."""
    path = unfinished(tmp_path / "run")
    lease(path, age=1.0, released=released)
    note_outcome(path, Outcome(-9, "killed by SIGKILL"))
    found = status_of(path)
    assert (found.state, found.note, found.ended) == ("failed", "killed by SIGKILL", True)
    lease(path, number=2, age=-1.0, released=released)
    assert status_of(path).state == ("stopped" if released else "running")
    (path / "DONE").touch()
    assert status_of(path).state == "done"


def test_silence_is_measured_by_the_clock_of_the_file_system(tmp_path, monkeypatch):
    path = unfinished(tmp_path / "run")
    lease(path, age=30.0)
    now = time.time()
    monkeypatch.setattr(status.time, "time", lambda: now + 3600.0)  # of the machine that asks
    assert status_of(path).state == "running"
    monkeypatch.setattr(status.tempfile, "TemporaryFile", lambda dir: (dir / "no" / "no").open("rb"))
    assert status_of(path).state == "silent"  # without the right to write there is no other clock


def test_collected_results_without_a_file_done_are_done_where_they_reach_their_end(tmp_path):
    assert status_of(write_run(tmp_path / "run", finished=False)).state == "done"
    path = write_run(tmp_path / "last", finished=False)
    lease(path)  # the last checkpoint is being written
    assert status_of(path).state == "running"


def test_half_written_and_damaged_rows_do_not_count(tmp_path):
    path = unfinished(tmp_path / "run")
    for name in ("evaluations.csv", "progress.csv", "timing.csv"):
        with (path / name).open("a") as file:
            file.write("8000,x\n8000,0,12")
    found = status_of(path)
    assert (found.step, found.last_return, found.rate) == (7000, 1000.0, pytest.approx(2.5))
    for name in ("evaluations.csv", "progress.csv", "timing.csv"):
        (path / name).write_text("garbage\n")
    assert status_of(path)[2:7] == (0, 9000, None, None, None)


def test_only_the_end_of_a_long_file_is_read(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", returns=[float(i) for i in range(40)], steps=40_000)
    monkeypatch.setattr(status, "TAIL", 400)
    found = status_of(path)
    assert (found.step, found.last_return, found.rate) == (45_000, 39.0, pytest.approx(2.5))


def test_during_the_warm_up_the_checkpoints_tell_the_step(tmp_path):
    path = write_run(tmp_path / "run", finished=False, returns=())
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "step_00003000.safetensors").touch()
    assert status_of(path).step == 3000


def test_runs_and_planned_runs_are_found_without_looking_inside_a_run(tmp_path):
    first, second = write_run(tmp_path / "b" / "seed_0"), tmp_path / "a" / "seed_0"
    second.mkdir(parents=True)
    (second / "sweep_note.txt").touch()
    (tmp_path / "output.txt").touch()  # what a sweep printed
    (first / "archive").mkdir()
    (first / "archive" / "config.json").touch()
    assert runs_below([tmp_path, tmp_path / "b"]) == [second, first]
    assert runs_below([tmp_path / "nowhere"]) == []


def test_the_table_and_the_lines_say_the_same(tmp_path):
    write_run(tmp_path / "a")
    lease(unfinished(tmp_path / "b", seed=1))
    unfinished(tmp_path / "c", seed=2, error="ValueError: [no] more")
    rows = [status_of(path) for path in runs_below([tmp_path])]
    lines = status_lines(rows, tmp_path)
    assert [line.split() for line in lines] == [
        ["run", "state", "step", "last", "return", "steps/s", "time", "left"],
        ["a", "done", "9,000", "of", "9,000", "2,000.0", "2.5", "-"],
        ["b", "running", "7,000", "of", "9,000", "1,000.0", "2.5", "13", "min"],
        ["c", "failed", "7,000", "of", "9,000", "1,000.0", "2.5", "-", "ValueError:", "[no]", "more"],
        ["3", "runs:", "1", "done,", "1", "running,", "1", "failed"],
    ]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(status_table(rows, tmp_path))
    assert [line.split() for line in captured.get().splitlines()] == [line.split() for line in lines]


def test_a_thousand_runs_are_read_in_seconds(tmp_path):
    path = unfinished(tmp_path / "run")
    lease(path)
    start = time.process_time()
    for _ in range(1000):
        status_of(path)
    assert time.process_time() - start < 5.0


def test_the_command_prints_the_table(tmp_path, capsys):
    write_run(tmp_path / "a")
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("a    done   9,000 of 9,000")
    assert out[-1] == "1 run: 1 done"


def test_watching_ends_when_all_runs_have_ended(tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "a")
    path = unfinished(tmp_path / "b", seed=1)
    lease(path)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            (path / "DONE").touch()

    monkeypatch.setattr("pdml.sweeps.view.time", SimpleNamespace(sleep=sleep))
    assert main(["status", str(tmp_path), "--watch"]) == 0
    out = capsys.readouterr().out
    assert len(slept) == 2
    assert out.count("2 runs: 1 done, 1 running") == 1  # nothing had changed
    assert out.splitlines()[-1] == "2 runs: 2 done"


def test_on_a_terminal_the_table_is_drawn_again(tmp_path, capsys, monkeypatch):
    path = unfinished(tmp_path / "run")
    lease(path)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["status", str(tmp_path)]) == 0
    assert "1 running" in capsys.readouterr().out
    done = SimpleNamespace(sleep=lambda seconds: (path / "DONE").touch())
    monkeypatch.setattr("pdml.sweeps.view.time", done)
    assert main(["status", str(tmp_path), "--watch"]) == 0
    out = capsys.readouterr().out
    assert out.index("1 running") < out.index("1 run: 1 done")


def test_ctrl_c_ends_watching(tmp_path, capsys, monkeypatch):
    unfinished(tmp_path / "run")

    def sleep(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("pdml.sweeps.view.time", SimpleNamespace(sleep=sleep))
    assert main(["status", str(tmp_path), "--watch"]) == 0
    assert "1 run: 1 stopped" in capsys.readouterr().out
