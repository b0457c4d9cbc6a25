"""Ctrl-C and SIGTERM save a run, or end a long fit soon; it resumes as if it had not been stopped."""

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
from pdml.core.stopwatch import Stopwatch
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays

NAMES = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}


def words_of(path, **changes):
    """Return the words that train a tiny run."""
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(change(tiny_of("pdml"), {"checkpoint_every": 25, **changes})))
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


@pytest.mark.slow
@pytest.mark.parametrize("number", NAMES)
def test_a_signal_ends_a_long_fit_within_ten_seconds(number, strike, tmp_path, monkeypatch, capsys):
    path, real, struck = tmp_path / "run", killing.strike, []
    monkeypatch.setattr(killing, "strike", lambda *words: (struck.append(time.monotonic()), real(*words)))
    strike(number, "fit", 1, 2.0)
    words = words_of(path, **{"dynamics.max_epochs": 10**7, "dynamics.patience": 10**7})
    assert main(words) == 128 + number
    assert 0 < time.monotonic() - struck[0] < 10
    assert capsys.readouterr().err.splitlines()[-1] == last_line(path, number)
    assert [file.name for file in saved_checkpoints(path)] == ["step_00000050.safetensors", "step_00000025.safetensors"]


@pytest.mark.slow
def test_a_process_that_is_stopped_has_the_exit_code_of_its_signal(tmp_path):
    path = tmp_path / "run"
    harness = [killing.__file__, "TERM", "collect", "50", "0", "--"]
    line = [sys.executable, *harness, *words_of(path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=dict(os.environ), cwd=Path.cwd())
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == last_line(path, signal.SIGTERM)
    assert saved_checkpoints(path)[0].name == "step_00000025.safetensors"
