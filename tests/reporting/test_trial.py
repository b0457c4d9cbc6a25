"""A trial of settings: measures by hand, who is a candidate, and the table."""

import math

import pytest
from fake_runs import write_run

from pdml.cli import main
from pdml.core.errors import UserError
from pdml.reporting.trial import TrialRun, judge_trial, read_trial, trial_table


def runs_of(scores, low_share=0.0):
    return [TrialRun(score, low_share, {}) for score in scores]


@pytest.fixture
def trial(tmp_path):
    """Write two arms of one seed each, with evaluations from step 6000 on."""
    returns = (100.0, 1000.0, 400.0, 600.0)
    write_run(tmp_path / "dhmbpo" / "seed_1000", "dhmbpo", returns=returns)
    write_run(tmp_path / "dhmbpo-double.near=9" / "seed_1000", "dhmbpo", returns=[200.0] * 4, **{"double.near": 9})
    return tmp_path


def test_the_measures_of_a_run_are_those_of_its_counted_evaluations(trial):
    (run,) = read_trial(trial, first=6000, settle=1000)["dhmbpo"]
    assert run.score == pytest.approx(525.0)
    assert run.low_share == pytest.approx(1 / 2)  # 400 is below half of 1000, 600 is not; the first two do not count
    (later,) = read_trial(trial, first=8000, settle=0)["dhmbpo"]
    assert later.score == pytest.approx(500.0)
    assert later.low_share == 0.0  # the best so far is the best of those that count: 400, then 600


def test_what_explains_is_the_mean_over_update_phases(trial):
    (run,) = read_trial(trial, first=6000, settle=1000)["dhmbpo"]
    rows = 4  # a block per 1000 steps
    assert run.explains["agent/value_bias"] == pytest.approx(sum(130.0 / n for n in range(1, rows + 1)) / rows)


@pytest.mark.parametrize(
    ("scores", "low_share", "is_candidate"),
    [
        ((800.0, 900.0, 1000.0), 0.1, True),
        ((800.0, 900.0, 1000.0), 0.2, True),  # the share of the base
        ((800.0, 900.0, 1000.0), 0.3, False),
        ((500.0, 600.0, 700.0), 0.0, False),  # as high as the base
        ((800.0, 900.0), 0.1, False),  # a seed is missing
    ],
)
def test_a_candidate_is_whole_ahead_and_not_less_steady(scores, low_share, is_candidate):
    arms = {"base": runs_of((500.0, 600.0, 700.0), 0.2), "arm": runs_of(scores, low_share)}
    arm = next(arm for arm in judge_trial(arms, "base", seeds=3) if arm.name == "arm")
    assert arm.is_candidate is is_candidate
    assert arm.ahead == pytest.approx(sum(scores) / len(scores) - 600.0)


def test_no_arm_is_a_candidate_before_the_base_is_whole():
    arms = {"base": runs_of((500.0,)), "arm": runs_of((800.0, 900.0, 1000.0))}
    assert not any(arm.is_candidate for arm in judge_trial(arms, "base", seeds=3))


def test_the_error_is_the_standard_error_of_the_difference():
    arms = {"base": runs_of((500.0, 600.0, 700.0)), "arm": runs_of((700.0, 1000.0))}
    best, base = judge_trial(arms, "base", seeds=2)
    assert (best.name, base.name) == ("arm", "base")
    assert best.error == pytest.approx(math.sqrt(100.0**2 / 3 + 45000.0 / 2))


def test_the_table_has_a_row_per_arm_the_best_first(trial, capsys):
    assert main(["results", "trial", str(trial), "--base", "dhmbpo", "--seeds", "2", "--first", "6000"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| arm | seeds | mean return | ahead of dhmbpo | low evaluations |")
    assert rows[0].startswith("| dhmbpo | 1 of 2 | 525 | – | 0 % | +68 | 0.26 |")
    assert rows[0].endswith("| base |")
    assert rows[1].startswith("| dhmbpo-double.near=9 | 1 of 2 | 200 | −325 | 0 % |")


def test_a_run_without_measures_has_none_in_the_table():
    results = judge_trial({"base": [TrialRun(1.0, 0.0, {})]}, "base", seeds=1)
    with_none = [arm._replace(runs=[TrialRun(1.0, 0.0, dict.fromkeys(COLUMNS, math.nan))]) for arm in results]
    assert "| – | – | – | – | base |" in trial_table(with_none, "base", seeds=1)


COLUMNS = ("agent/value_bias", "agent/action_change", "agent/divergence", "agent/actor_gradient")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "near", "--seeds", "3"], "base = 'near': no such arm; there are: dhmbpo, dhmbpo-double.near=9"),
        (["--base", "dhmbpo", "--seeds", "0"], "seeds = '0': must be a whole number in [1, 4294967295]"),
        (["--base", "dhmbpo", "--seeds", "3", "--first", "90000"], "no evaluation from step 90000 on"),
    ],
)
def test_a_mistake_is_named_in_one_line(trial, capsys, words, said):
    assert main(["results", "trial", str(trial), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_directory_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run there"):
        read_trial(tmp_path, 0, 0)
