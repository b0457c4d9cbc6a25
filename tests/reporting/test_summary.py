"""Runs in a few numbers: by hand, beside the published ones, and with notes on what is left out."""

import math

import numpy as np
import pytest
from csv_rows import NAN, drawn, pick, read_back
from fake_runs import write_run, write_seeds

from pdml.cli import main
from pdml.reporting import published, read, summary
from pdml.reporting.figures import KINDS
from pdml.reporting.rows import other_rows, write_rows
from pdml.reporting.seed_table import seed_table, short_table


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    path = tmp_path_factory.mktemp("tasks")
    for env in ("Hopper-v5", "InvertedPendulum-v5"):
        scale = published.scale(env)
        assert scale is not None
        ours = (0.7, 0.85, 1.1, 0.95, 0.3) if env == "Hopper-v5" else (0.9, 0.8, 1.2)
        for method, scores in (("pdml", ours), ("mbpo", (0.4, 0.8))):
            returns = [[0.0, scale.zero + score * (scale.one - scale.zero)] for score in scores]
            write_seeds(path / env, method, returns, env=env, steps=2000)
    return path


def test_aggregates_by_hand_and_as_drawn(two_tasks, tmp_path):
    found = summary.aggregates(read.read_all([two_tasks]))
    write_rows(tmp_path / "rows.csv", found.rows)
    rows = read_back(tmp_path / "rows.csv")
    values = {(row["statistic"], row["curve"]): row["mean"] for row in rows}
    assert values["iqm", "pdml"] == pytest.approx(np.mean([0.8, 0.85, 0.9, 0.95]))  # of eight two are cut on each side
    assert values["iqm", "mbpo"] == pytest.approx(0.6)
    assert values["optimality_gap", "pdml"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.15 + 0.05 + 0.7) / 8)
    assert values["optimality_gap", "mbpo"] == pytest.approx(0.4)
    assert values["probability", "pdml"] == pytest.approx((5.5 / 6 + 7 / 10) / 2)  # one tie
    assert values["probability", "mbpo"] == pytest.approx(1 - values["probability", "pdml"])
    assert [row["seeds"] for row in rows if row["statistic"] == "iqm"] == [8, 4]
    assert found.notes == ["pdml: tasks have different numbers of seeds; every seed has the same weight"]
    figure = KINDS["aggregate"].draw(found.rows)
    for axis, statistic in zip(figure.axes, ("iqm", "optimality_gap", "probability"), strict=True):
        shown = [row for row in pick(rows, statistic=statistic) if row["versus"] != "pdml"]
        for i, row in enumerate(shown):
            interval, point = axis.lines[2 * i : 2 * i + 2]
            assert drawn(interval).tolist() == [[row["low"], row["high"]], [i, i]]
            assert drawn(point).tolist() == [[row["mean"]], [i]]
    assert [text.get_text() for text in figure.axes[2].get_yticklabels()] == ["pdml > mbpo"]


def test_aggregates_say_what_they_leave_out(two_tasks, tmp_path):
    hopper = write_run(tmp_path / "h", "sac", returns=[1.0, 2.0, 3.0])
    broken = write_run(tmp_path / "b", "mbpo", seed=7, returns=[1.0, NAN], steps=2000)
    unborn = write_run(tmp_path / "u", "pdml", seed=8, returns=[], steps=2000, finished=False)
    found = summary.aggregates(read.read_all([two_tasks, hopper, broken, unborn]))
    assert found.notes == [
        "Hopper-v5: compared at step 2000; sac seed 0 ran longer",
        "pdml seed 8: no evaluation",
        "mbpo seed 7 on Hopper-v5: its last return is not finite and was left out",
        "pdml: tasks have different numbers of seeds; every seed has the same weight",
        "mbpo: tasks have different numbers of seeds; every seed has the same weight",
        "sac: runs on 1 of 2 tasks; its aggregates are over these",
    ]
    assert [row["seeds"] for row in pick(found.rows, statistic="iqm")] == [8, 4, 1]


def test_last_returns_beside_the_papers(tmp_path):
    write_seeds(tmp_path, "pdml", [[100.0, 400.0, 900.0, 3200.0], [200.0, 500.0, 800.0, 3100.0], [300.0, 600.0]])
    write_seeds(tmp_path, "mbpo", [[50.0, 150.0, 350.0, 550.0], [70.0, None, 450.0, NAN]])
    write_seeds(tmp_path, "sac", [[10.0, 20.0, 30.0, 40.0]])
    found = summary.final_returns(read.read_all([tmp_path]))
    rows = {row["curve"]: row for row in found.rows}
    assert rows["pdml"]["mean"] == pytest.approx(np.mean([3200.0, 3100.0, 600.0]))
    assert (rows["mbpo"]["mean"], rows["mbpo"]["seeds"]) == (500.0, 2)
    assert (rows["mbpo"]["first_step"], rows["mbpo"]["step"]) == (3000, 4000)
    assert rows["pdml"]["paper"] == published.curve("Hopper-v5", "pdml").mean[-1]
    assert rows["pdml"]["paper_step"] == 120_000
    assert found.notes == [
        "pdml on Hopper-v5: seeds end at different steps, 2000 to 4000",
        "mbpo seed 1 on Hopper-v5: its last return is not finite; the last finite one is used",
        "mbpo on Hopper-v5: seeds end at different steps, 3000 to 4000",
    ]


def test_the_mean_of_the_last_five_evaluations(tmp_path):
    write_seeds(tmp_path / "double", "dhmbpo", [[100.0 * i for i in range(1, 31)]] * 2, steps=30_000)
    write_seeds(tmp_path / "double", "pdml-dhmbpo", [[110.0 * i for i in range(1, 31)]], steps=30_000)
    write_run(tmp_path / "double" / "far", "dhmbpo", steps=30_000, **{"double.far": 10})
    rows = {row["curve"]: row for row in summary.final_returns(read.read_all([tmp_path / "double"])).rows}
    assert (rows["dhmbpo"]["mean"], rows["dhmbpo"]["last_five"]) == (3000.0, 2800.0)
    assert math.isnan(rows["dhmbpo double.far=10"]["last_five"])  # of four evaluations
    last = published.curve("Hopper-v5", "dhmbpo").mean[-1]
    for curve in ("dhmbpo", "pdml-dhmbpo"):
        assert (rows[curve]["paper"], rows[curve]["paper_step"]) == (last, 195_000)
    write_seeds(tmp_path, "pdml", [[1.0, 2.0, 3.0, NAN, 4.0, 5.0, 6.0], [1.0]], steps=7000)
    found = summary.final_returns(read.read_all([tmp_path / "pdml"]))
    assert found.rows[0]["last_five"] == 4.0
    assert "pdml on Hopper-v5: the mean of the last five leaves out seeds with fewer evaluations" in found.notes


def test_a_run_without_timing_is_named(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "timing.csv").unlink()
    found = summary.training_time(read.read_all([path]))
    assert found.notes == ["pdml seed 0: no timing"]
    (text,) = KINDS["time"].draw(found.rows).axes[0].texts
    assert text.get_text() == " no timing"


@pytest.mark.parametrize(("changes", "cell"), [({}, "3753 ± 1706, 8 seeds"), ({"updates_per_step": 1}, "–")])
def test_a_short_table_has_the_published_number_of_as_many_updates(tmp_path, changes, cell):
    returns = [1.0] * 25
    write_run(tmp_path / "run", "dhmbpo", env="Walker2d-v5", steps=25_000, returns=returns, **changes)
    row = short_table(read.read_all([tmp_path])).splitlines()[2]
    assert row.endswith(f"| 30000 | 1 | 1 | {cell} |")


def test_a_short_table_counts_seeds_and_not_runs(tmp_path):
    for copy, last in (("a", 100.0), ("b", 400.0)):
        write_run(tmp_path / copy, returns=[0.0, last])
    write_run(tmp_path / "c", seed=1, returns=[0.0, 1000.0])
    assert "| 2 | 625 ± 530 |" in short_table(read.read_all([tmp_path])).splitlines()[2]


def test_a_run_that_is_not_finished_is_named_below_the_table(tmp_path):
    write_run(tmp_path / "whole", returns=[0.0, 0.0, 0.0, 100.0])
    write_run(tmp_path / "half", seed=1, returns=[0.0, 200.0], finished=False)
    runs, said = read.read_all([tmp_path]), "pdml seed 1 is not finished; its last evaluation is at step 7000."
    row, _, note = seed_table(runs).splitlines()[2:]
    assert row.endswith("| never, not yet |")
    assert note == said
    assert short_table(runs).endswith(f"\n{said}")
    assert said not in seed_table(runs, until=7000)
    assert seed_table(runs, until=7000).endswith("| never, never |")
    done = write_run(tmp_path / "done", seed=2, returns=[0.0, 200.0])  # by episodes, of which the last was long
    assert seed_table(read.read_all([done])).endswith("| never |")
    write_run(tmp_path / "short", seed=3, steps=2000, returns=[0.0, 200.0])
    assert seed_table(read.read_all([tmp_path])).endswith("\npdml seed 3 ends at step 7000.")


def test_runs_of_several_environments_have_a_table_each(two_tasks, capsys):
    assert main(["summary", str(two_tasks), "--short"]) == 0
    printed = capsys.readouterr().out
    hopper, pendulum = printed.split("InvertedPendulum-v5:\n\n")
    assert hopper.startswith("Hopper-v5:\n\n| method |")
    assert [len(table.strip().splitlines()) for table in (hopper, pendulum)] == [6, 4]
    assert main(["summary", str(two_tasks / "Hopper-v5"), "--short"]) == 0
    assert capsys.readouterr().out.startswith("| method |")


def test_rows_beside_others_are_those_of_other_steps(tmp_path):
    file = tmp_path / "rows.csv"
    assert other_rows(file, [{"step": 10}], "step") == []
    file.write_bytes(b"step,error\n10,1.5\n20,2.5\n,9\n30,1,2\n40\n\xff0,1\nhalf")
    assert other_rows(file, [{"step": 10}], "step") == [{"step": "20", "error": "2.5"}]


def test_runs_that_repeat_a_seed_all_have_their_number(tmp_path):
    for copy, last in (("a", 100.0), ("b", 400.0)):
        write_run(tmp_path / copy, returns=[0.0, last])
    write_run(tmp_path / "c", seed=1, returns=[0.0, 1000.0])
    row = seed_table(read.read_all([tmp_path])).splitlines()[2]
    assert [cell.strip() for cell in row.split("|")[3:6]] == ["100, 400", "1000", "625 ± 530"]
