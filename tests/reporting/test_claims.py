"""Claims of the paper beside runs: measures by hand, verdicts by the rules of the plan, and the table."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from fake_runs import diagnosed as diagnosis_of
from fake_runs import write_run, write_seeds

from pdml.cli import main
from pdml.config.methods import METHODS
from pdml.reporting import claims
from pdml.reporting.claims import Claim, ClaimArm, judge
from pdml.reporting.paper_claims import paper_claims
from pdml.reporting.read import read_all
from pdml.reporting.statistics import difference_interval, mean_interval

PLAN = Path(__file__).parents[2] / "results" / "PLAN.md"


def claim(**changes):
    """Return a claim that PDML's mean return to 9000 steps is above MBPO's."""
    standard = Claim(
        "C0",
        "PDML is ahead",
        "",
        claims.mean_return(9000),
        "mean",
        ClaimArm("pdml", range(2)),
        ClaimArm("mbpo", range(2)),
        True,
        9000,
        "pdml train",
    )
    return standard._replace(**changes)


@pytest.fixture
def judged(tmp_path):
    """Return a function that judges a claim on seeds with constant returns, given by method; all are planned."""

    def judge_on(returns, **changes):
        for place, (method, values) in zip(("ours", "theirs"), returns.items(), strict=False):
            write_seeds(tmp_path, method, [[value] * 4 for value in values])
            changes.setdefault(place, ClaimArm(method, range(len(values))))
        return judge(claim(**changes), read_all([tmp_path]))

    return judge_on


@pytest.mark.parametrize(
    ("pdml", "mbpo", "size", "verdict", "remark"),
    [
        ((900.0, 1000.0, 1100.0), (300.0, 400.0, 500.0), None, "reproduced", ""),
        ((900.0, 1000.0, 1100.0), (300.0, 400.0, 500.0), 700.0, "reproduced", ""),
        (
            (900.0, 1000.0, 1100.0),
            (300.0, 400.0, 500.0),
            2000.0,
            "reproduced",
            "a smaller effect than the paper's 2000",
        ),
        (
            (900.0, 1000.0, 1100.0),
            (300.0, 400.0, 500.0),
            50.0,
            "reproduced",
            "a larger effect than the paper's 50",
        ),
        ((300.0, 400.0, 500.0), (900.0, 1000.0, 1100.0), 700.0, "contradicted", ""),  # on the other side
        ((400.0, 1000.0), (500.0, 900.0), 4000.0, "contradicted in size", "the paper's 4000 is excluded, 0 is not"),
    ],
)
def test_the_verdict_follows_from_the_interval(judged, pdml, mbpo, size, verdict, remark):
    found = judged({"pdml": pdml, "mbpo": mbpo}, size=size)
    assert found.effect.value == pytest.approx(np.mean(pdml) - np.mean(mbpo))
    assert (found.verdict, found.remark) == (verdict, remark)
    assert claims.claims_table([found]).endswith(f"| {verdict}{remark and f'; {remark}'} | `pdml train` |")


@pytest.mark.parametrize(
    ("pdml", "mbpo", "size"),
    [
        ((400.0, 1000.0), (500.0, 900.0), None),
        ((400.0, 1000.0), (500.0, 900.0), 300.0),  # both 0 and the paper's 300 are possible
        ((900.0,), (300.0,), None),  # single seeds decide nothing
    ],
)
def test_a_claim_is_open_while_the_interval_includes_no_effect(judged, pdml, mbpo, size):
    assert judged({"pdml": pdml, "mbpo": mbpo}, size=size).verdict == "open"


def test_where_less_is_better_the_sides_are_swapped(judged):
    found = judged({"pdml": (300.0, 310.0), "mbpo": (900.0, 910.0)}, larger=False, is_ratio=True)
    assert found.effect.value == pytest.approx(305 / 905)
    assert found.effect.low < 305 / 905 < found.effect.high < 1
    assert found.improvement.value == found.improvement.high == 1.0
    assert 0.3 < found.improvement.low < 0.5  # two seeds per arm, all on one side: not yet certain
    assert found.verdict == "reproduced"


POWER = (1.959964 + 0.841621) ** 2
"""Of a t-test with power 0.8, to first order: runs are this times the variance over the squared effect."""


def settled(runs, at):
    return f"about {runs} for an 80 % chance to settle it at {at}"


def test_an_open_ratio_is_settled_by_runs_that_follow_from_relative_deviations(judged):
    found = judged({"pdml": (0.6, 1.2), "mbpo": (0.9, 1.5)}, larger=False, is_ratio=True)
    variance = np.var([0.6, 1.2], ddof=1) / 0.9**2 + np.var([0.9, 1.5], ddof=1) / 1.2**2
    assert found.verdict == "open"
    runs = math.ceil(POWER * variance / math.log(0.9 / 1.2) ** 2) + 1
    assert found.remark == settled(f"{runs} runs per arm", "the effect seen")


def test_a_ratio_of_a_mean_that_is_not_positive_is_open(judged):
    below = judged({"pdml": (-0.6, 0.5), "mbpo": (0.9, 1.5)}, larger=False, is_ratio=True)
    assert (below.verdict, below.remark) == ("open", "")


@pytest.mark.parametrize(("size", "at"), [(None, "the effect seen"), (250.0, "the paper's 250")])
def test_runs_that_would_settle_an_open_claim_are_those_of_the_t_test(judged, size, at):
    found = judged({"pdml": (400.0, 1000.0), "mbpo": (400.0, 600.0)}, size=size)
    variance = np.var([400, 1000], ddof=1) + np.var([400, 600], ddof=1)
    assert found.verdict == "open"
    runs = math.ceil(POWER * variance / (size or 200.0) ** 2) + 1
    assert found.remark == settled(f"{runs} runs per arm", at)


def test_so_many_runs_have_the_chance_that_is_said():
    rng, effect = np.random.default_rng(0), 1.0
    for arms, correction in ((1, 2), (2, 1)):
        runs = math.ceil(POWER * arms / effect**2) + correction
        ours, theirs = rng.normal(effect, 1.0, (1000, runs)), rng.normal(0.0, 1.0, (1000, runs))
        pairs = zip(ours, theirs, strict=True)
        found = [mean_interval(x) if arms == 1 else difference_interval(x, y) for x, y in pairs]
        assert 0.77 < np.mean([interval.low > 0.0 for interval in found]) < 0.86


def test_an_effect_within_the_noise_gives_no_number_of_runs(judged):
    found = judged({"pdml": (400.0, 1000.0), "mbpo": (690.0, 700.0)})
    assert found.remark == "more than 100 runs per arm for an 80 % chance to settle it at the effect seen"
    none = judged({"sac": (0.5, 2.0)}, theirs=None, is_ratio=True, null=1.0)  # the mean of logarithms is 0
    assert none.remark == "more than 100 runs for an 80 % chance to settle it at the effect seen"


@pytest.mark.parametrize(("null", "verdict"), [(0.0, "reproduced"), (200.0, "contradicted"), (110.0, "open")])
def test_a_claim_about_one_arm_is_compared_with_no_effect(judged, null, verdict):
    found = judged({"pdml": (100.0, 110.0, 120.0)}, theirs=None, null=null)
    assert found.effect.value == pytest.approx(110.0)
    assert found.verdict == verdict


def test_a_size_that_is_not_the_papers_is_not_called_so(judged):
    found = judged({"pdml": (400.0, 1000.0), "mbpo": (500.0, 900.0)}, size=4000.0, is_own_size=True)
    assert (found.verdict, found.remark) == ("contradicted in size", "4000 is excluded, 0 is not")
    ours = [one for one in paper_claims() if one.is_own_size and one.size]
    assert {(one.number, one.ours.env, one.size) for one in ours} == {
        ("C8", "Hopper-v5", 0.5),
        ("C8*", "Hopper-v5", 0.5),
    }


@pytest.mark.parametrize("changes", [{"eval_every": 500}, {"eval_episodes": 3}])
def test_only_runs_with_the_evaluations_of_the_plan_count(tmp_path, changes):
    write_run(tmp_path / "planned", "pdml")
    write_run(tmp_path / "other", "pdml", seed=1, returns=[1.0] * (8 if "eval_every" in changes else 4), **changes)
    planned, other = read_all([tmp_path])
    assert len(judge(claim(), [planned, other]).ours) == 1
    assert len(judge(claim(), [other]).ours) == 0


def test_a_damaged_row_is_named_and_the_table_is_printed_all_the_same(tmp_path, capsys):
    path = write_run(tmp_path / "run", "mbpo", returns=(1.0, 2.0, 3.0, 4.0))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    with (path / "evaluations.csv").open("a") as file:
        file.write("oh\n")
    (path / "analysis").mkdir()
    (path / "analysis" / "converged.csv").write_text("step,converged_l2\n6000,0.1\n80\n")
    (path / "analysis" / "weightings.csv").write_text("step,uniform_l2\n6000,0.1\n")
    assert main(["results", "claims", str(tmp_path), "--only", "C1"]) == 2
    printed = capsys.readouterr()
    assert printed.out.count("| C1 |") == 1
    assert [line.partition(": ")[2].removeprefix(str(tmp_path)) for line in printed.err.splitlines()] == [
        f"config = '{tmp_path}/other/config.json': not a configuration written by this package",
        "/run/evaluations.csv: line 10 is damaged and was left out",
        "/run/analysis/converged.csv: line 3 is damaged and was left out",
        "/run/analysis/weightings.csv: its header is damaged; nothing was read from it",
    ]


def test_only_runs_of_the_arm_that_went_far_enough_count(tmp_path):
    write_run(tmp_path / "short", "pdml", returns=(500.0,), finished=False)
    write_run(tmp_path / "other", "pdml", **{"mixture.rate": 0.1})
    write_run(tmp_path / "whole", "pdml", seed=1, returns=(1.0, 2.0, 3.0, 6.0))
    write_run(tmp_path / "unplanned", "pdml", seed=2, returns=(7.0, 7.0, 7.0, 7.0))
    runs = read_all([tmp_path])
    assert judge(claim(), runs).ours.tolist() == [3.0]
    assert judge(claim(ours=ClaimArm("pdml", range(2, 5))), runs).ours.tolist() == [7.0]
    other = judge(claim(ours=ClaimArm("pdml", range(2), settings=("mixture.rate=0.1",))), runs)
    assert len(other.ours) == 1


def test_measures_of_a_run(tmp_path):
    archive_at = (6000, 8000)
    path = write_run(tmp_path / "run", "mbpo", returns=(1.0, 2.0, 3.0, 6.0), diagnose=True, archive_at=archive_at)
    (path / "analysis").mkdir()
    (path / "analysis" / "converged.csv").write_text("step,converged_l2,paper_archived\n6000,3.5,\n8000,1.5,\n")
    (run,) = read_all([path])
    assert claims.bin_return(1000, 3000)(run) == 2.5
    assert claims.mean_return(7000)(run) == 1.5
    rows = {step: diagnosis_of(0, step) for step in (1000, 2000, 3000, 4000)}
    gap = np.mean([row["current_l2"] - row["overall_l2"] for row in rows.values()])
    assert claims.diagnosed("current_l2-overall_l2", 9000)(run) == pytest.approx(gap)
    assert claims.diagnosed("current_l2", 7000)(run) == pytest.approx(
        np.mean([rows[step]["current_l2"] for step in (1000, 2000)])
    )
    expected = np.mean([3.5 - rows[1000]["overall_l2"], 1.5 - rows[3000]["overall_l2"]])
    assert claims.converged_gap(run) == pytest.approx(expected)
    (path / "analysis" / "converged.csv").write_text("step,converged_l2,paper_archived\n6000,3.5,\n")
    assert math.isnan(claims.converged_gap(run))  # not all archived steps yet
    assert claims.time_share("evaluate")(run) == pytest.approx(10.0)


def test_weightings_of_the_same_data_are_compared_by_the_geometric_mean_over_steps(tmp_path):
    path = write_run(tmp_path / "run", "mbpo")
    (path / "analysis").mkdir()
    table = "step,uniform_l2,blocks_l2,pdml_l2\n7000,0.4,0.2,0.1\n8000,0.5,0.5,0.5\n9000,0.1,0.3,0.3\n"
    (path / "analysis" / "weightings.csv").write_text(table)
    (run,) = read_all([path])
    assert claims.weighting_ratio("pdml", "uniform", (7000, 8000))(run) == pytest.approx(0.5)  # root of 1/4 and 1
    assert claims.weighting_ratio("pdml", "blocks", (7000, 8000, 9000))(run) == pytest.approx(0.5 ** (1 / 3))
    assert math.isnan(claims.weighting_ratio("pdml", "uniform", (7000, 10_000))(run))  # not all steps yet
    (path / "analysis" / "weightings.csv").write_text("step,uniform_l2,pdml_l2\n7000,0.0,0.1\n")
    assert math.isnan(claims.weighting_ratio("pdml", "uniform", (7000,))(run))  # a damaged row


def test_a_measure_that_is_a_ratio_is_averaged_by_its_logarithm(judged):
    found = judged({"pdml": (0.5, 2.0, 1.0)}, theirs=None, is_ratio=True, null=1.0, larger=False, size=0.01)
    assert found.effect.value == pytest.approx(1.0)
    assert found.effect.low == pytest.approx(1.0 / found.effect.high)
    assert found.verdict == "contradicted in size"  # 1 is possible, 0.01 is not
    assert "| pdml 1 (3 seeds) | 1 [" in claims.claims_table([found])


def test_runs_that_would_settle_a_ratio_follow_from_its_logarithms(judged):
    found = judged({"pdml": (0.5, 1.3)}, theirs=None, is_ratio=True, null=1.0, larger=False)
    logs = np.log([0.5, 1.3])
    runs = math.ceil(POWER * np.var(logs, ddof=1) / np.mean(logs) ** 2) + 2
    assert found.remark == settled(f"{runs} runs", "the effect seen")


def test_what_a_run_lacks_does_not_count(tmp_path):
    (run,) = read_all([write_run(tmp_path / "run", "sac")])
    assert math.isnan(claims.weighting_ratio("pdml", "uniform", (7000,))(run))
    assert math.isnan(claims.diagnosed("current_l2", 9000)(run))
    assert math.isnan(claims.converged_gap(run))
    assert math.isnan(claims.time_share("refine_all")(run))


def test_the_table_has_arms_intervals_and_a_verdict_per_row(judged):
    found = judged({"pdml": (900.0, 1000.0, 1100.0), "mbpo": (300.0, 400.0, 500.0)}, paper="1500 and 400")
    _, _, row = claims.claims_table([found]).splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:4] == ["C0", "PDML is ahead: 1500 and 400", "mean", "pdml 1000 (3 seeds); mbpo 400 (3 seeds)"]
    assert re.fullmatch(r"600 \[\d+, \d+\]", cells[4])
    assert cells[5:] == ["1 [0.501, 1]", "reproduced", "`pdml train`"]


def test_nothing_is_decided_before_all_planned_seeds_are_done(judged):
    returns = {"pdml": (900.0, 1000.0, 1100.0), "mbpo": (300.0, 400.0, 500.0)}
    found = judged(returns, theirs=ClaimArm("mbpo", range(4)))
    assert (found.verdict, found.remark) == ("open", "")
    assert found.effect.low > 0  # it would be decided
    assert "pdml 1000 (3 seeds); mbpo 400 (3 of 4 seeds)" in claims.claims_table([found])
    assert judged({}, ours=ClaimArm("pdml", range(5))).verdict == "open"
    assert judged({}, theirs=ClaimArm("mbpo", range(3))).verdict == "reproduced"


def test_a_short_table_has_fewer_columns_and_only_claims_with_runs(judged):
    returns = {"pdml": (900.0, 1000.0), "mbpo": (300.0, 400.0)}
    findings = [judged(returns), judged({}, theirs=ClaimArm("sac", range(2)), says="no run of it")]
    head, _, *rows = claims.claims_table(findings, short=True).splitlines()
    assert head == "|  | claim | here, by arm | difference or ratio | verdict |"
    assert len(rows) == 1
    assert rows[0].startswith("| C0 | PDML is ahead | pdml 950 (2 seeds); mbpo 350 (2 seeds) | 600 [")
    assert rows[0].endswith("| reproduced |")
    assert "no run of it" in claims.claims_table(findings)


def test_every_claim_of_the_plan_is_measured():
    known = paper_claims()
    planned = set(re.findall(r"\bC\d+\b", PLAN.read_text()))
    assert {one.number.strip("*") for one in known} == planned - {"C5"}  # final returns: not run here
    assert [int(one.number.strip("C*")) for one in known] == sorted(int(one.number.strip("C*")) for one in known)
    for one in known:
        assert "|" not in one.command  # it stands in a table
        assert one.ours.method in METHODS
        assert one.theirs is None or one.theirs.method in METHODS


def test_commands_beside_claims_are_accepted(monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr("pdml.runs.session.start_run", lambda settings, *rest: begun.append(settings))
    monkeypatch.setattr("pdml.cli.train.prepare", lambda threads: threads)
    commands = {one.command for one in paper_claims() if one.command.startswith("pdml train ")}
    methods = set()
    for number, command in enumerate(sorted(commands)):
        named = re.search(r"--method (\S+)", command)[1]
        for method in named.strip("{}").split(","):
            words = command.replace(named, method).replace("--seed K", "--seed 0").split()[1:]
            assert main([*words, "--run-dir", str(tmp_path / f"{number}-{method}")]) == 0
            methods.add(method)
    assert {settings.learning.method for settings in begun} == methods
    assert "sac" in methods
    assert not any(settings.run.diagnose for settings in begun if settings.learning.method in ("sac", "redq"))
    assert all(settings.run.diagnose for settings in begun if settings.learning.method == "mbpo")


def test_seeds_that_a_claim_waits_for_are_those_of_the_plan():
    waits = {
        (one.number, *(arm and (arm.seeds.start, arm.seeds.stop) for arm in (one.ours, one.theirs)))
        for one in paper_claims()
    }
    five, three, two = (0, 5), (0, 3), (0, 2)
    plan = {
        "C1": (five, None), "C2": (three, None), "C3": (five, five), "C3*": (three, five), "C4": (five, five),
        "C4*": (three, three), "C6": (five, three), "C7": (five, three), "C7*": (five, five), "C8": (five, five),
        "C8*": ((2, 5), None), "C9": (five, five),
        "C10": (five, three), "C10*": (five, three), "C11": (five, two), "C11*": (five, two), "C12": (five, None),
    }  # fmt: skip
    beyond = {("C4", five, three), ("C4", two, two), ("C8", two, two)}  # sets D and G
    assert waits == {(number, *seeds) for number, seeds in plan.items()} | beyond


def test_the_papers_numbers_are_means_of_its_bins_up_to_the_step():
    by_text = {one.says: one.paper for one in paper_claims()}
    assert by_text["PDML's return in steps (20k, 30k] after warm-up is above MBPO's"] == "2761 and 745"
    assert by_text["PDML is ahead of AMPO on Hopper-v5"] == "1002 and 618 up to step 25000"
    # bins of 3000 steps after 5000 of warm-up: the second ends at 11000, a third would end after our last step
    assert by_text["PDML is ahead of MBPO on Pusher-v5"] == "-76 and -89 up to step 11000"
    sizes = {one.says: one.size for one in paper_claims()}
    assert sizes["PDML is ahead of MBPO on Pusher-v5"] == pytest.approx(13.1, abs=0.06)
    about_hopper = "PDML's one-step error on Hopper-v5 is much smaller than MBPO's"
    assert (
        by_text[about_hopper] == "no number, read here as half; 0.66 on Walker2d and 0.65 on HalfCheetah at 20k steps"
    )
    assert by_text["PDML's one-step error on HalfCheetah-v5 is below MBPO's"] == "0.65 of it at 20k steps"
    assert by_text["rate 0.02 is ahead of 0.7"] == "1003 and 515 up to step 25000"
    # so early the paper's own PDML is behind on HalfCheetah: no size that runs could exclude
    assert by_text["PDML is ahead of MBPO on HalfCheetah-v5"] == "1778 and 1861 up to step 15000"
    assert sizes["PDML is ahead of MBPO on HalfCheetah-v5"] is None
    assert sizes[about_hopper] == 0.5
    assert sizes["PDML's one-step error on Walker2d-v5 is below MBPO's"] == pytest.approx(0.66, abs=0.005)


def test_a_seed_counts_once(tmp_path):
    for place, value in (("first", 3.0), ("second", 9.0)):
        write_run(tmp_path / place, "pdml", seed=0, returns=[value] * 4)
    write_run(tmp_path / "a first one without returns", "pdml", seed=0, returns=[math.nan] * 4)
    found = judge(claim(theirs=None), read_all([tmp_path]))
    assert found.ours.tolist() == [3.0]
    assert found.verdict == "open"  # two runs of one seed are not two seeds
