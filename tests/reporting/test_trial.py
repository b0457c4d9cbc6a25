"""A trial of settings: measures by hand, who is a candidate, and the table."""

import math

import pytest
from fake_runs import write_run

from pdml.cli import main
from pdml.core.errors import UserError
from pdml.reporting.trial import EXPLAINS, TrialRun, Window, judge_trial, read_trial, trial_table


def runs_of(scores, low_share=0.0, first=1000):
    return [TrialRun(first + i, score, low_share, dict.fromkeys(EXPLAINS, math.nan)) for i, score in enumerate(scores)]


@pytest.fixture
def trial(tmp_path):
    """Write two arms of one seed each, with evaluations from step 6000 to 9000."""
    returns = (100.0, 1000.0, 400.0, 600.0)
    write_run(tmp_path / "dhmbpo" / "seed_1000", "dhmbpo", returns=returns)
    write_run(tmp_path / "dhmbpo-double.near=9" / "seed_1000", "dhmbpo", returns=[200.0] * 4, **{"double.near": 9})
    return tmp_path


@pytest.mark.parametrize(
    ("window", "score", "low_share"),
    [
        (Window(6000, 9000, 1000), 525.0, 1 / 2),  # 400 is below half of 1000, 600 is not; the first two do not count
        (Window(8000, 9000, 0), 500.0, 0.0),  # the best so far is the best of those that count
        (Window(6000, 8000, 1000), 500.0, 1.0),
    ],
)
def test_the_measures_of_a_run_are_those_of_its_evaluations_in_the_window(trial, window, score, low_share):
    (run,) = read_trial(trial, window)["dhmbpo"]
    assert run.score == pytest.approx(score)
    assert run.low_share == pytest.approx(low_share)


@pytest.mark.parametrize(
    ("window", "numbers"), [((6000, 9000), (2, 3, 4)), ((6000, 8000), (2, 3)), ((0, 7000), (1, 2))]
)
def test_what_explains_is_the_mean_over_the_phases_after_the_first_step_that_counts(trial, window, numbers):
    (run,) = read_trial(trial, Window(*window, 1000))["dhmbpo"]
    assert run.explains["agent/value_bias"] == pytest.approx(sum(130.0 / number for number in numbers) / len(numbers))


def test_a_run_counts_once_it_is_evaluated_at_the_last_step(trial):
    unfinished = write_run(trial / "dhmbpo" / "seed_1001", "dhmbpo", returns=(9000.0, 9000.0), finished=False)
    with (unfinished / "evaluations.csv").open("a") as file:
        file.write("80")  # it is being written
    write_run(trial / "dhmbpo" / "seed_1000_old", "dhmbpo")
    assert len(read_trial(trial, Window(6000, 9000, 1000))["dhmbpo"]) == 1
    none_whole = judge_trial(read_trial(trial, Window(6000, 20_000, 1000)), "dhmbpo", seeds=1)
    assert [arm.runs for arm in none_whole] == [[], []]
    assert "| dhmbpo | 0 of 1 | – | – | – |" in trial_table(none_whole, "dhmbpo", seeds=1)


def test_a_return_that_is_not_finite_is_named(trial):
    path = write_run(trial / "dhmbpo" / "seed_1001", "dhmbpo", returns=(1.0, math.nan, 1.0, 1.0))
    with pytest.raises(UserError, match=f"{path.name}/evaluations.csv: step 7000 has no finite return"):
        read_trial(trial, Window(6000, 9000, 1000))


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


@pytest.mark.parametrize(("more", "is_candidate"), [(0.08, True), (0.083, False)])
def test_an_arm_may_be_less_steady_by_one_standard_error(more, is_candidate):
    """Of shares with a deviation of 0.1: 0.1 times the root of two thirds, 0.0816."""
    shares = (0.1, 0.2, 0.3)
    base = [run._replace(low_share=low) for run, low in zip(runs_of((1.0, 2.0, 3.0)), shares, strict=True)]
    arm = [run._replace(low_share=low + more) for run, low in zip(runs_of((4.0, 5.0, 6.0)), shares, strict=True)]
    assert judge_trial({"base": base, "arm": arm}, "base", seeds=3)[0].is_candidate is is_candidate


def test_no_arm_is_a_candidate_before_the_base_is_whole():
    arms = {"base": runs_of((500.0,)), "arm": runs_of((800.0, 900.0, 1000.0))}
    assert not any(arm.is_candidate for arm in judge_trial(arms, "base", seeds=3))


def test_an_arm_with_other_seeds_than_the_base_is_no_candidate():
    arms = {"base": runs_of((500.0, 600.0)), "arm": runs_of((800.0, 900.0), first=0)}
    results = judge_trial(arms, "base", seeds=2)
    assert not any(arm.is_candidate for arm in results)
    assert "| arm | 2, other seeds |" in trial_table(results, "base", seeds=2)
    arms["arm"] = runs_of((800.0, 900.0, 900.0))
    assert not any(arm.is_candidate for arm in judge_trial(arms, "base", seeds=2))
    with pytest.raises(UserError, match="seeds = 1: the base has 2 runs"):
        judge_trial(arms, "base", seeds=1)


def test_a_lead_without_a_standard_error_is_not_called_small():
    arms = {"base": runs_of((500.0,)), "arm": runs_of((999.0,))}
    results = judge_trial(arms, "base", seeds=1)
    assert trial_table(results, "base", seeds=1).splitlines()[2].endswith("| candidate |")


def test_equal_shares_are_equal_in_whatever_order_they_are_added():
    """The mean of 4/13, 4/13, 2/13 is below that of 1/13, 9/13, 0 in the last bit."""
    shares = [[k / 13 for k in each] for each in ((4, 4, 2), (1, 9, 0), (0, 1, 9), (9, 1, 0))]
    assert len({sum(each) / 3 for each in shares}) > 1
    for ours in shares:
        for theirs in shares:
            arms = {
                name: [run._replace(low_share=share) for run, share in zip(runs_of(scores), each, strict=True)]
                for name, scores, each in (("base", (1.0, 2.0, 3.0), theirs), ("arm", (4.0, 5.0, 6.0), ours))
            }
            assert next(arm for arm in judge_trial(arms, "base", seeds=3) if arm.name == "arm").is_candidate


@pytest.mark.parametrize(("ahead", "is_clear"), [(81.4, False), (82.0, True)])
def test_the_default_needs_a_lead_of_one_standard_error(ahead, is_clear):
    """Of arms with a deviation of 100: 100 times the root of two thirds, 81.6."""
    arms = {"base": runs_of((500.0, 600.0, 700.0)), "arm": runs_of([value + ahead for value in (500.0, 600.0, 700.0)])}
    results = judge_trial(arms, "base", seeds=3)
    assert (results[0].name, results[0].is_candidate, results[0].is_clear) == ("arm", True, is_clear)
    by = "at least" if is_clear else "less than"
    assert f"| candidate, ahead by {by} one standard error |" in trial_table(results, "base", seeds=3)


def test_the_error_is_the_standard_error_of_the_difference():
    arms = {"base": runs_of((500.0, 600.0, 700.0)), "arm": runs_of((700.0, 1000.0))}
    best, base = judge_trial(arms, "base", seeds=3)
    assert (best.name, base.name) == ("arm", "base")
    assert best.error == pytest.approx(math.sqrt(100.0**2 / 3 + 45000.0 / 2))


def test_the_table_has_a_row_per_arm_the_best_first():
    arms = {
        "base": runs_of((500.0, 600.0), 0.25),
        "worse|": runs_of((100.0,)),
        "better": runs_of((900.0, 1100.0), 0.125),
    }
    head, _, *rows = trial_table(judge_trial(arms, "base", seeds=2), "base", seeds=2).splitlines()
    assert head.startswith(
        "| arm | seeds | mean return ± deviation | ahead of base ± standard error | low evaluations |"
    )
    nothing = "| – | – | – | – |"
    assert rows == [
        f"| better | 2 | 1000 ± 141 | +450 ± 112 | 12 % {nothing} candidate, ahead by at least one standard error |",
        f"| base | 2 | 550 ± 71 | – | 25 % {nothing} base |",
        f"| worse\\| | 1 of 2 | 100 | −450 | 0 % {nothing}  |",
    ]


def test_the_command_prints_the_table(trial, capsys):
    words = ["--base", "dhmbpo", "--seeds", "2", "--first", "6000", "--last", "9000", "--settle", "1000"]
    assert main(["results", "trial", str(trial), *words]) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("| dhmbpo | 1 of 2 | 525 | – | 50 % | +47 | 0.18 | 0.7 | – | base |")
    assert rows[1].startswith("| dhmbpo-double.near=9 | 1 of 2 | 200 | −325 | 0 % |")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--base", "near", "--seeds", "3", "--last", "9000"],
            "base = 'near': no such arm; there are: dhmbpo, dhmbpo-double.near=9",
        ),
        (
            ["--base", "dhmbpo", "--seeds", "0", "--last", "9000"],
            "seeds = '0': must be a whole number in [1, 4294967295]",
        ),
        (["--base", "dhmbpo", "--seeds", "3", "--last", "x"], "last = 'x': must be a whole number"),
    ],
)
def test_a_mistake_is_named_in_one_line(trial, capsys, words, said):
    assert main(["results", "trial", str(trial), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_directory_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="no run there"):
        read_trial(tmp_path, Window(0, 1, 0))
