"""The commands through `main(argv)`, what they write, and what they say about mistakes."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from pdml.cli import main
from pdml.config.validate import from_json
from pdml.runs import checkpoint

TINY = """
    --steps 160 --warmup-steps 60 --model-every 20 --epoch-steps 40 --updates-per-step 2 --batch-size 32
    --eval-every 40 --eval-episodes 2 --agent.hidden-sizes 16 --dynamics.num-members 3 --dynamics.num-elites 2
    --dynamics.hidden-sizes 16 --dynamics.weight-decay 1e-5,1e-5 --dynamics.batch-size 32
    --dynamics.max-epochs 4 --rollouts.batch 40
"""
PDML = ["--mixture.first-block", "2", "--mixture.reservoir", "96"]


def train(path, *words, method="pdml"):
    extra = PDML if method == "pdml" else []
    return main(["train", "--method", method, "--run-dir", str(path), *TINY.split(), *extra, *words])


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    assert train(path, "--archive-at", "80,120") == 0
    return path


def test_a_run_leaves_a_complete_directory(finished):
    names = {p.name for p in finished.iterdir()}
    assert names >= {"config.json", "metadata.json", "progress.csv", "evaluations.csv", "timing.csv", "DONE"}
    assert names >= {"policy.safetensors", "checkpoints", "archive"}
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
    arrays, note = checkpoint.read_arrays(finished / "archive" / "step_00000080.safetensors")
    assert note["step"] == 80
    assert any(name.startswith("model") for name in arrays)
    assert any(name.startswith("agent.actor") for name in arrays)
    assert len(arrays["replay.rows"]) == 80


def test_progress_has_a_row_a_block_with_both_counts_and_all_metrics(finished):
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


def test_the_same_seed_gives_the_same_files_and_another_seed_others(finished, tmp_path):
    assert train(tmp_path / "again", "--archive-at", "80,120") == 0
    for name in ("progress.csv", "evaluations.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (finished / name).read_bytes()
    config = str(finished / "config.json")
    assert main(["train", "--config", config, "--seed", "1", "--run-dir", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "progress.csv").read_bytes() != (finished / "progress.csv").read_bytes()
    ours = from_json((finished / "config.json").read_text(), "")
    theirs = from_json((tmp_path / "other" / "config.json").read_text(), "")
    assert theirs.seed == 1
    assert ours.seed == 0


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
    words = ("--steps", "153", "--eval-every", "51", "--model-every", "40")
    assert train(tmp_path / "run", *words, method="mbpo") == 0
    table, evaluations = rows(tmp_path / "run" / "progress.csv"), rows(tmp_path / "run" / "evaluations.csv")
    assert [r["step"] for r in table] == ["100", "140", "153"]
    assert int(table[-1]["evaluation_steps"]) == sum(int(e["length"]) for e in evaluations)
    assert float(table[-1]["eval/return"]) == np.mean([float(e["return"]) for e in evaluations if e["step"] == "153"])
    assert 0 < float(table[-1]["agent/temperature"]) < 2


def test_without_evaluation_episodes_training_episodes_are_reported(tmp_path):
    assert train(tmp_path / "run", "--eval-episodes", "0", method="mbpo") == 0
    table = rows(tmp_path / "run" / "progress.csv")
    assert {r["evaluation_steps"] for r in table} == {"0"}
    evaluations = rows(tmp_path / "run" / "evaluations.csv")
    assert 0 < sum(int(r["length"]) for r in evaluations) < 110  # of the 100 learning steps, not of the 60 random ones
    assert {r["step"] for r in evaluations} <= {"80", "120", "160"}


def test_eval_prints_every_episode_and_repeats_itself(finished, capsys):
    assert main(["eval", str(finished), "--episodes", "3"]) == 0
    first = capsys.readouterr().out
    assert first.count("episode ") == 3
    assert "policy of step 160: mean return" in first
    assert main(["eval", str(finished), "--episodes", "3"]) == 0
    assert capsys.readouterr().out == first
    assert main(["eval", str(finished), "--episodes", "3", "--stochastic"]) == 0
    assert capsys.readouterr().out != first


def test_lines_where_there_is_no_terminal(tmp_path, capsys):
    assert train(tmp_path / "run") == 0
    out = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step ") for line in out) == 3
    assert out[-1] == f"done: {tmp_path / 'run'}"


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


BAD = [
    ("train --env Hoper-v5", "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
    ("train --env CartPole-v1", "action space is Discrete"),
    ("train --env Pusher-v4", "needs mujoco < 3"),
    ("train --env Hopper-v2", "env = 'Hopper-v2': this version is not supported; take Hopper-v5 or Hopper-v4"),
    ("train --env=", "env = '': no such environment"),
    ("train --method pmdl", "method = 'pmdl': unknown (did you mean pdml?); allowed: pdml, mbpo"),
    ("train --method decay-mbpo --mixture.decay 1.5", "mixture.decay = 1.5: must lie in (0, 1]"),
    ("train --method decay-mbpo --mixture.decay 0", "mixture.decay = 0.0: must lie in (0, 1]"),
    ("train --method sac --dynamics.patience 3", "dynamics.patience: method 'sac' has no such option"),
    ("train --method vagram --ampo.penalty 1", "ampo.penalty: method 'vagram' has no such option; it belongs to ampo"),
    ("train --mixture.misaligned maybe", "--mixture.misaligned = 'maybe': must be true or false"),
    ("train --method mbpo --mixture.decay 0.98", "mixture.decay: method 'mbpo' has no such option"),
    (
        "train --method sac --real-ratio 0.05",
        "real_ratio: method 'sac' has no such option; it belongs to the MBPO-family",
    ),
    ("train --method PDML", "method = 'PDML': unknown (did you mean pdml?)"),
    ("bench --method pddl", "method = 'pddl': unknown (did you mean pdml?)"),
    ("train --preset releasd", "preset = 'releasd': unknown (did you mean released?)"),
    ("train --preset papr", "preset = 'papr': unknown (did you mean paper?)"),
    ("train --mixture.rat 0.1", "--mixture.rat: unknown field (did you mean mixture.rate?)"),
    ("train --mixture.rate 1.5", "mixture.rate = 1.5: must lie in [0, 1)"),
    ("train --mixture.rate much", "--mixture.rate = 'much': must be a number"),
    ("train --steps -5", "steps = -5: must lie in [1, inf)"),
    ("train --steps 400", "steps = 400: must be above the warm-up of 500 steps"),
    ("train --steps 1.5", "--steps = '1.5': must be a whole number"),
    ("train --steps inf", "--steps = 'inf': must be a whole number"),
    ("train --batch-size 0", "batch_size = 0: must lie in [2, inf)"),
    (
        "train --agent.hidden-sizes 16,x",
        "--agent.hidden_sizes = '16,x': must be a comma-separated list of whole numbers",
    ),
    ("train --method mbpo --mixture.rate 0.1", "mixture.rate: method 'mbpo' has no such option"),
    ("train --steps", "argument --steps: expected one argument"),
    ("train Hopper-v5", "'Hopper-v5': pdml train has no such argument"),
    ("train --threads 0", "threads = '0': must be a whole number in [1, "),
    ("train --threads 4096", "threads = 4096: must lie in [1, "),
    ("train --config nowhere.json", "config = 'nowhere.json': cannot be read"),
    ("eval nowhere --seed 4294967296", "seed = '4294967296': must be a whole number in [0, 4294967295]"),
    ("eval nowhere --episodes ²", "episodes = '²': must be a whole number"),
    ("train --run-dir " + "x" * 300, "cannot be used (File name too long)"),
    ("train --warmup-steps 1", "warmup_steps = 1: must lie in [2, inf)"),
    ("eval nowhere", "run = 'nowhere': no run there"),
    ("eval", "the following arguments are required: RUN"),
    ("list colours", "invalid choice: 'colours'"),
    ("", "the following arguments are required: COMMAND"),
    ("trian", "invalid choice: 'trian'"),
    ("bench --threads many", "threads = 'many': must be a whole number"),
]


@pytest.mark.parametrize(("words", "sentence"), BAD)
def test_mistakes_get_one_line_exit_code_2_and_leave_nothing(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


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
    words = "--steps 120 --warmup-steps 60 --model-every 20 --eval-every 40 --eval-episodes 1 --batch-size 32"
    path = tmp_path / "run"
    assert main(["train", "--method", "sac", "--run-dir", str(path), "--agent.hidden-sizes", "16", *words.split()]) == 0
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
    import pdml.training.loop

    def broken(*args):
        raise RuntimeError("the motor is on fire")

    real = pdml.training.loop.advance
    count = [0]

    def advance(*args):
        count[0] += 1
        return broken() if count[0] > 110 else real(*args)

    monkeypatch.setattr(pdml.training.loop, "advance", advance)
    assert train(tmp_path / "run") == 1
    assert "the motor is on fire" in capsys.readouterr().err
    assert "the motor is on fire" in (tmp_path / "run" / "error.txt").read_text()
    assert not (tmp_path / "run" / "DONE").exists()
    assert len(rows(tmp_path / "run" / "progress.csv")) == 2
