"""Ctrl-C, SIGTERM and the end of standard input save a run, or end a long fit soon; it resumes as if not stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import killing
import pytest
from run_files import assert_same_files
from tiny import tiny_of

from pdml.cli import main
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.core import signals
from pdml.core.stopwatch import Stopwatch
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays

NAMES = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}


def words_of(path, method="pdml", **changes):
    """Return the words that train a tiny run."""
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(change(tiny_of(method), {"checkpoint_every": 25, **changes})))
    return ["train", "--config", str(file), "--run-dir", str(path)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    path = tmp_path_factory.mktemp("unbroken") / "run"
    assert main(words_of(path)) == 0
    return path


@pytest.fixture
def strike(monkeypatch):
    """Send a signal to this process inside a phase; see `killing`."""
    monkeypatch.setattr(Stopwatch, "__call__", Stopwatch.__call__)  # to be restored
    return killing.at_phase


def last_line(path, number):
    return f"pdml: stopped ({NAMES[number]}); resume with: pdml resume {path}"


@pytest.mark.parametrize(
    ("number", "phase", "count", "delay", "step"),
    [
        (signal.SIGINT, "improve", 37, 0.0, 97),
        (signal.SIGTERM, "fit", 3, 0.01, 75),
        (signal.SIGTERM, "collect", 82, 0.0, 41),
    ],
)
def test_a_signal_saves_the_run_and_says_how_to_resume(
    number, phase, count, delay, step, unbroken, strike, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    words = words_of(path)
    strike(number, phase, count, delay)
    assert main(words) == 128 + number
    monkeypatch.undo()
    assert capsys.readouterr().err.splitlines()[-1] == last_line(path, number)
    assert not (path / "error.txt").exists()
    saved = read_arrays(saved_checkpoints(path)[0])[1]["step"]
    assert saved == step or (phase == "fit" and saved >= 75)  # or the fit was over: then it is saved a step later
    assert main(["resume", str(path)] if number == signal.SIGINT else [*words, "--resume"]) == 0
    assert_same_files(path, unbroken)


FIT = {"dynamics.max_epochs": 10**7, "dynamics.patience": 10**7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "method", "phase", "changes"),
    [
        (signal.SIGINT, "pdml", "fit", FIT),
        (signal.SIGTERM, "pdml", "fit", FIT),
        (signal.SIGTERM, "dhmbpo", "fit", FIT),
        (signal.SIGTERM, "dhmbpo", "improve", {"updates_per_step": 10**5}),
        (signal.SIGTERM, "ampo", "refine", {"ampo.first_steps": 10**7, "ampo.last_steps": 10**7}),
    ],
)
def test_a_signal_ends_long_work_within_ten_seconds(
    number, method, phase, changes, strike, tmp_path, monkeypatch, capsys
):
    path, real, struck = tmp_path / "run", killing.strike, []
    monkeypatch.setattr(killing, "strike", lambda *words: (struck.append(time.monotonic()), real(*words)))
    strike(number, phase, 1, 6.0)  # compiling is over by then
    assert main(words_of(path, method, **changes)) == 128 + number
    assert 0 < time.monotonic() - struck[0] < 10
    assert capsys.readouterr().err.splitlines()[-1] == last_line(path, number)
    assert [file.name for file in saved_checkpoints(path)] == ["step_00000050.safetensors", "step_00000025.safetensors"]


def test_the_same_signal_again_ends_the_process_at_once():
    code = "import os, signal, time\nfrom pdml.core.signals import listening\nwith listening():\n"
    code += "    os.kill(os.getpid(), signal.SIGTERM)\n    print('still here', flush=True)\n"
    code += "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.returncode) == ("still here\n", -signal.SIGTERM)


@pytest.mark.slow
def test_a_process_that_is_stopped_has_the_exit_code_of_its_signal(tmp_path):
    path = tmp_path / "run"
    harness = [killing.__file__, "TERM", "collect", "50", "0", "--"]
    line = [sys.executable, *harness, *words_of(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=dict(os.environ), cwd=Path.cwd())
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == last_line(path, signal.SIGTERM)
    assert saved_checkpoints(path)[0].name == "step_00000025.safetensors"


def until(ready, process):
    deadline = time.monotonic() + 300
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_a_run_is_saved_and_stops_when_its_standard_input_ends(unbroken, tmp_path):
    """Also if the scheduler has sent SIGTERM before: that is not a second request."""
    path, pipe = tmp_path / "run", subprocess.PIPE
    train = [sys.executable, "-m", "pdml", *words_of(path), "--stop-with-stdin"]
    resume = [sys.executable, "-m", "pdml", "resume", str(path), "--stop-with-stdin"]
    for line, count, sent in ((train, 1, []), (resume, 2, [signal.SIGTERM])):
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        until(lambda: len(list(path.glob("events.*"))) == count, process)  # noqa: B023
        for number in sent:
            process.send_signal(number)
        _, err = process.communicate(timeout=300)  # this closes its input
        if process.returncode != 0:  # it was not done by then
            assert (process.returncode, err.splitlines()[-1]) == (143, last_line(path, signal.SIGTERM))
            assert not (path / "error.txt").exists()
            assert not (path / "DONE").exists()
    if not (path / "DONE").exists():
        assert main(["resume", str(path)]) == 0
    assert_same_files(path, unbroken)


@pytest.mark.slow
def test_a_run_ends_with_its_scheduler_also_if_that_is_killed(tmp_path):
    path = tmp_path / "run"
    words = [sys.executable, "-m", "pdml", *words_of(path, steps=10**6), "--stop-with-stdin"]
    code = f"import subprocess as s; p = s.Popen({words!r}, stdin=s.PIPE); print(p.pid, flush=True); p.wait()"
    scheduler = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    run = Path(f"/proc/{scheduler.stdout.readline().strip()}")
    until(lambda: list(path.glob("events.*")), scheduler)
    scheduler.kill()
    deadline = time.monotonic() + 60
    while run.exists() and run.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    scheduler.communicate()
    assert saved_checkpoints(path)
    assert not (path / "error.txt").exists()


def test_a_process_that_does_not_stop_after_its_input_has_ended_is_ended_hard():
    code = "import time; from pdml.core import signals; signals.stop_at_end_of(0, 0.2); time.sleep(60)"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 137
    assert time.monotonic() - start < 30


def test_input_that_goes_on_stops_nothing(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr(signals.os, "_exit", lambda code: None)
    with signals.listening():
        signals.stop_at_end_of(reader, 0.0)
        os.write(writer, b"more\n")
        time.sleep(0.2)
        assert not signals.asked()
        os.close(writer)
        deadline = time.monotonic() + 30
        while not signals.asked():
            assert time.monotonic() < deadline
        with pytest.raises(signals.Stopped, match="SIGTERM"):
            signals.stop_if_asked()
        time.sleep(0.2)
    os.close(reader)
