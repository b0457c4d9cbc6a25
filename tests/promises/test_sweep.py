"""Many runs survive what happens to some of them: each is done once, and equals a run that nothing happened to."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_files import assert_same_files

from pdml.sweeps.plan import plan
from pdml.sweeps.status import status_of
from pdml.sweeps.study import override, read_study
from pdml.sweeps.worker import Outcome, work

SUPPORT = Path(__file__).parents[1] / "support"

STUDY = """
summary = "tiny"
envs = ["moody:Moody-v0"]
methods = ["sac"]
seeds = "0-19"
steps = 60

[settings]
warmup_steps = 30
model_every = 10
updates_per_step = 1
batch_size = 32
checkpoint_every = 20
eval_every = 20
eval_episodes = 0
"agent.hidden_sizes" = "16"
"""

FAULTY_SEED = 2

SWEEP = """
import signal, sys
from pdml.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.exit(main())
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a study, for this process and those that it starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.setenv("MOODY_SLEEP", "0.02")
    monkeypatch.setenv("FAULTY_AT", "40")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # all runs compile the same
    (tmp_path / "tiny.toml").write_text(STUDY)
    return tmp_path


def sweep(*words):
    """Start a sweep in a process of its own."""
    command = [sys.executable, "-c", SWEEP, "sweep", "tiny.toml", "--out", "out", "--jobs", "2", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process, seconds=500):
    """Wait for the end of a sweep; return its exit code and what it printed."""
    out, err = process.communicate(timeout=seconds)
    print(out, err)
    return process.returncode, out, err


def wait_for(find, seconds=200):
    """Wait until something is found; return it."""
    end = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def owner(path):
    """Return the process that runs a run, or None."""
    for file in sorted((path / "lease").glob("*.json"))[-1:]:
        held = json.loads(file.read_text() or "{}")
        return None if held.get("released") else held.get("pid")
    return None


def in_the_middle(runs):
    """Return a run that has a checkpoint and is not done, and its process."""
    for run in runs:
        saved = run.path / "checkpoints" / "step_00000020.safetensors"
        if saved.exists() and not (run.path / "DONE").exists() and owner(run.path):
            return run, owner(run.path)
    return None


def is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def times_done(run):
    return (run.path / "output.txt").read_text().splitlines().count(f"done: {run.path}")


def planned(out="out", **changes):
    return plan(override(read_study("tiny.toml"), **changes), Path(out))


def assert_unbroken(runs, monkeypatch):
    """Some runs equal those that nothing happened to."""
    monkeypatch.setenv("MOODY_SLEEP", "0")
    monkeypatch.setenv("MOODY_SEED", "")
    for run in runs:
        seed = run.settings.learning.seed
        (other,) = planned("unbroken", seeds=[seed])
        assert work(other.words, other.path) == Outcome(0, "")
        assert_same_files(run.path, other.path, stopped=True)


@pytest.mark.slow
def test_a_sweep_survives_a_run_that_raises_a_killed_run_and_a_stop(place, monkeypatch):
    monkeypatch.setenv("MOODY_SEED", str(FAULTY_SEED))
    runs = planned()
    first = sweep()
    killed, process = wait_for(lambda: in_the_middle(run for run in runs if run is not runs[FAULTY_SEED]))
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: sum((run.path / "DONE").exists() for run in runs) >= 4)
    stopped, _ = wait_for(lambda: in_the_middle(runs[4:]))
    first.send_signal(signal.SIGINT)
    code, _, err = ended(first)
    assert (code, err.splitlines()[-1]) == (130, "pdml: stopped (SIGINT); the same command resumes")
    assert err.splitlines()[0].startswith(f"pdml: {runs[FAULTY_SEED].path}: the run failed (")
    assert not any(owner(run.path) for run in runs if run is not killed)
    assert (killed.path / "DONE").exists()
    assert len(json.loads((killed.path / "metadata.json").read_text())["resumed"]) == 1
    assert status_of(stopped.path).state == "stopped"
    assert not any(run.path.exists() for run in runs[-4:])  # nothing is waiting any more
    before = {run.path: (run.path / "output.txt").read_text() for run in runs if (run.path / "DONE").exists()}

    monkeypatch.setenv("MOODY_SLEEP", "0")
    code, out, err = ended(sweep())
    assert code == 1
    assert err.count("\n") == 1
    assert err.startswith(f"pdml: {runs[FAULTY_SEED].path}: the run failed (")
    assert "the motor is on fire" in err
    assert f"tiny: 20 runs in out, {len(before)} done already" in out
    assert out.splitlines()[-1] == "done: 19 of 20 runs in out"
    assert [times_done(run) for run in runs] == [run is not runs[FAULTY_SEED] for run in runs]
    assert all((path / "output.txt").read_text() == text for path, text in before.items())
    assert_unbroken([killed, stopped], monkeypatch)


@pytest.mark.slow
def test_two_sweeps_of_one_directory_do_every_run_once(place, monkeypatch):
    words = ("--seeds", "0-2")
    both = [sweep(*words), sweep(*words)]
    results = [ended(process) for process in both]
    assert [code for code, _, _ in results] == [0, 0]
    runs = planned(seeds="0-2")
    assert [times_done(run) for run in runs] == [1] * 3
    assert all(len(list((run.path / "checkpoints").iterdir())) == 2 for run in runs)
    assert all("resumed" not in json.loads((run.path / "metadata.json").read_text()) for run in runs)
    assert_unbroken([runs[2]], monkeypatch)


@pytest.mark.slow
def test_runs_end_with_a_killed_sweep_and_lose_nothing(place, monkeypatch):
    words = ("--seeds", "0-2")
    runs = planned(seeds="0-2")
    process = sweep(*words)
    broken, _ = wait_for(lambda: in_the_middle(runs))
    children = [number for run in runs if (number := owner(run.path))]
    process.kill()
    process.communicate()
    wait_for(lambda: not any(is_alive(number) for number in children), seconds=50)
    assert not any(owner(run.path) for run in runs)
    assert status_of(broken.path).state in ("stopped", "done")
    assert ended(sweep(*words))[0] == 0
    assert [times_done(run) for run in runs] == [1] * 3
    assert_unbroken([broken], monkeypatch)
