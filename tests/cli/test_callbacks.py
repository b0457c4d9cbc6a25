"""Callbacks of `pdml train` and `pdml resume`: the same that `Agent.learn` has, and what they end can be resumed."""

import csv
import json

import heard
import pytest
from faulty_runs import faulty_run
from tiny import assert_same_run

from pdml.api import Agent
from pdml.cli import main
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.runs.device import available_threads
from pdml.runs.session import start_run

SETTINGS = change(faulty_run("sac"), {"steps": 130, "eval_every": 50, "eval_episodes": 2, "checkpoint_every": 1000})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The run without callbacks."""
    path = tmp_path_factory.mktemp("plain") / "run"
    start_run(SETTINGS, path, 1, "pdml train")
    return path


@pytest.fixture(autouse=True)
def said(capsys):
    """Forget what was heard before; return what a command says."""
    heard.HEARD.clear()
    return capsys


def train(path, *callbacks):
    file = path.with_name("settings.json")
    file.write_text(to_json(SETTINGS))
    return main(["train", "--config", str(file), "--run-dir", str(path), *named(callbacks)])


def named(callbacks):
    return [word for callback in callbacks for word in ("--callback", callback)]


def assert_same(path, plain):
    assert_same_run(path, plain)
    for name in ("policy.safetensors", "progress.csv", "evaluations.csv"):
        assert (path / name).read_bytes() == (plain / name).read_bytes(), name


def test_they_hear_what_a_callback_in_python_hears_and_change_nothing(plain, tmp_path):
    assert train(tmp_path / "run", "heard:Listener", "heard:Listener('second')") == 0
    ours = [event[1:] for event in heard.HEARD if event[0] == ""]
    assert ours == [event[1:] for event in heard.HEARD if event[0] == "second"]
    assert [event[1] for event in ours if event[0] == "step"] == list(range(1, 131))
    assert [event[1] for event in ours if event[0] == "block"] == [80, 100, 120]
    with (plain / "progress.csv").open() as file:
        blocks = {int(row["step"]): row for row in csv.DictReader(file)}
    for _, step, row in (event for event in ours if event[0] == "block"):
        assert set(row) == set(blocks[step])
        assert len(row) > 10
        for column, cell in blocks[step].items():
            assert repr(float(row[column])) == repr(float(cell or "nan")), column
    rows = [line.split(",") for line in (plain / "evaluations.csv").read_text().splitlines()[1:]]
    means = {int(rows[i][0]): (float(rows[i][2]) + float(rows[i + 1][2])) / 2 for i in (0, 2)}
    assert {event[1]: event[2] for event in ours if event[0] == "evaluation"} == pytest.approx(means)
    assert list(means) == [100, 130]
    assert_same(tmp_path / "run", plain)
    assert (tmp_path / "run" / "DONE").exists()


def test_one_that_says_enough_stops_the_run_which_resumes_with_or_without_it(plain, tmp_path, said):
    path = tmp_path / "run"
    assert train(path, "heard:Listener", "heard:Listener(stop_at=83)") == 0
    assert said.readouterr().out.endswith(f"stopped by a callback: {path}; resume with: pdml resume {path}\n")
    assert not (path / "DONE").exists()
    assert not (path / "error.txt").exists()
    assert heard.HEARD[-1] == ("", "step", 83)
    heard.HEARD.clear()
    assert main(["resume", str(path), *named(["heard:Listener(name='again', stop_at=101)"])]) == 0
    assert [event[2] for event in heard.HEARD if event[1] == "step"] == list(range(84, 102))
    assert main(["resume", str(path)]) == 0
    assert_same(path, plain)
    metadata = json.loads((path / "metadata.json").read_text())
    assert "--callback heard:Listener --callback 'heard:Listener(stop_at=83)'" in metadata["command"]
    assert ["--callback" in resumed["command"] for resumed in metadata["resumed"]] == [True, False]


def test_one_that_fails_ends_the_run_with_a_checkpoint_and_one_line(plain, tmp_path, said):
    path = tmp_path / "run"
    assert train(path, "heard:Listener(fail_at=83)") == 1
    fault = "the callback Listener, at step 83, raised ValueError: the listener is tired"
    seen = f"; see {path / 'error.txt'}; resume with: pdml resume {path}"
    assert said.readouterr().err == f"pdml: the run failed ({fault}){seen}\n"
    told = (path / "error.txt").read_text()
    assert fault in told
    assert told.startswith("Traceback")
    assert 'heard.py", line' in told
    heard.HEARD.clear()
    assert main(["resume", str(path), "--callback", "heard:Listener"]) == 0
    assert heard.HEARD[0] == ("", "step", 84)  # no step is done twice
    assert_same(path, plain)


def test_one_of_python_that_fails_loses_no_step_either(tmp_path):
    start_run(change(SETTINGS, {"steps": 70}), tmp_path / "run", available_threads(), "pdml train")
    agent = Agent.load(tmp_path / "run")
    with pytest.raises(ValueError, match="is tired"):
        agent.learn(20, heard.Listener(fail_at=77), progress_bar=False)
    assert agent.steps == 77
    agent.close()
