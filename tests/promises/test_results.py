"""The committed results: complete, and what is said about them is what they say."""

import csv
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pdml.cli import main
from pdml.config.defaults import defaults
from pdml.config.fields import different, get, leaves
from pdml.config.files import read_config, require_same
from pdml.config.methods import METHODS
from pdml.config.parse import parse
from pdml.envs.task import env_task
from pdml.reporting.claims import diagnosed, mean_return
from pdml.reporting.marked_pages import find_marks, find_pages
from pdml.reporting.paper_claims import paper_claims
from pdml.reporting.published import DHMBPO_WARMUP, dhmbpo_curve
from pdml.reporting.read import differences, read_all, returns
from pdml.sweeps.plan import plan
from pdml.sweeps.study import read_study

ROOT = Path(__file__).parents[2]
PENDULUM = ROOT / "results" / "InvertedPendulum-v5"
PLAN = ROOT / "results" / "PLAN.md"
HOPPER = ROOT / "results" / "double-horizon" / "Hopper-v5"
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


SETS = {"A": 15, "B": 12, "C": 10, "D": 21, "F": 6, "G": 8, "I": 6, "trial": 42, "report": 9}
"""The studies of the plan, and how many runs they have."""


def planned_runs(name):
    out = ROOT / "results" / name if name in ("trial", "report") else ROOT / "results"
    return plan(read_study(str(ROOT / "results" / "plan" / f"{name}.toml")), out)


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_the_plan_is_a_study_with_its_runs(name):
    assert len(planned_runs(name)) == SETS[name]


def test_the_studies_have_the_runs_that_the_claims_wait_for():
    runs = [run for name in SETS for run in planned_runs(name)]
    standard = {}
    for run in runs:
        config = run.settings.learning
        base = defaults(config.env, config.method, config.preset, env_task(config.env))
        words = () if config.preset == "paper" else (f"preset={config.preset}",)
        words += tuple(f"{name}={get(run.settings, name)}" for name in different(run.settings, base) if name in LEARNED)
        standard.setdefault((config.method, config.env, words), []).append(run)
    for claim in paper_claims():
        for arm in (claim.ours, claim.theirs):
            if arm is not None:
                of_arm = standard[arm.method, arm.env, arm.settings]
                assert {run.settings.learning.seed for run in of_arm} >= set(arm.seeds), claim
                assert all(run.settings.run.steps >= claim.needs for run in of_arm), claim
                assert all(run.settings.run.diagnose == METHODS[arm.method].has_model for run in of_arm), claim
                assert claim.number != "C2" or all(len(run.settings.run.archive_at) == 3 for run in of_arm)


def test_the_arms_of_the_trial_are_those_of_the_plan():
    section = PLAN.read_text().partition("## A steadier DHMBPO")[2]
    told = dict(re.findall(r"^\| ([a-z-]+) \| `(--[^`]+)` \|", section, re.MULTILINE))
    arms = [read_flags(options.split()) for options in told.values()]
    arms += [{}, read_flags([*told["near"].split(), *told["tau"].split()])]
    found = []
    for run in planned_runs("trial"):
        base = defaults("Hopper-v5", "dhmbpo", "paper", env_task("Hopper-v5"))
        changed = {name: get(run.settings, name) for name in different(run.settings, base) if name in LEARNED}
        found += [changed] if run.settings.learning.seed == 1000 else []
    assert sorted(map(repr, arms)) == sorted(map(repr, found))


def test_the_report_has_the_tasks_and_the_published_points_of_the_plan():
    section = PLAN.read_text().partition("## The report on DHMBPO")[2]
    rows = re.findall(r"^\| (\w+-v5) at ([\d ]+) \| \d+ \| (.+) \|$", section, re.MULTILINE)
    assert {(env, int(steps.replace(" ", ""))) for env, steps, _ in rows} == {
        (run.settings.learning.env, run.settings.run.steps) for run in planned_runs("report")
    }
    for env, steps, published in rows:
        curve = dhmbpo_curve(env, defaults(env, "dhmbpo").learning.updates_per_step)
        points = dict(
            zip(curve.steps + DHMBPO_WARMUP, zip(curve.mean, curve.high - curve.mean, strict=True), strict=True)
        )
        for mean, deviation, step in re.findall(r"(\d+) ± (\d+)(?: at ([\d ]+))?", published):
            found = points[int((step or steps).replace(" ", ""))]
            assert [f"{value:.0f}" for value in found] == [mean, deviation]


def test_the_bound_of_the_trial_follows_from_the_first_run_of_its_base():
    (run,) = read_all([ROOT / "results" / "trial" / "Hopper-v5" / "dhmbpo" / "seed_1000"])
    assert f"--double.kl_bound {np.median(run.progress['agent/divergence'][1:]) / 4:.2g}`" in PLAN.read_text()


def read_flags(words):
    """Return settings by name, in the order of their fields, from words of a command."""
    given = {
        flag.removeprefix("--").replace("-", "_"): text for flag, text in zip(words[::2], words[1::2], strict=True)
    }
    return {name: parse(name, given[name]) for name in LEARNED if name in given}


LEARNED = [leaf.name for leaf in leaves() if leaf.name not in ("seed", "steps", "archive_at", "diagnose")]


@pytest.mark.parametrize("name", SETS)
def test_kept_runs_of_the_plan_are_where_its_study_has_them(name):
    kept = [run for run in planned_runs(name) if (run.path / "config.json").exists()]
    assert kept or name in ("F", "G", "I", "report")  # none is done yet
    for run in kept:
        require_same(run.settings, read_config(run.path / "config.json"), run.path)


def test_the_page_of_pusher_says_what_the_runs_say():
    runs = read_all([ROOT / "results" / "Pusher-v5"])
    score, error = mean_return(12_000), diagnosed("current_l2", 12_000)
    gap = diagnosed("current_l2-overall_l2", 12_000)
    pdml, mbpo = ([run for run in runs if run.config.method == method] for method in ("pdml", "mbpo"))
    page = " ".join((ROOT / "results" / "Pusher-v5" / "README.md").read_text().split())
    lead = [score(ours) - score(theirs) for ours, theirs in zip(pdml, mbpo, strict=True)]
    assert len(lead) == 5
    assert "one seed makes most of the difference: in seed 1 MBPO learns late" in page
    assert lead[1] > 0.8 * sum(lead)
    assert "within a few points of each other, and MBPO is ahead in one." in page
    assert max(abs(lead[seed]) for seed in (0, 2, 3, 4)) < 4
    assert sum(value < 0 for value in lead) == 1
    last = [float(returns(run).values[-1]) for run in runs]
    least, most = (f"−{abs(bound)}" for bound in (np.floor(min(last)).astype(int), np.ceil(max(last)).astype(int)))
    assert f"all ten runs are between {least} and {most}." in page
    assert "**PDML's model is better on the current policy in every seed**" in page
    assert all(error(ours) < error(theirs) for ours, theirs in zip(pdml, mbpo, strict=True))
    assert "above its error on all policies in one seed of five." in page
    assert sum(gap(run) > 0 for run in mbpo) == 1


PAGES = [ROOT / "README.md", *find_pages([ROOT / "docs", ROOT / "results"])]


@pytest.mark.slow
def test_every_table_and_figure_of_a_page_is_what_the_files_say(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert main(["results", "rebuild", "--check", "results", "docs", "README.md"]) == 0, capsys.readouterr().out


def test_a_changed_number_of_a_page_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (HOPPER / "README.md").read_text().partition("<!-- end -->")[0] + "<!-- end -->\n"
    assert text.count("| 1624 ± 614 |") == 1
    (tmp_path / "page.md").write_text(text.replace("| 1624 ± 614 |", "| 1625 ± 614 |"))
    assert main(["results", "rebuild", "--check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("page.md, line ") == 1


MARKED = {
    "README.md": ["summary", "results"],
    "docs/settings.md": ["list"],
    "docs/speed.md": ["results"],
    "docs/claims.md": ["results"] * 4,
    "docs/methods/index.md": ["results"],
    "results/Hopper-v5/README.md": ["summary"] * 3 + ["figure"] * 2,
    "results/double-horizon/Hopper-v5/README.md": ["summary"] * 4 + ["figure"],
    "results/Pusher-v5/README.md": ["summary"] + ["figure"] * 2,
    "results/InvertedPendulum-v5/README.md": ["summary"],
    "results/trial/README.md": ["results"],
}
"""The commands of the marks of pages; a page may have more."""


@pytest.mark.parametrize("page", MARKED)
def test_tables_that_come_from_files_have_marks(page):
    words = [mark.words[0] for mark in find_marks(ROOT / page, (ROOT / page).read_text())]
    assert not Counter(MARKED[page]) - Counter(words)


def test_the_readme_is_short_and_has_at_most_eight_findings():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    table = text.partition("<!-- pdml: results claims ")[2].partition("<!-- end -->")[0]
    assert 1 <= len(re.findall(r"^\| C\d", table, re.MULTILINE)) <= 8


def hand_written(page):
    """Return the lines of a page that stand between no marks."""
    lines = dict(enumerate(page.read_text().splitlines(), start=1))
    marks = find_marks(page, page.read_text())
    return [line for i, line in lines.items() if not any(mark.line <= i <= mark.end for mark in marks)]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name == "README.md"], ids=lambda page: page.parent.name
)
def test_no_table_of_returns_is_written_by_hand(page):
    tables = [line for line in hand_written(page) if re.match(r"\|.*\d ± \d", line)]
    assert tables == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_shows_the_figures_that_it_draws(page):
    for mark in find_marks(page, page.read_text()):
        if mark.is_figure:
            picture = ROOT / mark.words[mark.words.index("--out") + 1] / f"{mark.words[1]}.png"
            shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
            assert picture.resolve() in {(page.parent / path).resolve() for path in shown}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_beside_a_table_is_the_one_that_wrote_it(page):
    text = page.read_text()
    written = {("pdml", *mark.words) for mark in find_marks(page, text)}
    command = r"`(pdml (?:(?:summary|figure) [^`]*results/|results (?:claims|speed|trial) results\b)[^`]*)`"
    said = re.findall(command, "\n".join(hand_written(page)))
    assert {tuple(shlex.split(line)) for line in said} - written == set()


def test_results_have_no_path_of_a_machine():
    for path in (ROOT / "results").rglob("metadata.json"):
        about = json.loads(path.read_text())
        for one in (about, *about.get("resumed", ())):
            assert not re.search(r"(^|[\s='\"])/", one["command"]), path


def test_the_last_column_but_one_is_the_mean_of_the_last_evaluation(capsys):
    assert main(["summary", str(PENDULUM)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| pdml |"))
    with (PENDULUM / "pdml" / "seed_0" / "evaluations.csv").open() as file:
        last = [float(row["return"]) for row in csv.DictReader(file) if row["step"] == "4000"]
    assert line.split("|")[3].strip() == f"{sum(last) / len(last):.0f}"
