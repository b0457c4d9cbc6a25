"""What may explain returns: every measure by hand, the table, and the drawing of its rows."""

import math

import numpy as np
import pytest
from csv_rows import NAN, column, drawn, pick
from fake_runs import diagnosed, write_run, write_seeds
from scipy import stats

from pdml.cli import main
from pdml.config.methods import METHODS
from pdml.reporting import behaviour, statistics
from pdml.reporting.behaviour_table import behaviour_table
from pdml.reporting.draw import BEHAVIOUR, draw_behaviour
from pdml.reporting.read import read, read_all
from pdml.reporting.style import MARKERS, lines


def evaluated(path, episodes):
    """Replace the evaluations of a run by episodes: real step, return, length."""
    lines = [f"{step},{i},{total},{length}" for i, (step, total, length) in enumerate(episodes)]
    (path / "evaluations.csv").write_text("\n".join(["step,episode,return,length", *lines, ""]))


def criticised(path, biases):
    """Give a run an analysis of its critics: biases by real step, of values that are 100."""
    (path / "analysis").mkdir()
    rows = [f"{step},100.0,{100.0 - bias},{bias}" for step, bias in biases.items()]
    (path / "analysis" / "critics.csv").write_text("\n".join(["step,value_mean,return_mean,bias", *rows, ""]))


def test_an_episode_stands_still_if_it_is_whole_and_earns_what_standing_pays(tmp_path):
    path = write_run(tmp_path / "run", steps=30_000)
    found = [
        (6000, 900.0, 1000),
        (6000, 1100.0, 1000),
        (15_000, 899.0, 1000),  # the last step of the first bin: less than standing pays
        (16_000, 1000.0, 999),  # fell
        (17_000, 1000.0, 1000),
        (26_000, 3000.0, 1000),  # hops
        (26_000, 1101.0, 1000),
    ]
    evaluated(path, found)
    run = read(path)
    assert behaviour.stands(run).tolist() == [1, 1, 0, 0, 1, 0, 0]
    series = behaviour.standing_by_bin(run)
    assert series.steps.tolist() == [5000, 15_000, 25_000]
    np.testing.assert_allclose(series.values, [2 / 3, 1 / 2, 0])


def test_an_evaluation_at_the_end_of_the_warm_up_belongs_to_the_first_bin(tmp_path):
    path = write_run(tmp_path / "run", steps=30_000)
    evaluated(path, [(5000, 1000.0, 1000), (6000, 50.0, 20)])
    series = behaviour.standing_by_bin(read(path))
    assert (series.steps.tolist(), series.values.tolist()) == ([5000], [0.5])


def test_standing_still_is_defined_where_it_is_known_what_it_pays(tmp_path):
    run = read(write_run(tmp_path / "run", env="HalfCheetah-v5"))
    assert len(behaviour.stands(run)) == len(behaviour.standing_by_bin(run).steps) == 0
    found = behaviour.behaviour([run])
    assert not pick(found.rows, panel="standing")
    assert "standing still is defined for Hopper and Walker2d only" in found.notes


def test_a_short_limit_shortens_what_standing_earns(tmp_path):
    path = write_run(tmp_path / "run", max_episode_steps=200)
    evaluated(path, [(6000, 200.0, 200), (6000, 1000.0, 1000)])
    assert behaviour.stands(read(path)).tolist() == [1, 0]


def test_a_return_is_kept_until_an_evaluation_below_half_of_it(tmp_path):
    values = [-5.0, 400.0, NAN, 200.0, 500.0, 199.0, 600.0, 600.0]
    run = read(write_run(tmp_path / "run", returns=values, steps=8000))
    assert behaviour.kept_spans(run) == [
        behaviour.Span(2000, 400.0, 4000, True),  # 200 is half of it, not below
        behaviour.Span(5000, 500.0, 1000, True),
        behaviour.Span(7000, 600.0, 1000, False),  # the run ends; 600 again is not above it
    ]


@pytest.mark.parametrize(
    ("durations", "ended", "median"),
    [
        ([1, 2, 3, 4], [1, 1, 1, 1], 2),
        ([1, 2, 2, 9], [1, 0, 1, 0], 2),  # 3/4, then 3/4 * 2/3
        ([5, 1, 1, 1], [1, 0, 0, 0], 5),  # those that ended early say nothing about 5
        ([1, 2, 3, 4], [1, 0, 0, 0], math.inf),
        ([3, 3], [0, 0], math.inf),
    ],
)
def test_durations_that_were_cut_short_count_as_lower_bounds(durations, ended, median):
    assert statistics.median_duration(np.array(durations, float), np.array(ended, bool)) == median


def test_the_rank_correlation_is_scipys():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, size=(2, 40)).astype(float)
    assert statistics.rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert math.isnan(statistics.rank_correlation(x, np.ones(40)))
    assert math.isnan(statistics.rank_correlation(x[:0], y[:0]))


@pytest.mark.parametrize(
    ("method", "rows"),
    [("pdml", {5250: 5000, 5500: 5250, 5600: 5500}), ("dhmbpo", {5250: 5250, 5500: 5500, 5600: 5500})],
)
def test_the_effective_size_is_a_share_of_the_rows_that_were_weighted(tmp_path, method, rows):
    path = write_run(tmp_path / "run", method, warmup_steps=5000, model_every=250)
    lines = [f"{step},{step - 5000},{0.5 * count}" for step, count in rows.items()]
    head = "step,steps_after_warmup,weights/effective_size"
    (path / "progress.csv").write_text("\n".join([head, *lines, ""]))
    found = behaviour.effective_share(read(path))
    assert found.steps.tolist() == [250, 500, 600]
    np.testing.assert_allclose(found.values, 0.5)


@pytest.fixture
def runs(tmp_path):
    """PDML with two seeds, diagnosed, one of them with analysed critics; SAC with one."""
    one, other = write_seeds(
        tmp_path, "pdml", [[400.0, 300.0, 100.0, 50.0], [100.0, 200.0, 300.0, 400.0]], diagnose=True
    )
    criticised(one, {6000: 30.0, 8000: -10.0})
    criticised(other, {6000: 10.0})
    evaluated(write_run(tmp_path / "sac", "sac"), [(6000, 1000.0, 1000), (7000, 10.0, 30)])
    return read_all([tmp_path])


def test_rows_and_drawing_are_what_the_files_say(runs):
    found = behaviour.behaviour(runs)
    error = pick(found.rows, panel="error", seed=1)
    assert column(error, "error").tolist() == [diagnosed(1, step)["current_l2"] for step in (1000, 2000, 3000, 4000)]
    assert column(error, "return").tolist() == [100.0, 200.0, 300.0, 400.0]
    critics = pick(found.rows, panel="critics")
    assert [(row["curve"], row["step"], row["mean"], row["seeds"]) for row in critics] == [
        ("pdml", 1000, 20.0, 2),
        ("pdml", 3000, -10.0, 1),
    ]
    assert found.notes == ["sac seed 0: not diagnosed", "sac seed 0: no analysis/critics.csv; run pdml analyse critics"]
    axes = draw_behaviour(found.rows).axes
    assert [axis.get_title() for axis in axes] == list(BEHAVIOUR.values())
    both = pick(found.rows, panel="error", curve="pdml")
    np.testing.assert_array_equal(drawn(axes[0].lines[0]), [column(both, "error"), column(both, "return")])
    lost, held = (pick(found.rows, panel="kept", curve="pdml", lost=flag) for flag in (1, 0))
    for line, rows in zip(axes[3].lines, (lost, held), strict=False):
        np.testing.assert_array_equal(drawn(line), [column(rows, "return"), column(rows, "kept")])
    np.testing.assert_array_equal(drawn(axes[4].lines[0]), [column(critics, "step"), column(critics, "mean")])


def test_dots_of_curves_can_be_told_apart(tmp_path):
    for method, changes in (("mbpo", {}), ("decay-mbpo", {}), ("decay-mbpo", {"mixture.decay": 1.0})):
        write_run(tmp_path / f"{method}{len(changes)}", method, diagnose=True, **changes)
    figure = draw_behaviour(behaviour.behaviour(read_all([tmp_path])).rows)
    looks = {
        panel.get_title(): [(line.get_color(), line.get_marker()) for line in panel.lines] for panel in figure.axes
    }
    (handles,) = ([(h.get_color(), h.get_marker()) for h in legend.legend_handles] for legend in figure.legends)
    assert len(set(handles)) == 3
    assert looks[BEHAVIOUR["error"]] == handles
    assert looks[BEHAVIOUR["kept"]] == [look for look in handles for _ in range(2)]  # lost, and kept to the end


@pytest.mark.parametrize(
    "others", [[], [f"pdml mixture.rate={i}" for i in range(14)]], ids=["methods", "with settings"]
)
def test_every_curve_has_its_own_colour_and_dots(others):
    found = [(line.color, MARKERS[line.dash]) for line in lines([*METHODS, *others]).values()]
    assert len(set(found)) == len(found)


def test_the_table_has_a_row_per_curve_with_means_over_seeds(runs):
    problems = []
    _, _, pdml, sac = (line.strip("| ").split(" | ") for line in behaviour_table(runs, problems).splitlines())
    assert problems == []
    share = np.mean([100.0 / rows for rows in range(5000, 9000, 250)])
    # 400 is lost after 2000 steps; 100 and 200 are kept for 3000 and 2000, to the end: one of three is lost
    assert pdml == ["pdml", "2", "+0.00", "0 %", f"{100 * share:.0f} %", "> 3000", "+20 (100, 80)", "−10 (100, 110)"]
    assert sac == ["sac", "1", "–", "50 %", "–", "1000", "–", "–"]


@pytest.mark.parametrize("options", [["--behaviour"], ["--short"], []], ids=["behaviour", "short", "by seed"])
def test_settings_that_the_name_of_a_curve_hides_stand_below_the_table(tmp_path, capsys, options):
    write_run(tmp_path / "run", "decay-mbpo", **{"mixture.decay": 1.0})
    assert main(["summary", str(tmp_path), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["", "decay-mbpo on Hopper-v5: every run has mixture.decay=1.0."]


def test_a_damaged_analysis_is_named(tmp_path, capsys):
    path = write_run(tmp_path / "run")
    criticised(path, {6000: 1.0, 7000: 2.0})
    with (path / "analysis" / "critics.csv").open("a") as file:
        file.write("80")
    assert main(["summary", str(path), "--behaviour"]) == 2
    captured = capsys.readouterr()
    assert "critics.csv: line 4 is half-written and was left out" in captured.err
    assert "+2 (100, 98)" in captured.out
