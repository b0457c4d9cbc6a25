"""The committed results: complete, and what is said about them is what they say."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from pdml.cli import main
from pdml.config.methods import METHODS
from pdml.reporting.read import differences, read_all, returns

ROOT = Path(__file__).parents[2]
PENDULUM = ROOT / "results" / "InvertedPendulum-v5"
HOPPER = ROOT / "results" / "Hopper-v5"
DOUBLE = [name for name, method in METHODS.items() if method.is_double_horizon]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_three_complete_seeds_on_the_pendulum(method):
    runs, budgets = read_all([PENDULUM / method]), {"sac": 20_000, **dict.fromkeys(DOUBLE, 6000)}
    assert [run.config.seed for run in runs] == [0, 1, 2]
    for run in runs:
        assert run.config.method == method
        assert differences(run) == []
        assert run.status == "done"
        assert run.problems == ()
        assert run.options.steps == budgets.get(method, 4000)
        metadata = json.loads((run.path / "metadata.json").read_text())
        assert f"--method {method} --seed {run.config.seed}" in metadata["command"]
        assert metadata["modified"] is False


@pytest.mark.parametrize("method", ["pdml", "mbpo", "sac", "redq", *DOUBLE])
def test_these_methods_reach_950_on_every_seed(method):
    for run in read_all([PENDULUM / method]):
        assert returns(run).values.max() >= 950


@pytest.mark.parametrize("method", DOUBLE)
def test_double_horizon_learning_has_its_complete_seeds_on_hopper(method):
    runs = read_all([HOPPER / method])
    assert [run.config.seed for run in runs] == [0, 1, 2, 3]
    for run in runs:
        assert (run.config.method, run.options.steps, differences(run)) == (method, 20_000, [])
        assert (run.status, run.problems) == ("done", ())
        assert json.loads((run.path / "metadata.json").read_text())["modified"] is False


@pytest.mark.parametrize("arm", ["model", "starts"])
def test_the_arms_with_weights_in_one_place_have_their_complete_seeds_on_hopper(arm):
    runs = read_all([HOPPER / f"pdml-dhmbpo-{arm}"])
    assert [run.config.seed for run in runs] == [0, 1, 2, 3]
    for run in runs:
        assert (run.config.method, run.config.weigh, run.options.steps) == ("pdml-dhmbpo", arm, 20_000)
        assert len(differences(run)) == 1
        assert (run.status, run.problems) == ("done", ())
        assert json.loads((run.path / "metadata.json").read_text())["modified"] is False


COMMANDS = {
    PENDULUM: ["pdml summary results/InvertedPendulum-v5"],
    HOPPER: [
        "pdml summary results/Hopper-v5 --goal 3000 --last 5",
        "pdml summary results/Hopper-v5 --goal 3000 --last 1",
        "pdml summary results/Hopper-v5 --goal 3000 --last 1 --until 10000",
        "pdml summary results/Hopper-v5 --goal 3000 --last 16",
    ],
}


@pytest.mark.parametrize(("page", "command"), [(page, command) for page in COMMANDS for command in COMMANDS[page]])
def test_a_page_shows_the_table_that_its_command_prints(page, command, monkeypatch, capsys):
    text = (page / "README.md").read_text()
    assert re.findall(r"`(pdml summary [^`]*)`", text) == COMMANDS[page]
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\n|") > 3
    assert printed in text.partition(f"`{command}`")[2]


def test_the_last_column_but_one_is_the_mean_of_the_last_evaluation(capsys):
    assert main(["summary", str(PENDULUM)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| pdml |"))
    with (PENDULUM / "pdml" / "seed_0" / "evaluations.csv").open() as file:
        last = [float(row["return"]) for row in csv.DictReader(file) if row["step"] == "4000"]
    assert line.split("|")[3].strip() == f"{sum(last) / len(last):.0f}"
