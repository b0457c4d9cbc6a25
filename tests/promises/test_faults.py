"""What goes wrong beside a run: one line, error.txt, an exit code, and a last checkpoint to resume from."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import faulty
import numpy as np
import pytest
from faulty_runs import faulty_run
from tiny import assert_same_run

import pdml.training.loop
from pdml.cli import main
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.core.errors import LostRunError
from pdml.envs import watchdog
from pdml.runs import checkpoint, directory, session, tensor_file
from pdml.runs.lease import Lease
from pdml.runs.session import failures_noted, start_run
from pdml.runs.tensor_file import read_arrays
from pdml.runs.tensorboard import Board


def words_of(path, method="sac", **changes):
    """Return the words that train a tiny run."""
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(change(faulty_run(method), changes)))
    return ["train", "--config", str(file), "--run-dir", str(path)]


def assert_failed_and_resumable(path, err, sentence, step):
    """One line that names the fault and how to resume; the reason in error.txt; a whole, finite last checkpoint."""
    assert err.count("\n") == 1, err
    assert err.startswith("pdml: the run failed (")
    assert sentence in err
    assert err.endswith(f"; see {path / 'error.txt'}; resume with: pdml resume {path}\n")
    assert sentence in " ".join((path / "error.txt").read_text().split())
    assert not (path / "DONE").exists()
    state, note = read_arrays(checkpoint.saved_checkpoints(path)[0])
    assert note["step"] == step
    assert all(np.isfinite(array).all() for name, array in state.items() if name.startswith(("agent", "model.network")))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Return the same run without a fault, for the methods asked for."""
    found = {}

    def find(method="sac"):
        if method not in found:
            found[method] = tmp_path_factory.mktemp("healthy") / method
            start_run(faulty_run(method), found[method], 1, "pdml train")
        return found[method]

    return find


def assert_resumes_to(healthy, path):
    """Resume a run without its fault; it ends as if there had been none."""
    assert main(["resume", str(path)]) == 0
    assert_same(path, healthy)
    assert not (path / "error.txt").exists()


def assert_same(path, healthy):
    assert_same_run(path, healthy)
    for name in ("policy.safetensors", "progress.csv", "evaluations.csv"):
        assert (path / name).read_bytes() == (healthy / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raises", "the environment, at step 5 of an episode, raised RuntimeError: the motor is on fire"),
        ("forgets", "the environment, at step 5 of an episode, returned nan in entry 1 of its observation"),
        ("grows", "the environment, at step 5 of an episode, returned an observation of shape (3,), not (2,)"),
        ("unpaid", "the environment, at step 5 of an episode, returned a reward that is not finite (nan)"),
    ],
    ids=["raises", "forgets", "grows", "unpaid"],
)
def test_a_run_whose_environment_fails_resumes_when_it_is_repaired(
    fault, sentence, healthy, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(faulty, "FAULT", fault)
        assert main(words_of(path)) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 75)
    assert_resumes_to(healthy(), path)


def test_an_environment_that_fails_in_pdml_eval_is_one_line_and_exit_code_1(healthy, monkeypatch, capsys):
    path = healthy()
    monkeypatch.setattr(faulty, "FAULT", "raises")
    monkeypatch.setattr(faulty, "AT", 3)
    capsys.readouterr()
    assert main(["eval", str(path), "--episodes", "1"]) == 1
    said = "pdml: the environment, at step 3 of an episode, raised RuntimeError: the motor is on fire\n"
    assert capsys.readouterr() == ("", said)


def test_an_environment_that_fails_while_its_episode_is_reproduced_is_recorded_too(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"
    monkeypatch.setattr(faulty, "FAULT", "raises")
    assert main(words_of(path)) == 1
    capsys.readouterr()
    (path / "error.txt").unlink()
    monkeypatch.setattr(faulty, "AT", 3)
    assert main(["resume", str(path)]) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "at step 3 of an episode, raised RuntimeError", 75)


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support"), **more}


def pdml_in_a_process(*words, **more):
    line = [sys.executable, "-m", "pdml", *words]
    return subprocess.run(line, capture_output=True, text=True, env=environment(**more), timeout=120)


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_by_the_watchdog(healthy, tmp_path):
    path = tmp_path / "run"
    sentence = "the environment, at step 5 of an episode, took longer than env_timeout = 2.0 s"
    done = pdml_in_a_process(*words_of(path, env_timeout=2.0), FAULTY_FAULT="hangs")
    assert done.returncode == 1
    assert done.stderr == f"pdml: the run failed ({sentence}); the last checkpoint stands\n"
    assert (path / "error.txt").read_text() == sentence + "\n"
    done = pdml_in_a_process("resume", str(path), FAULTY_FAULT="hangs", FAULTY_AT="3")  # as its episode is reproduced
    assert done.returncode == 1
    assert "at step 3 of an episode, took longer" in (path / "error.txt").read_text()
    assert main(["resume", str(path)]) == 0
    for name in ("policy.safetensors", "progress.csv", "evaluations.csv"):
        assert (path / name).read_bytes() == (healthy() / name).read_bytes(), name


def test_an_environment_that_does_not_reproduce_begins_a_new_episode_and_says_so_once(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"
    monkeypatch.setattr(faulty, "FAULT", "wanders")
    assert main(words_of(path)) == 0
    (path / "DONE").unlink()
    for file in checkpoint.saved_checkpoints(path)[:1]:
        file.unlink()
    before = read_arrays(checkpoint.saved_checkpoints(path)[0])[1]["episode"]["number"]
    capsys.readouterr()
    assert main(["resume", str(path)]) == 0
    said = capsys.readouterr().err.splitlines()
    line = "pdml: the environment does not reproduce its episode from its seed and actions; a new episode begins"
    assert said.count(line) == 1
    note = read_arrays(checkpoint.saved_checkpoints(path)[0])[1]
    assert note["step"] == 160
    assert note["episode"]["number"] == before + 1  # ten steps of seventeen
    assert (path / "DONE").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "method", "quantity"), [("overpays", "sac", "agent/"), ("leaps", "mbpo", "model")])
def test_what_diverges_is_named_and_the_last_good_state_is_kept(
    fault, method, quantity, healthy, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(faulty, "FAULT", fault)
        assert main(words_of(path, method)) == 1
    err = capsys.readouterr().err
    assert_failed_and_resumable(path, err, "not finite", 75 if fault == "overpays" else 100)
    assert quantity in err.partition(" not finite")[0]
    assert "diverged" in err
    if fault == "leaps":
        checkpoint.saved_checkpoints(path)[0].unlink()  # its state is finite, but not the rows to be fitted next
    assert_resumes_to(healthy(method), path)


def test_a_state_that_is_not_finite_is_not_saved(tmp_path, monkeypatch, capsys):
    """Also where no metric shows it."""
    path, real = tmp_path / "run", pdml.training.loop.improve

    def improve(state, training):
        real(state, training)
        if state.step > 80:
            state.agent = replace(state.agent, log_alpha=state.agent.log_alpha * np.inf)

    monkeypatch.setattr(pdml.training.loop, "improve", improve)
    monkeypatch.setattr(pdml.training.loop, "throttled", lambda state, training, step: step > 80)
    assert main(words_of(path)) == 1
    sentence = "agent.log_alpha is not finite: learning has diverged"
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 75)


def full_disk():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", [7, 10])
def test_a_full_disk_while_saving_leaves_the_checkpoint_before(call, healthy, tmp_path, monkeypatch, capsys):
    path, calls, real = tmp_path / "run", count(1), tensor_file.save_file

    def save_file(content, file, metadata):
        real(content, file, metadata)
        if next(calls) == call:  # policy, checkpoint, policy, checkpoint ...
            os.truncate(file, file.stat().st_size // 2)
            raise full_disk()

    monkeypatch.setattr(tensor_file, "save_file", save_file)
    assert main(words_of(path)) == 1
    sentence = "OSError: [Errno 28] No space left on device"
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 50 if call == 7 else 75)
    assert not list(path.rglob("*.partial"))
    assert_resumes_to(healthy(), path)


def test_a_full_disk_while_a_row_is_written_tears_no_table(healthy, tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", directory.Table.add

    def add(table, *rows):
        real(table, *rows)
        if table._path.name == "progress.csv" and rows[0]["step"] == 120:
            os.truncate(table._path, table._path.stat().st_size - 20)
            raise full_disk()

    with monkeypatch.context() as broken:
        broken.setattr(directory.Table, "add", add)
        assert main(words_of(path)) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "No space left on device", 100)
    assert_resumes_to(healthy(), path)


def test_a_full_disk_while_events_are_written_does_not_hang(healthy, tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", Board._append

    def append(board, *events):
        real(board, *events)
        if events[0].step == 100:
            raise full_disk()

    with monkeypatch.context() as broken:
        broken.setattr(Board, "_append", append)
        assert main(words_of(path)) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "No space left on device", 75)
    assert_resumes_to(healthy(), path)


def test_a_disk_so_full_that_the_reason_cannot_be_written_still_gives_the_line(tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", Path.write_text

    def write_text(file, *args, **kwargs):
        if file.name.startswith("error.txt"):
            raise full_disk()
        return real(file, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)
    monkeypatch.setattr(faulty, "FAULT", "raises")
    assert main(words_of(path)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("pdml: the run failed (the environment, at step 5")
    assert last.endswith(f"; resume with: pdml resume {path}")


def test_a_directory_that_cannot_be_written_is_refused_before_the_start(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run"
    config = tmp_path / "config.json"
    config.write_text(to_json(faulty_run()))
    assert main(["train", "--config", str(config), "--run-dir", str(path)]) == 2
    assert (
        capsys.readouterr().err == f"pdml: run-dir = '{path}': '{tmp_path / 'file'}' is a file, a directory is needed\n"
    )
    assert main(["train", "--config", str(config), "--run-dir", str(path), "--resume"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"file", "config.json"}


@pytest.mark.slow
def test_two_processes_do_not_share_a_run_and_the_death_of_one_frees_it(healthy, tmp_path, capsys):
    path = tmp_path / "run"
    words = words_of(path, env_timeout=0.0)
    line = [sys.executable, "-m", "pdml", *words]
    env = environment(FAULTY_FAULT="hangs")
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    try:
        deadline = time.monotonic() + 120
        while not (path / "checkpoints" / "step_00000075.safetensors").exists():  # it hangs at step 90, for ever
            assert first.poll() is None, first.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for others in (["resume", str(path)], [*words, "--resume"]):
            assert main(others) == 3
            assert capsys.readouterr().err == f"pdml: run-dir = '{path}': another process or agent is running it\n"
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    assert main(["resume", str(path)]) == 0
    for name in ("policy.safetensors", "progress.csv", "evaluations.csv"):
        assert (path / name).read_bytes() == (healthy() / name).read_bytes(), name


def test_who_has_lost_its_run_notes_no_failure(tmp_path, monkeypatch, capsys):
    """Neither when it notices that, nor for another reason, nor when an environment hangs."""
    first = Lease(tmp_path)
    os.utime(tmp_path / "lease" / "000001.json", (0, 0))
    second = Lease(tmp_path)
    for raised in (LostRunError("lost"), ValueError("another reason")):
        with pytest.raises(LostRunError), failures_noted(first):
            raise raised
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with failures_noted(first):
        watchdog._end("the environment hangs")
    assert codes == [3]
    lost = f"run-dir = '{tmp_path}': another process has taken the run over; nothing more was written"
    assert capsys.readouterr().err == f"pdml: {lost}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["lease"]
    with failures_noted(second):
        watchdog._end("the environment hangs")
    assert codes == [3, 1]
    assert (tmp_path / "error.txt").read_text() == "the environment hangs\n"


def test_a_run_that_another_process_began_or_finished_meanwhile_is_not_a_mistake(tmp_path, monkeypatch, capsys):
    """Both have found the directory free, or the run unfinished; who is second may try again."""
    path, real = tmp_path / "run", session.spec_of
    words = [*words_of(path), "--resume"]

    def slow(*args):
        monkeypatch.undo()
        assert main(words) == 0
        return real(*args)

    monkeypatch.setattr(session, "spec_of", slow)
    assert main(words) == 3
    sentence = f"run-dir = '{path}': another process or agent has begun a run there meanwhile"
    assert capsys.readouterr().err == f"pdml: {sentence}\n"
    before = (path / "progress.csv").stat()
    (path / "DONE").unlink()
    monkeypatch.setattr(session, "spec_of", lambda *args: ((path / "DONE").write_text("160\n"), real(*args))[1])
    assert main(words) == 3
    assert capsys.readouterr().err == f"pdml: run = '{path}': another process has finished it meanwhile\n"
    assert main(words) == 0
    assert capsys.readouterr().out == f"done already: {path}\n"
    assert (path / "progress.csv").stat() == before


def test_clock_jumps_change_nothing(healthy, tmp_path, monkeypatch):
    path, calls = tmp_path / "run", count()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + (1e9 if next(calls) % 2 else -1e9))
    assert main(words_of(path)) == 0
    assert next(calls) > 0
    assert_same(path, healthy())
    seconds = [line.split(",")[1] for line in (path / "timing.csv").read_text().splitlines()[1:]]
    assert [float(s) for s in seconds] == sorted(float(s) for s in seconds)
    assert 0 < float(seconds[-1]) < 1e4
