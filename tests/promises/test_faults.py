"""What goes wrong beside a run: one line, error.txt, an exit code, and a last checkpoint to go on from."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import faulty
import numpy as np
import pytest
from tiny import TINY, assert_same_run

from pdml.cli import main
from pdml.config.schema import change, defaults, leaves
from pdml.config.validate import to_json
from pdml.core.errors import UserError
from pdml.envs.env_spec import spaces_of
from pdml.runs import checkpoint, directory, resources, tensor_file
from pdml.runs.session import run
from pdml.runs.tensor_file import read_arrays
from pdml.runs.tensorboard import Board

SMALL = {"steps": 160, "checkpoint_every": 25, "eval_episodes": 0}


def small_of(env, method="sac"):
    """A tiny run in any environment."""
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    tiny = {name: value for name, value in TINY.items() if name in read}
    return change(defaults(env, method), tiny | SMALL)


def words_of(path, config):
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(config))
    return ["train", "--config", str(file), "--run-dir", str(path)]


def assert_failed_and_resumable(path, err, sentence, step):
    """One line that names the fault and how to go on; the reason in error.txt; a whole, finite last checkpoint."""
    assert err.count("\n") == 1, err
    assert err.startswith("pdml: the run failed (")
    assert sentence in err
    assert err.endswith(f"; see {path / 'error.txt'}; go on with: pdml resume {path}\n")
    assert sentence in " ".join((path / "error.txt").read_text().split())
    assert not (path / "DONE").exists()
    state, note = read_arrays(checkpoint.saved(path)[0])
    assert note["step"] == step
    assert all(np.isfinite(array).all() for name, array in state.items() if name.startswith(("agent", "model.network")))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Return the same run in an environment that has no fault, for the methods asked for."""
    found = {}

    def find(method="sac"):
        if method not in found:
            found[method] = tmp_path_factory.mktemp("healthy") / method
            run(small_of("faulty:None-v0", method), found[method], 1, "pdml train")
        return found[method]

    return find


def assert_same_but_for_the_environment(path, whole):
    for name in ("policy.safetensors", "progress.csv", "evaluations.csv"):
        assert (path / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("Raises", "the environment, at step 5 of an episode, raised RuntimeError: the motor is on fire"),
        ("Forgets", "the environment, at step 5 of an episode, returned nan in entry 1 of its observation"),
        ("Grows", "the environment, at step 5 of an episode, returned an observation of shape (3,), not (2,)"),
        ("Unpaid", "the environment, at step 5 of an episode, returned a reward that is not finite (nan)"),
    ],
)
def test_an_environment_that_fails_ends_the_run_which_goes_on_when_it_is_mended(
    fault, sentence, healthy, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    assert main(words_of(path, small_of(f"faulty:{fault}-v0"))) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 75)
    monkeypatch.setattr(faulty, "AT", 0)
    assert main(["resume", str(path)]) == 0
    assert not (path / "error.txt").exists()
    assert_same_but_for_the_environment(path, healthy())


def test_an_environment_that_fails_while_it_is_brought_back_is_noted_too(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run"
    assert main(words_of(path, small_of("faulty:Raises-v0"))) == 1
    capsys.readouterr()
    (path / "error.txt").unlink()
    monkeypatch.setattr(faulty, "AT", 3)
    assert main(["resume", str(path)]) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "at step 3 of an episode, raised RuntimeError", 75)


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support"), **more}


def pdml(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "pdml", *words], capture_output=True, text=True, env=environment(**more), timeout=120
    )


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_by_the_watchdog(healthy, tmp_path):
    path = tmp_path / "run"
    config = change(small_of("faulty:Hangs-v0"), {"env_timeout": 2.0})
    sentence = "the environment, at step 5 of an episode, took longer than env_timeout = 2.0 s"
    done = pdml(*words_of(path, config))
    assert done.returncode == 1
    assert done.stderr == f"pdml: the run failed ({sentence}); the last checkpoint stands\n"
    assert (path / "error.txt").read_text() == sentence + "\n"
    done = pdml("resume", str(path), FAULTY_AT="3")  # it hangs again while it is brought back
    assert done.returncode == 1
    assert "at step 3 of an episode, took longer" in (path / "error.txt").read_text()
    done = pdml("resume", str(path), FAULTY_AT="0")
    assert done.returncode == 0, done.stderr
    assert_same_but_for_the_environment(path, healthy())


def test_an_environment_that_does_not_reproduce_begins_a_new_episode_and_says_so_once(tmp_path, capsys):
    path = tmp_path / "run"
    assert main(words_of(path, small_of("faulty:Wanders-v0"))) == 0
    (path / "DONE").unlink()
    for file in checkpoint.saved(path)[:1]:
        file.unlink()
    before = read_arrays(checkpoint.saved(path)[0])[1]["episode"]["number"]
    capsys.readouterr()
    assert main(["resume", str(path)]) == 0
    said = capsys.readouterr().err.splitlines()
    line = "pdml: the environment does not reproduce its episode from its seed and actions; a new episode begins"
    assert said.count(line) == 1
    note = read_arrays(checkpoint.saved(path)[0])[1]
    assert note["step"] == 160
    assert note["episode"]["number"] == before + 1  # ten steps of seventeen
    assert (path / "DONE").exists()


@pytest.mark.parametrize(
    ("fault", "method", "quantity"),
    [("Overpays", "sac", "agent/"), ("Leaps", "mbpo", "model")],
)
def test_what_explodes_is_named_and_the_last_good_state_stands(
    fault, method, quantity, healthy, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "run"
    assert main(words_of(path, small_of(f"faulty:{fault}-v0", method))) == 1
    err = capsys.readouterr().err
    assert_failed_and_resumable(path, err, "not finite", 75 if fault == "Overpays" else 100)
    assert quantity in err.partition(" not finite")[0]
    assert "diverged" in err
    if fault == "Leaps":
        checkpoint.saved(path)[0].unlink()  # its state is finite, but the rows to fit next are not fit for it
    monkeypatch.setattr(faulty, "AT", 0)
    assert main(["resume", str(path)]) == 0
    assert_same_but_for_the_environment(path, healthy(method))


def test_a_state_that_is_not_finite_is_not_saved(tmp_path, monkeypatch, capsys):
    """Also where no metric shows it."""
    import pdml.training.loop

    path, real = tmp_path / "run", pdml.training.loop._improve

    def improve(state, parts, config):
        agent = real(state, parts, config)
        return agent if state.step < 80 else replace(agent, log_alpha=agent.log_alpha * np.inf)

    monkeypatch.setattr(pdml.training.loop, "_improve", improve)
    monkeypatch.setattr(pdml.training.loop, "_due", lambda state, config: state.step < 81)
    assert main(words_of(path, small_of("faulty:None-v0"))) == 1
    sentence = "agent.log_alpha is not finite: learning has diverged"
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 75)


@pytest.mark.parametrize("call", [7, 10])
def test_a_full_disk_while_saving_leaves_the_checkpoint_before(call, healthy, tmp_path, monkeypatch, capsys):
    path, calls, real = tmp_path / "run", count(1), tensor_file.save_file

    def save_file(content, file, metadata):
        real(content, file, metadata)
        if next(calls) == call:  # policy, checkpoint, policy, checkpoint ...
            os.truncate(file, file.stat().st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensor_file, "save_file", save_file)
    assert main(words_of(path, small_of("faulty:None-v0"))) == 1
    sentence = "OSError: [Errno 28] No space left on device"
    assert_failed_and_resumable(path, capsys.readouterr().err, sentence, 50 if call == 7 else 75)
    assert not list(path.rglob("*.partial"))
    assert main(["resume", str(path)]) == 0
    assert_same_run(path, healthy())
    assert_same_but_for_the_environment(path, healthy())


def test_a_full_disk_while_a_row_is_written_tears_no_table(healthy, tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", directory.Table.add

    def add(table, *rows):
        real(table, *rows)
        if table._path.name == "progress.csv" and rows[0]["step"] == 120:
            os.truncate(table._path, table._path.stat().st_size - 20)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(directory.Table, "add", add)
        assert main(words_of(path, small_of("faulty:None-v0"))) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "No space left on device", 100)
    assert main(["resume", str(path)]) == 0
    assert_same_but_for_the_environment(path, healthy())


def test_a_full_disk_while_events_are_written_does_not_hang(healthy, tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", Board._append

    def append(board, *events):
        real(board, *events)
        if events[0].step == 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(Board, "_append", append)
        assert main(words_of(path, small_of("faulty:None-v0"))) == 1
    assert_failed_and_resumable(path, capsys.readouterr().err, "No space left on device", 75)
    assert main(["resume", str(path)]) == 0
    assert_same_but_for_the_environment(path, healthy())


def test_a_disk_so_full_that_the_reason_cannot_be_written_still_gives_the_line(tmp_path, monkeypatch, capsys):
    path, real = tmp_path / "run", Path.write_text

    def write_text(file, *args, **kwargs):
        if file.name == "error.txt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)
    assert main(words_of(path, small_of("faulty:Raises-v0"))) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("pdml: the run failed (the environment, at step 5")
    assert last.endswith(f"; go on with: pdml resume {path}")


def test_a_directory_that_cannot_be_written_is_refused_before_the_start(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run"
    config = tmp_path / "config.json"
    config.write_text(to_json(small_of("faulty:None-v0")))
    assert main(["train", "--config", str(config), "--run-dir", str(path)]) == 2
    assert (
        capsys.readouterr().err == f"pdml: run-dir = '{path}': '{tmp_path / 'file'}' is a file, a directory is needed\n"
    )
    assert main(["train", "--config", str(config), "--run-dir", str(path), "--resume"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {"file", "config.json"}


@pytest.mark.slow
def test_two_processes_do_not_share_a_run_and_death_frees_it(healthy, tmp_path):
    path = tmp_path / "run"
    words = words_of(path, change(small_of("faulty:Hangs-v0"), {"env_timeout": 0.0}))
    line = [sys.executable, "-m", "pdml", *words]
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
    try:
        deadline = time.monotonic() + 120
        while not (path / "checkpoints" / "step_00000075.safetensors").exists():  # it hangs at step 90, for ever
            assert first.poll() is None, first.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for others in (["resume", str(path)], [*words, "--resume"]):
            second = pdml(*others)
            assert second.returncode == 2
            assert second.stderr == f"pdml: run-dir = '{path}': another process or agent is running it\n"
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    done = pdml("resume", str(path), FAULTY_AT="0")
    assert done.returncode == 0, done.stderr
    assert_same_but_for_the_environment(path, healthy())


def test_clock_jumps_change_nothing(healthy, tmp_path, monkeypatch):
    path, calls = tmp_path / "run", count()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + (1e9 if next(calls) % 2 else -1e9))
    assert main(words_of(path, small_of("faulty:None-v0"))) == 0
    assert next(calls) > 0
    assert_same_run(path, healthy())
    assert_same_but_for_the_environment(path, healthy())
    seconds = [line.split(",")[1] for line in (path / "timing.csv").read_text().splitlines()[1:]]
    assert [float(s) for s in seconds] == sorted(float(s) for s in seconds)
    assert 0 < float(seconds[-1]) < 1e4


def test_too_little_memory_or_disk_is_refused_with_numbers(tmp_path, monkeypatch, capsys):
    path, config = tmp_path / "run", small_of("faulty:None-v0", "mbpo")
    needed = resources.estimate(config, spaces_of(config.env).layout)
    with monkeypatch.context() as small:
        small.setattr(resources, "_available_memory", lambda: 5e8)
        small.setattr(resources, "_own_memory", lambda: 0.0)
        assert main(words_of(path, config)) == 2
        err = capsys.readouterr().err
        assert f"memory: the run needs about {round(needed.memory / 1e6)} MB at its end, 500 MB are free" in err
    assert not path.exists()
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e6))
        assert main(words_of(path, config)) == 2
        err = capsys.readouterr().err
        assert f"the run needs about {max(1, round(needed.disk / 1e6))} MB of disk at its end" in err
        assert "1 MB are free" in err
        assert err.count("\n") == 1
    assert not path.exists()


def test_what_is_needed_grows_with_the_run():
    layout = spaces_of("Hopper-v5").layout
    short, long = (
        resources.estimate(change(defaults("Hopper-v5", "pdml"), {"steps": n}), layout) for n in (20_000, 125_000)
    )
    assert all(a < b for a, b in zip(short[:-1], long[:-1], strict=True))
    assert short.first == long.first == 0  # without a lesson nothing is learned before the first step after the warm-up
    with pytest.raises(UserError, match=r"memory: the run needs about [\d.]+ GB"):
        resources.require(long._replace(memory=1e15), Path())
    line = resources.describe(long)
    assert " of memory, " in line
    assert " of disk and " in line


def test_the_work_of_a_block_of_double_horizon_learning_is_that_of_its_phases():
    """1000 updates of 3.82 GFLOP, 250 of the critics alone, and 150 epochs of six steps of 3.38 (see pdml bench)."""
    layout = spaces_of("Hopper-v5").layout
    base = defaults("Hopper-v5", "dhmbpo")
    first, one, two = (resources.estimate(change(base, {"steps": n}), layout).flop for n in (20_000, 21_000, 22_000))
    assert one - first == pytest.approx(1e9 * (1000 * 3.82 + 250 * 1.94 + 150 * 6 * 3.38), rel=0.02)
    assert two - one == pytest.approx(one - first, rel=1e-9)
    assert first == pytest.approx((15 + 5) * (one - first), rel=0.1)  # the warm-up's end makes up for five blocks


def test_a_run_of_double_horizon_learning_says_how_long_its_first_lesson_is():
    """Five blocks' work of the twenty; a run that ends within the warm-up has none."""
    layout, base = spaces_of("Hopper-v5").layout, defaults("Hopper-v5", "dhmbpo")
    long, short = (resources.estimate(change(base, {"steps": n}), layout) for n in (20_000, 4_000))
    assert long.first == pytest.approx(long.flop / 4, rel=0.05)
    assert resources.describe(long).endswith(" of it before the first evaluation")
    assert resources.estimate(change(defaults("Hopper-v5", "pdml"), {"steps": 20_000}), layout).first == 0.0
    assert (short.flop, short.first) == (0.0, 0.0)
    assert resources.describe(short).endswith("the environment's own time")


@pytest.mark.parametrize(
    ("env", "preset", "steps", "tflop"),
    [
        ("Hopper-v5", "published", 125_000, 5.000 * 3.82 + 0.25 * 1.94 + 3.105 * 13.5),  # 1 minibatch of 2048 an epoch
        ("InvertedPendulum-v5", "paper", 6000, None),
    ],
)
def test_the_first_lesson_counts_the_rows_that_there_are_then(env, preset, steps, tflop):
    layout, base = spaces_of(env).layout, defaults(env, "dhmbpo", preset)
    long, short = (resources.estimate(change(base, {"steps": n}), layout) for n in (steps, base.warmup_steps))
    assert long.first == short.first == short.flop < long.flop
    assert tflop is None or long.first == pytest.approx(1e12 * tflop, rel=0.02)
    handed = resources.estimate(change(base, {"steps": steps}), layout, prior=50_000)
    assert handed.first > 2 * long.first  # they are learned from as well


def test_a_run_says_before_its_start_what_it_needs(tmp_path, capsys):
    assert main(words_of(tmp_path / "run", small_of("faulty:None-v0"))) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith("needs about ")
    resumed = json.loads((tmp_path / "run" / "metadata.json").read_text())
    assert "resumed" not in resumed
