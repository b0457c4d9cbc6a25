"""The committed results: complete, and what is said about them is what they say."""

import csv
import json
import runpy
from pathlib import Path

import pytest

from pdml.config.schema import DOUBLE, METHODS
from pdml.reporting.read import differences, read_all, returns

RESULTS = Path(__file__).parents[2] / "results"
PENDULUM = RESULTS / "InvertedPendulum-v5"
HOPPER = RESULTS / "Hopper-v5"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_three_complete_seeds_on_the_pendulum(method):
    runs, budgets = read_all([PENDULUM / method]), {"sac": 20_000, **dict.fromkeys(DOUBLE, 6000)}
    assert [run.config.seed for run in runs] == [0, 1, 2]
    for run in runs:
        assert run.config.method == method
        assert differences(run.config) == []
        assert run.status == "done"
        assert run.problems == ()
        assert run.config.steps == budgets.get(method, 4000)
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
        assert (run.config.method, run.config.steps, differences(run.config)) == (method, 20_000, [])
        assert (run.status, run.problems) == ("done", ())
        assert json.loads((run.path / "metadata.json").read_text())["modified"] is False


@pytest.mark.parametrize("arm", ["model", "starts"])
def test_the_arms_with_weights_in_one_place_have_their_complete_seeds_on_hopper(arm):
    runs = read_all([HOPPER / f"pdml-dhmbpo-{arm}"])
    assert [run.config.seed for run in runs] == [0, 1, 2, 3]
    for run in runs:
        assert (run.config.method, run.config.weigh, run.config.steps) == ("pdml-dhmbpo", arm, 20_000)
        assert len(differences(run.config)) == 1
        assert (run.status, run.problems) == ("done", ())
        assert json.loads((run.path / "metadata.json").read_text())["modified"] is False


@pytest.mark.parametrize(
    ("page", "options"),
    [
        (PENDULUM, {}),
        *((HOPPER, {"goal": 3000.0, "last": last}) for last in (5, 1, 16)),
        (HOPPER, {"goal": 3000.0, "last": 1, "until": 10_000}),
    ],
)
def test_the_page_shows_the_table_that_the_files_give(page, options):
    table = runpy.run_path(str(RESULTS / "summary.py"))["table"](page, **options)
    assert table in (page / "README.md").read_text()


def test_the_last_column_but_one_is_the_mean_of_the_last_evaluation():
    table = runpy.run_path(str(RESULTS / "summary.py"))["table"](PENDULUM)
    line = next(line for line in table.splitlines() if line.startswith("| pdml |"))
    with (PENDULUM / "pdml" / "seed_0" / "evaluations.csv").open() as file:
        last = [float(row["return"]) for row in csv.DictReader(file) if row["step"] == "4000"]
    assert line.split("|")[3].strip() == f"{sum(last) / len(last):.0f}"
