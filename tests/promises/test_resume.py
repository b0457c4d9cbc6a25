"""A run that was stopped or damaged resumes as if nothing had happened; what cannot be resumed is refused."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_files import assert_same_files
from tiny import tiny_of

from pdml.cli import main, train
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.core.errors import UserError
from pdml.envs.env_spec import spec_of
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.session import LiveRun, resume_run, start_run
from pdml.runs.tensor_file import read_arrays, write_arrays

OLD_RUN = Path(__file__).parents[1] / "support" / "old_run"
SMALL = {"checkpoint_every": 25, "eval_episodes": 0, "steps": 120}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run that is done quickly, with checkpoints at steps 100 and 120, and its settings."""
    path, settings = tmp_path_factory.mktemp("small") / "run", change(tiny_of("sac"), SMALL)
    start_run(settings, path, 1, "pdml train")
    return path, settings


@pytest.fixture
def copied(small, tmp_path):
    """The small run as if it had been killed just after its last checkpoint."""
    path = tmp_path / "run"
    shutil.copytree(small[0], path)
    (path / "DONE").unlink()
    return path


def loads(path, settings):
    """Load a run; return its step and what was said."""
    said = []
    live = LiveRun.load(path, settings, spec_of(settings), said.append)
    live.close()
    return live.state.step, said


def flip(file, place, bit):
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def header(file):
    """Return where the arrays begin."""
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 0.9999])
def test_a_truncated_checkpoint_is_found_and_the_one_before_is_used(share, copied, small):
    file = saved_checkpoints(copied)[0]
    os.truncate(file, int(share * file.stat().st_size))
    step, said = loads(copied, small[1])
    assert step == 100
    assert said == [f"'{file}' cannot be read as a file of this package; trying the one before"]


@pytest.mark.parametrize("where", ["length", "first name", "note", "first number", "middle", "last number"])
def test_a_flipped_bit_is_found_and_the_one_before_is_used(where, copied, small):
    file = saved_checkpoints(copied)[0]
    content, start = file.read_bytes(), header(file)
    place = {
        "length": 0,
        "first name": content.index(b"agent."),
        "note": content.index(b"evaluation_steps") + 3,
        "first number": start,
        "middle": (start + len(content)) // 2,
        "last number": len(content) - 1,
    }[where]
    flip(file, place, 1)
    step, said = loads(copied, small[1])
    assert step == 100
    assert len(said) == 1
    assert said[0].startswith(f"'{file}' ")
    assert said[0].endswith("; trying the one before")


def test_no_flipped_bit_changes_what_is_read(small, tmp_path):
    """Of six hundred, in all parts of the file: found, or without meaning (the last digit of a long number)."""
    source, rng, found = saved_checkpoints(small[0])[0], random.Random(0), 0
    content, start = source.read_bytes(), header(source)
    arrays, note = read_arrays(source)
    places = [rng.randrange(start) for _ in range(500)] + [rng.randrange(start, len(content)) for _ in range(100)]
    file = tmp_path / "flipped.safetensors"
    for place in places:
        file.write_bytes(content)
        flip(file, place, rng.randrange(8))
        try:
            others, noted = read_arrays(file)
        except UserError:
            found += 1
            continue
        assert repr(noted) == repr(note)
        assert {k: a.tobytes() for k, a in others.items()} == {k: a.tobytes() for k, a in arrays.items()}
    assert found > 550


def test_a_run_whose_last_checkpoint_is_damaged_ends_as_it_did(copied, small):
    file = saved_checkpoints(copied)[0]
    flip(file, file.stat().st_size // 2, 4)
    said = []
    resume_run(copied, None, 1, "pdml resume", said.append)
    assert [line for line in said if "may differ" not in line] == [
        f"'{file}' is damaged: its checksum does not fit; trying the one before"
    ]
    assert_same_files(copied, small[0])


def test_a_resumed_run_uses_its_threads_and_names_what_is_not_as_it_was(copied, monkeypatch, capsys):
    file, prepared = copied / "metadata.json", []
    known = json.loads(file.read_text())
    now = known["versions"]["jax"]
    known["versions"]["jax"], known["machine"]["threads"] = "0.0", 2
    file.write_text(json.dumps(known))
    monkeypatch.setattr(train, "available_threads", lambda: 2)
    monkeypatch.setattr(train, "prepare", lambda threads: prepared.append(threads) or threads)
    assert main(["resume", str(copied)]) == 0
    assert prepared == [2]
    said = [line for line in capsys.readouterr().err.splitlines() if "may differ" in line]
    assert [line for line in said if "xla_flags" not in line] == [
        f"pdml: jax is {now}, was 0.0: the last bits may differ from an unbroken run"
    ]


def test_a_foreign_checkpoint_is_found_and_the_one_before_is_used(copied, small, tmp_path):
    other = change(small[1], {"seed": 1, "steps": 75})
    start_run(other, tmp_path / "other", 1, "pdml train")
    foreign = copied / "checkpoints" / "step_00000125.safetensors"
    shutil.copy(saved_checkpoints(tmp_path / "other")[0], foreign)
    said = []
    resume_run(copied, None, 1, "pdml resume", said.append)
    assert f"'{foreign}' is of another run: its seed is not this run's; trying the one before" in said
    assert_same_files(copied, small[0])


def test_a_file_that_is_no_checkpoint_is_found(copied, small):
    file = saved_checkpoints(copied)[0]
    write_arrays(file, {"a": np.zeros(3)}, {"step": 120})
    step, said = loads(copied, small[1])
    assert step == 100
    assert said == [f"'{file}' is of another run: it has no configuration; trying the one before"]


def test_with_both_damaged_there_is_a_clear_refusal_and_nothing_is_lost(copied, capsys):
    for file in saved_checkpoints(copied):
        os.truncate(file, 1000)
    before = {file: file.read_bytes() for file in copied.rglob("*.csv")}
    assert main(["resume", str(copied)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (
        f"pdml: run = '{copied}': cannot be resumed, none of its 2 checkpoints is readable; start a new run"
    )
    assert len(said) == 3
    assert {file: file.read_bytes() for file in before} == before


def test_the_two_kept_checkpoints_share_no_file(small):
    names = [file.name for file in saved_checkpoints(small[0])]
    assert names == ["step_00000120.safetensors", "step_00000100.safetensors"]
    assert {file.name for file in (small[0] / "checkpoints").iterdir()} == set(names)
    assert len({file.stat().st_ino for file in saved_checkpoints(small[0])}) == 2


def test_a_csv_that_lost_rows_of_the_checkpoint_is_refused(copied, capsys):
    os.truncate(copied / "progress.csv", 10)
    assert main(["resume", str(copied)]) == 2
    assert "progress.csv is shorter than at its checkpoint" in capsys.readouterr().err


def test_train_with_resume_starts_resumes_or_has_nothing_to_do(small, tmp_path, capsys):
    path = tmp_path / "run"
    (tmp_path / "config.json").write_text(to_json(small[1]))
    words = ["train", "--config", str(tmp_path / "config.json"), "--run-dir", str(path), "--resume"]
    assert main(words) == 0  # not there yet
    assert_same_files(path, small[0])
    assert main(words) == 0  # done
    assert capsys.readouterr().out.splitlines()[-1] == f"done already: {path}"
    (path / "DONE").unlink()
    saved_checkpoints(path)[0].unlink()
    assert main(words) == 0  # stopped
    assert_same_files(path, small[0])
    assert main([*words, "--seed", "3"]) == 2  # another one
    assert f"run-dir = '{path}': its run has seed = 0, not 3" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2
    assert "--resume needs --run-dir" in capsys.readouterr().err


def test_a_run_that_is_done_is_not_resumed_but_extended(small, tmp_path, capsys):
    path = tmp_path / "run"
    start_run(change(small[1], {"steps": 90}), path, 1, "pdml train")
    assert main(["resume", str(path)]) == 2
    assert "is done at 90 steps; go further with --steps" in capsys.readouterr().err
    assert main(["resume", str(path), "--steps", "80"]) == 2
    assert "steps = 80: the run is meant to have 90; give more" in capsys.readouterr().err
    assert main(["resume", str(path), "--steps", "120"]) == 0
    assert_same_files(path, small[0])


@pytest.mark.slow
def test_a_run_that_learns_between_blocks_keeps_the_weights_of_its_last_block(tmp_path):
    settings = change(tiny_of("pdml-dhmbpo"), {"steps": 100, "checkpoint_every": 20})
    start_run(settings, tmp_path / "run", 1, "pdml train")
    resume_run(tmp_path / "run", 120, 1, "pdml resume", lambda line: None)
    start_run(change(settings, {"steps": 120}), tmp_path / "whole", 1, "pdml train")
    for path in (tmp_path / "run", tmp_path / "whole"):
        saved_checkpoints(path)[1].unlink()  # of the run that was meant to be shorter
    assert_same_files(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_run_of_an_older_version_is_reported_resumed_and_started_from(tmp_path):
    """A run of commit 271acd8, before the packages had their present names."""
    path = tmp_path / "run"
    shutil.copytree(OLD_RUN, path)
    assert main(["report", str(path), "--out", str(tmp_path / "report.html"), "--no-frames"]) == 0
    before = {name: (path / name).read_text() for name in ("evaluations.csv", "timing.csv")}
    assert main(["resume", str(path), "--steps", "60"]) == 0
    assert (path / "DONE").exists()
    for name, text in before.items():
        after = (path / name).read_text()
        assert after.startswith(text)
        assert after.count("\n") == text.count("\n") + 1  # one block more, and one evaluation
    old = read_arrays(saved_checkpoints(OLD_RUN)[0])[0]
    new = read_arrays(saved_checkpoints(path)[0])[0]
    assert {name for name in new if not name.startswith("best.")} == set(old)  # there was no best policy then
    assert np.array_equal(new["replay.rows"][:50], old["replay.rows"])
    words = ["train", "--config", str(path / "config.json"), "--steps", "12", "--start-from", str(OLD_RUN)]
    assert main([*words, "--run-dir", str(tmp_path / "next"), "--threads", "1"]) == 0
