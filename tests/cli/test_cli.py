"""The commands through `main(argv)`: what they write and what they print."""

import contextlib
import csv
import io
import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c
from tiny import TINY

import pdml.training.loop
from pdml.cli import main
from pdml.config.fields import leaves
from pdml.config.files import from_json
from pdml.config.parse import shown
from pdml.runs.lease import Lease
from pdml.runs.tensor_file import read_arrays
from pdml.runs.tensorboard import Board


def train(path, *words, method="pdml"):
    """Train a tiny run."""
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    tiny = [f"--{name.replace('_', '-')}={shown(value)}" for name, value in TINY.items() if name in read]
    return main(["train", "--method", method, "--run-dir", str(path), *tiny, *words])


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of PDML."""
    path = tmp_path_factory.mktemp("runs") / "a"
    assert train(path, "--archive-at", "80,120") == 0
    return path


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """The same run once more, and what it printed."""
    path, out = tmp_path_factory.mktemp("runs") / "again", io.StringIO()
    with contextlib.redirect_stdout(out):
        assert train(path, "--archive-at", "80,120") == 0
    return path, out.getvalue().splitlines()


def test_a_run_leaves_a_complete_directory(finished):
    names = {p.name for p in finished.iterdir()}
    assert names >= {"config.json", "metadata.json", "progress.csv", "evaluations.csv", "timing.csv", "DONE"}
    assert names >= {"policy.safetensors", "best_policy.safetensors", "checkpoints", "archive"}
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert "error.txt" not in names
    metadata = json.loads((finished / "metadata.json").read_text())
    assert metadata["versions"]["jax"].startswith("0.")
    assert metadata["command"].startswith("pdml")
    assert metadata["machine"]["threads"] >= 1
    assert {p.name for p in (finished / "archive").iterdir()} == {
        "step_00000080.safetensors",
        "step_00000120.safetensors",
    }
    arrays, note = read_arrays(finished / "archive" / "step_00000080.safetensors")
    assert note["step"] == 80
    assert any(name.startswith("model") for name in arrays)
    assert any(name.startswith("agent.actor") for name in arrays)
    assert len(arrays["replay.rows"]) == 80


def tensorboard_events(path):
    """Read the events of a file; their checksums are right."""
    content, at, found = path.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        head, body = content[at : at + 8], content[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", content, at + 8) == (masked_crc32c(head),)
        assert struct.unpack_from("<I", content, at + 12 + length) == (masked_crc32c(body),)
        found.append(event_pb2.Event.FromString(body))
        at += 16 + length
    return found


def test_tensorboard_has_the_numbers_of_progress(finished):
    (file,) = finished.glob("events.out.tfevents*")
    events = tensorboard_events(file)
    assert events[0].file_version == "brain.Event:2"
    shown = {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}
    table = rows(finished / "progress.csv")
    for row in table:
        numbers = {name: float(text) for name, text in row.items() if "/" in name and text not in ("", "nan")}
        assert len(numbers) > 10
        for name, number in numbers.items():
            assert shown[int(row["step"]), name] == pytest.approx(number, rel=1e-6), name


def test_tensorboard_discards_what_came_after_the_step_of_a_resumed_run(tmp_path):
    lease = Lease(tmp_path)
    Board(lease, 100).add({"a/b": 1.5}, 120)
    lease.free()
    (file,) = tmp_path.glob("events.out.tfevents*.100")
    first, start, event = tensorboard_events(file)
    assert first.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (101, event_pb2.SessionLog.START)
    assert (event.step, [(value.tag, value.simple_value) for value in event.summary.value]) == (120, [("a/b", 1.5)])


def test_progress_has_a_row_per_block_with_both_counts_and_all_metrics(finished):
    table = rows(finished / "progress.csv")
    assert [int(r["step"]) for r in table] == [80, 100, 120, 140, 160]
    assert [int(r["steps_after_warmup"]) for r in table] == [20, 40, 60, 80, 100]
    evaluations = rows(finished / "evaluations.csv")
    spent = np.cumsum([sum(int(e["length"]) for e in evaluations if e["step"] == s) for s in ("80", "120", "160")])
    assert [int(r["evaluation_steps"]) for r in table] == [spent[0], spent[0], spent[1], spent[1], spent[2]]
    for name in ("mixture_shift", "uniform_shift", "effective_size", "newest_share", "shift_min", "shift_max"):
        assert f"weights/{name}" in table[0]
    last = table[-1]
    assert float(last["weights/mixture_shift"]) <= float(last["weights/uniform_shift"])
    assert float(last["model/holdout_error"]) > 0
    returns = [float(e["return"]) for e in evaluations if e["step"] == "160"]
    assert float(last["eval/return"]) == pytest.approx(np.mean(returns))


def test_evaluations_list_every_episode(finished):
    table = rows(finished / "evaluations.csv")
    assert [(r["step"], r["episode"]) for r in table] == [(s, e) for s in ("80", "120", "160") for e in ("0", "1")]
    assert list(table[0]) == ["step", "episode", "return", "length"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_files_and_another_seed_others(finished, repeated, tmp_path):
    for name in ("progress.csv", "evaluations.csv"):
        assert (repeated[0] / name).read_bytes() == (finished / name).read_bytes()
    config = str(finished / "config.json")
    assert main(["train", "--config", config, "--seed", "1", "--run-dir", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "progress.csv").read_bytes() != (finished / "progress.csv").read_bytes()
    ours = from_json((finished / "config.json").read_text(), "")
    theirs = from_json((tmp_path / "other" / "config.json").read_text(), "")
    assert theirs.learning.seed == 1
    assert ours.learning.seed == 0


def test_what_is_evaluated_or_archived_changes_nothing_that_is_learned(finished, tmp_path):
    """Randomness is addressed: with fewer evaluations and no archive, the other columns are the same."""
    assert train(tmp_path / "quiet", "--eval-every", "80") == 0
    loud, quiet = rows(finished / "progress.csv"), rows(tmp_path / "quiet" / "progress.csv")
    for a, b in zip(loud, quiet, strict=True):
        for name in a:
            if not name.startswith("eval"):
                assert a[name] == b[name], name
    kept = [r for r in rows(finished / "evaluations.csv") if r["step"] in ("80", "160")]
    assert rows(tmp_path / "quiet" / "evaluations.csv") == kept


def test_a_short_last_block_has_its_row(tmp_path):
    assert train(tmp_path / "run", "--steps", "153", "--eval-every", "51") == 0
    table, evaluations = rows(tmp_path / "run" / "progress.csv"), rows(tmp_path / "run" / "evaluations.csv")
    assert [r["step"] for r in table] == ["80", "100", "120", "140", "153"]
    assert int(table[-1]["evaluation_steps"]) == sum(int(e["length"]) for e in evaluations)
    assert float(table[-1]["eval/return"]) == np.mean([float(e["return"]) for e in evaluations if e["step"] == "153"])
    assert 0 < float(table[-1]["agent/temperature"]) < 2


def test_without_evaluation_episodes_training_episodes_are_reported(tmp_path):
    assert train(tmp_path / "run", "--eval-episodes", "0") == 0
    table = rows(tmp_path / "run" / "progress.csv")
    assert {r["evaluation_steps"] for r in table} == {"0"}
    evaluations = rows(tmp_path / "run" / "evaluations.csv")
    assert 0 < sum(int(r["length"]) for r in evaluations) < 110  # of the 100 learning steps, not of the 60 random ones
    assert {r["step"] for r in evaluations} <= {"80", "120", "160"}
    note = read_arrays(tmp_path / "run" / "best_policy.safetensors")[1]  # by the same episodes
    assert note["return"] == np.mean([float(r["return"]) for r in evaluations if int(r["step"]) == note["step"]])


def test_eval_prints_every_episode_and_repeats_itself(finished, capsys):
    assert main(["eval", str(finished), "--episodes", "3"]) == 0
    first = capsys.readouterr().out
    assert first.count("episode ") == 3
    assert "policy of step 160: mean return" in first
    assert main(["eval", str(finished), "--episodes", "3"]) == 0
    assert capsys.readouterr().out == first
    assert main(["eval", str(finished), "--episodes", "3", "--stochastic"]) == 0
    assert capsys.readouterr().out != first
    others = []
    for _ in range(2):
        assert main(["eval", str(finished), "--episodes", "3", "--seed", "1"]) == 0
        others.append(capsys.readouterr().out)
    assert others[0] == others[1] != first


def test_eval_of_the_best_policy_repeats_the_evaluation_that_made_it_the_best(finished, capsys):
    note = read_arrays(finished / "best_policy.safetensors")[1]
    table = [r for r in rows(finished / "evaluations.csv") if int(r["step"]) == note["step"]]
    assert note["return"] == pytest.approx(np.mean([float(r["return"]) for r in table]))
    assert main(["eval", str(finished), "--episodes", "2", "--policy", "best"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        f"episode {i}  return {float(r['return']):.1f}  length {r['length']}" for i, r in enumerate(table)
    ]
    assert lines[2].startswith(f"best policy, of step {note['step']}: mean return {note['return']:.1f}, ")
    assert main(["eval", str(finished), "--episodes", "2", "--policy", "last"]) == 0
    last = capsys.readouterr().out
    assert main(["eval", str(finished), "--episodes", "2"]) == 0
    assert capsys.readouterr().out == last
    assert "policy of step 160" in last


def test_a_run_says_what_it_needs_and_without_a_terminal_prints_a_line_per_evaluation(repeated):
    path, out = repeated
    assert out[0] == f"pdml on InvertedPendulum-v5, 160 steps, seed 0: {path}"
    assert out[1].startswith("needs about ")
    shown = [line for line in out if line.startswith("step ")]
    assert len(shown) == 3
    assert shown[0].endswith("  - left")  # the first block is not typical
    assert shown[2].endswith("  0 s left")
    assert out[-1] == f"done: {path}"
    assert "resumed" not in json.loads((path / "metadata.json").read_text())


@pytest.mark.parametrize(("what", "word"), [("envs", "Humanoid-v4"), ("methods", "MBPO"), ("presets", "paper")])
def test_list(what, word, capsys):
    assert main(["list", what]) == 0
    assert word in capsys.readouterr().out


def test_help_shows_the_defaults_of_the_environment_without_importing_jax():
    code = (
        "import sys, pdml.cli\n"
        "try: pdml.cli.main(['train', '--env', 'Hopper-v5', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'jax', 'gymnasium'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--mixture.rate" in done.stdout
    assert "real steps in all, warm-up included (default: 125000)" in " ".join(done.stdout.split())


def test_module_and_version():
    done = subprocess.run([sys.executable, "-m", "pdml", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pdml ")


def test_a_directory_that_holds_a_run_or_lies_below_a_file_is_refused(finished, tmp_path, capsys):
    before = (finished / "progress.csv").read_bytes()
    assert train(finished) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert (finished / "progress.csv").read_bytes() == before
    (tmp_path / "file").write_text("")
    assert train(tmp_path / "file" / "run") == 2
    assert "is a file, a directory is needed" in capsys.readouterr().err


def test_another_environment_than_the_files_is_refused(finished, tmp_path, capsys):
    words = ["train", "--config", str(finished / "config.json"), "--run-dir", str(tmp_path / "x")]
    assert main([*words, "--env", "Hopper-v5"]) == 2
    assert "belong to 'InvertedPendulum-v5'" in capsys.readouterr().err


def test_the_file_of_another_method_is_named_where_it_does_not_fit(finished, tmp_path, capsys):
    words = ["train", "--config", str(finished / "config.json"), "--method", "mbpo", "--run-dir", str(tmp_path / "x")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "config.json' does not fit --method mbpo: mixture.first_block: method 'mbpo' has no such option" in error


def test_a_model_free_run_leaves_the_same_files(tmp_path):
    path = tmp_path / "run"
    assert train(path, "--steps", "120", "--eval-episodes", "1", method="sac") == 0
    table = rows(path / "progress.csv")
    assert [int(r["step"]) for r in table] == [80, 100, 120]
    assert not any(name.startswith(("model/", "imagined/", "weights/")) for name in table[0])
    assert len(rows(path / "evaluations.csv")) == 2
    assert (path / "DONE").exists()
    assert main(["eval", str(path), "--episodes", "1"]) == 0


def test_eval_of_a_damaged_policy_is_one_line(finished, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text((finished / "config.json").read_text())
    for content in (b"", b"garbage" * 100, (finished / "policy.safetensors").read_bytes()[:500]):
        (run / "policy.safetensors").write_bytes(content)
        assert main(["eval", str(run)]) == 2
        assert "cannot be read as a file of this package" in capsys.readouterr().err


def test_a_run_that_fails_says_so_and_keeps_what_it_wrote(tmp_path, monkeypatch, capsys):
    real, count = pdml.training.loop.advance_episode, [0]

    def advance_episode(*args):
        count[0] += 1
        if count[0] > 110:
            raise RuntimeError("the motor is on fire")
        return real(*args)

    monkeypatch.setattr(pdml.training.loop, "advance_episode", advance_episode)
    assert train(tmp_path / "run") == 1
    assert "the motor is on fire" in capsys.readouterr().err
    assert "the motor is on fire" in (tmp_path / "run" / "error.txt").read_text()
    assert not (tmp_path / "run" / "DONE").exists()
    assert len(rows(tmp_path / "run" / "progress.csv")) == 2
