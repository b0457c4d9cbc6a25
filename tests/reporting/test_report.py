"""The report page: its numbers are those of the rows, and what is missing or damaged is named."""

import base64
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from browser import chromium, open_page
from fake_runs import block_weights, write_run, write_seeds

from pdml.core.errors import UserError
from pdml.reporting import sections
from pdml.reporting.blocks import policy_weights, weight_history
from pdml.reporting.curves import learning_curves
from pdml.reporting.read import read_all
from pdml.reporting.report import page, write
from pdml.reporting.sections import MOST_PICTURES, Picture
from pdml.runs.best_policy import BestPolicy
from pdml.runs.policy import Policy
from pdml.runs.tensor_file import write_arrays

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine (apt-get install chromium)")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    write_seeds(path, "pdml", [(400.0, 900.0, 2000.0, 3000.0), (500.0, 1100.0, 2200.0, 3100.0)], diagnose=True)
    write_seeds(path, "mbpo", [(300.0, 500.0, 700.0, 900.0)] * 2, diagnose=True)
    write_seeds(path, "sac", [(100.0, 120.0, 150.0, 180.0)])
    return path


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    problems = []
    assert write(read_all([runs], problems), out, {}, problems) == out.stat().st_size
    assert problems == []
    return out


def written(path):
    """Return the page about all runs below a directory, and what could not be read."""
    problems = []
    write(read_all([path], problems), path / "r.html", {}, problems)
    return (path / "r.html").read_text(), problems


def data(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_table_of_runs_has_the_return_of_the_best_policy_and_of_the_last(tmp_path):
    kept, older, damaged = (write_run(tmp_path / name, "sac", seed=i) for i, name in enumerate(("a", "b", "c")))
    policy = Policy(((np.zeros((2, 2), np.float32), np.zeros(2, np.float32)),), np.array([-1.0]), np.array([1.0]), 7000)
    note = BestPolicy(policy, 1500.0, 1250.5, 2).note()
    write_arrays(kept / "best_policy.safetensors", policy.arrays(), note)
    (damaged / "best_policy.safetensors").write_bytes(b"garbage")
    text, problems = written(tmp_path)
    assert problems == [f"{damaged / 'best_policy.safetensors'}: is damaged and was left out"]
    rows = [row for row in re.findall(r"<tr>(.*?)</tr>", text) if str(tmp_path) in row]
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    assert [row[4] for row in cells] == ["2,000 at 9,000"] * 3
    assert [row[5] for row in cells] == ["1,500 at 7,000 (mean of 2: 1,250)", "–", "–"]
    assert "<th>return of the last policy</th><th>return of the best policy</th>" in text
    assert older.name in rows[1]


def test_the_page_has_the_numbers_of_the_tables(runs, report):
    panels = {panel["id"]: panel for panel in data(report.read_text())["panels"]}
    rows = learning_curves(read_all([runs])).rows
    for series in panels["Hopper-v5/return"]["series"]:
        ours = [row for row in rows if row["curve"] == series["method"] and row["source"] == "runs"]
        assert series["x"] == [row["step"] for row in ours]
        assert series["mean"] == [row["mean"] for row in ours]
        assert series["seeds"] == [row["seeds"] for row in ours]
    assert panels["Hopper-v5/return"]["series"][0]["mean"] == [450.0, 1000.0, 2100.0, 3050.0]
    assert set(panels) >= {"Hopper-v5/current", "Hopper-v5/overall", "Hopper-v5/compounding", "Hopper-v5/holdout"}
    assert panels["Hopper-v5/weights/pdml"]["kind"] == "heat"


def test_it_shows_the_papers_points_no_further_than_the_runs_go(report):
    panel = next(panel for panel in data(report.read_text())["panels"] if panel["id"] == "Hopper-v5/return")
    assert {reference["method"] for reference in panel["reference"]} == {"pdml", "mbpo", "sac"}
    assert all(
        reference["x"] == [5000] for reference in panel["reference"]
    )  # the bin (0, 10k] that runs to 4000 end in
    assert ">3,641 at 120k<" in report.read_text()


def test_published_points_have_what_the_page_draws_them_by(report):
    panel = next(panel for panel in data(report.read_text())["panels"] if panel["id"] == "Hopper-v5/return")
    for points in panel["reference"]:
        assert set(points) == {"method", "label", "x", "mean", "low", "high", "half_bin"}  # no seeds: those are ours


def test_double_horizon_methods_stand_beside_the_published_curve(tmp_path):
    rising = [120.0 * i for i in range(1, 31)]
    write_seeds(tmp_path, "dhmbpo", [rising, rising[:20]], steps=30_000)
    write_seeds(tmp_path, "pdml-dhmbpo", [rising], steps=30_000)
    text, _ = written(tmp_path)
    panel, *_ = data(text)["panels"]
    (points,) = panel["reference"]
    assert (points["label"], points["x"]) == ("DHMBPO as published", [5000, 15_000, 25_000])
    assert points["mean"][2] - points["low"][2] == pytest.approx(399.9)
    note = (
        "DHMBPO as published: 8 seeds, mean ± standard deviation; its Hopper differs slightly from Gymnasium&#x27;s v5"
    )
    assert f"Mean return of each evaluation. {note} (joint velocities not clipped).<" in text
    assert "<th>first step at 3,126, by seed</th>" in text
    assert "<td>3,360</td><td>27,000</td><td>3,278 at 195k (DHMBPO as published)</td>" in text  # pdml-dhmbpo
    assert "<td>27,000; &gt; 20,000</td>" in text


def test_scores_of_the_double_horizon_model_have_a_panel_of_their_own_and_may_be_negative(tmp_path):
    for method in ("mbpo", "dhmbpo"):
        write_seeds(tmp_path, method, [[1.0, 2.0, 3.0]], steps=3000)
    panels = {panel["id"]: panel for panel in data(written(tmp_path)[0])["panels"]}
    for id, method, is_log in (("holdout", "mbpo", True), ("score", "dhmbpo", False)):
        panel = panels[f"Hopper-v5/{id}"]
        (line,) = panel["series"]
        assert (line["method"], panel["log"]) == (method, is_log)
        assert all(value > 0 for value in line["mean"]) == is_log
    assert panels["Hopper-v5/score"]["series"][0]["mean"][:2] == [-21.0, -22.0]


def test_it_shows_how_steadily_a_policy_learned(tmp_path):
    for method in ("mbpo", "dhmbpo"):
        write_seeds(tmp_path, method, [[1.0, 2.0, 3.0]], steps=3000)
    text, _ = written(tmp_path)
    panels = {panel["id"].removeprefix("Hopper-v5/"): panel for panel in data(text)["panels"]}
    assert [series["method"] for series in panels["eval/low_share"]["series"]] == ["mbpo", "dhmbpo"]
    for title, first in (("value_bias", 130.0), ("action_change", 0.5), ("renewal_change", 0.0), ("divergence", 2.0)):
        (line,) = panels[f"agent/{title}"]["series"]
        assert (line["method"], line["mean"][0]) == ("dhmbpo", first)
    assert text.count("Stability of the policy") == 1


@pytest.mark.slow
@needs_chromium
def test_it_opens_in_a_browser_and_methods_can_be_switched_off(report, tmp_path):
    with open_page(report, 1200, 900) as browser:
        mean = "document.querySelectorAll('figure[data-panel=\"Hopper-v5/return\"] path.mean').length"
        top = (
            "Math.max(...[...document.querySelectorAll('figure[data-panel=\"Hopper-v5/return\"] .tick-y')].map("
            "(tick) => Number(tick.dataset.value)))"
        )
        assert browser.evaluate(mean) == 3
        assert browser.evaluate("document.querySelector('path.mean').getBoundingClientRect().width") > 50
        before = browser.evaluate(top)
        browser.click('#legend [data-method="pdml"]')
        assert browser.evaluate(mean) == 2
        assert browser.evaluate(top) < before
        browser.screenshot(tmp_path / "report.png")
        assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
        assert (tmp_path / "report.png").stat().st_size > 10_000
        assert browser.errors == []


def test_unfinished_and_failed_runs_are_shown_and_named(tmp_path):
    write_run(tmp_path / "a", finished=False, returns=(500.0, 1000.0))
    write_run(tmp_path / "b", seed=1, finished=False, returns=(500.0,), error="ValueError: <no> more & no less")
    write_run(tmp_path / "c", seed=2, finished=False, returns=())
    text, problems = written(tmp_path)
    assert problems == []
    assert "2 unfinished" in text
    assert "1 failed" in text
    assert "ValueError: &lt;no&gt; more &amp; no less" in text
    assert "pdml seed 2: no values" in text
    assert "pdml seed 1: ends at step 1000, others at 2000" in text


def test_a_damaged_csv_is_named_on_the_page_and_the_rest_is_kept(tmp_path):
    run = write_run(tmp_path / "a")
    with (run / "evaluations.csv").open("a") as file:
        file.write("10000,0,12")
    text, problems = written(tmp_path)
    assert problems == [f"{run / 'evaluations.csv'}: line 10 is half-written and was left out"]
    assert "line 10 is half-written" in text
    assert data(text)["panels"][0]["series"][0]["mean"] == [500.0, 1000.0, 1500.0, 2000.0]


def test_no_text_of_a_run_can_end_the_script_or_become_markup(tmp_path):
    write_run(tmp_path / "a</script><b>x", finished=False, error="</script><b>x</b>")
    text = page(read_all([tmp_path]), {}).html
    assert text.count("</script>") == 2
    assert "<b>x" not in text


def test_seeds_that_end_at_different_steps_say_so_in_the_table(tmp_path):
    write_run(tmp_path / "a", returns=(500.0, 1000.0), finished=False)
    write_run(tmp_path / "b", seed=1, returns=(600.0, 1200.0, 1500.0, float("nan")))
    text, _ = written(tmp_path)
    assert "<td>2,000 to 3,000</td><td>1,250</td>" in text
    assert "pdml on Hopper-v5: seeds end at different steps, 2000 to 3000" in text
    assert "its last return is not finite; the last finite one is used" in text


def test_an_evaluation_that_is_being_written_does_not_count(tmp_path):
    run = write_run(tmp_path / "a", finished=False, returns=(500.0, 1000.0))
    with (run / "evaluations.csv").open("a") as file:
        file.write("8000,0,9999.0,200\n")
    text, problems = written(tmp_path)
    assert problems == [f"{run / 'evaluations.csv'}: step 8000 lacks episodes and was left out"]
    assert data(text)["panels"][0]["series"][0]["mean"] == [500.0, 1000.0]


def test_a_run_that_cannot_be_read_does_not_affect_the_others(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1)
    (tmp_path / "b" / "config.json").write_text("{")
    block = sorted((tmp_path / "a" / "blocks").iterdir())[3]
    block.write_bytes(block.read_bytes()[:40])
    text, (unread, damaged) = written(tmp_path)
    assert "not a configuration written by this package" in unread
    assert damaged == f"{block}: is damaged and was left out"
    assert f"<li>{damaged}</li>" in text
    heat = next(panel for panel in data(text)["panels"] if panel["kind"] == "heat")
    assert len(heat["xs"]) == 15


def test_runs_with_other_settings_have_no_points_of_the_paper_and_say_what_differs(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), seed=seed, **{"mixture.rate": 0.7})
    text, _ = written(tmp_path)
    assert data(text)["panels"][0]["reference"] == []
    assert "3,641" not in text
    assert "pdml on Hopper-v5: every run has mixture.rate=0.7" in text


@pytest.mark.slow
def test_twenty_runs_of_125_evaluations_are_quick_and_small(tmp_path):
    for method in ("pdml", "mbpo", "ampo", "vagram"):
        for seed in range(5):
            write_run(tmp_path / method / str(seed), method, seed=seed, steps=125_000, returns=[float(seed)] * 125)
    start = time.monotonic()
    written(tmp_path)
    assert time.monotonic() - start < 10.0
    assert (tmp_path / "r.html").stat().st_size < 6_000_000


def test_heat_maps_stop_where_the_page_would_grow_too_large(tmp_path, monkeypatch):
    for env in ("Ant-v5", "Hopper-v5"):
        for method in ("pdml", "mbpo"):
            write_run(tmp_path / env / method, method, env=env, returns=[1.0], steps=1000)
    runs = read_all([tmp_path])
    sizes = [len(json.dumps(panel)) for panel in page(runs, {}).panels if panel["kind"] == "heat"]
    assert len(sizes) == 4
    monkeypatch.setattr("pdml.reporting.report.HEAT_BYTES", sum(sizes[:3]))
    whole = page(runs, {})
    kept = [panel["id"] for panel in whole.panels if panel["kind"] == "heat"]
    assert kept == ["Ant-v5/weights/pdml", "Ant-v5/weights/mbpo", "Hopper-v5/weights/pdml"]
    assert "mbpo: no heat map, to keep the page small; pdml figure heatmap draws it" in whole.notes


def test_policies_at_work_are_shown_or_the_reason_why_not(tmp_path):
    shown, lost = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)
    pictures = {shown: Picture(b"\xff\xd8 a <jpeg>", 640), lost: "no pictures: nothing <here> renders"}
    text = page(read_all([tmp_path]), pictures).html
    encoded = base64.b64encode(b"\xff\xd8 a <jpeg>").decode()
    image = f'<img src="data:image/jpeg;base64,{encoded}" style="max-width: 640px" alt="pdml seed 0: one episode of '
    assert text.count(image) == text.count("<img") == 1
    assert '<p class="note">no pictures: nothing &lt;here&gt; renders</p>' in text
    assert "policies are shown" not in text
    many = {shown.parent / str(i): "no pictures" for i in range(MOST_PICTURES)}
    assert f"At most {MOST_PICTURES} policies are shown" in page(read_all([tmp_path]), many).html


def test_sections_are_joined_in_order():
    first = sections.Section("a", ({"id": 1},), ("x",), ("p",))
    second = sections.Section("b", ({"id": 2},), ("y",))
    assert sections.joined([first, second], "<", ">") == ("<ab>", ({"id": 1}, {"id": 2}), ("x", "y"), ("p",))
    assert sections.joined([]) == sections.Section()


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^out = '/proc/r\.html': cannot be written"):
        write(read_all([write_run(tmp_path / "run")]), Path("/proc/r.html"), {}, [])


START = {"path": "runs/old", "step": 30000, "env": "Hopper-v5", "method": "mbpo", "seed": 3, "config": "0" * 16}


def started(path, seed, parts=("agent", "rows"), shares=(0.8, 0.6, 0.5, 0.4)):
    """Write a run that started from another one, with the weight of its rows in each of its first blocks."""
    run = write_run(path, seed=seed, returns=(500.0,))
    (run / "metadata.json").write_text(json.dumps({"start_from": START | {"parts": parts, "rows": 1234}}))
    head, *rows = (run / "progress.csv").read_text().splitlines()
    lines = [f"{head},weights/prior", *(f"{row},{share}" for row, share in zip(rows, shares, strict=True))]
    (run / "progress.csv").write_text("".join(f"{line}\n" for line in lines))
    return run


def test_a_run_that_started_from_another_says_so_and_shows_how_much_its_rows_count(tmp_path):
    for seed in range(2):
        started(tmp_path / f"warm_{seed}", seed, shares=(0.8, 0.6, 0.5, 0.4 - 0.2 * seed))
    cold = write_run(tmp_path / "cold", returns=(400.0,))
    text, problems = written(tmp_path)
    assert problems == []
    runs = read_all([tmp_path])
    assert {run.label for run in runs} == {"pdml", "pdml start_with=agent,rows"}  # seeds of other runs are one curve
    panels = {panel["id"]: panel for panel in data(text)["panels"]}
    (series,) = panels["Hopper-v5/prior"]["series"]
    assert series["method"] == "pdml start_with=agent,rows"
    assert series["x"] == [250, 500, 750, 1000]
    assert series["mean"] == pytest.approx([0.8, 0.6, 0.5, 0.3])
    rows = {row.split("<code>")[1].split("<")[0]: row for row in re.findall(r"<tr>(.*?)</tr>", text) if "<code>" in row}
    assert rows[str(cold)].endswith("<td>–</td>")
    cell = "<code>runs/old</code>: mbpo on Hopper-v5, seed 3, at step 30,000; agent, 1,234 rows</td>"
    assert rows[str(tmp_path / "warm_0")].endswith(cell)
    assert "Hopper-v5/prior" not in written(cold)[0]
    assert "started from" not in written(cold)[0]


def test_heat_maps_and_weights_of_policies_leave_the_prior_block_out(tmp_path):
    warm, cold = started(tmp_path / "warm", 0), write_run(tmp_path / "cold", returns=(500.0,))
    for figure, first in ((weight_history, 0), (policy_weights, 1)):
        found, plain = (figure(read_all([path])).rows for path in (warm, cold))
        last = [[row for row in rows if row["step"] == 750] for rows in (found, plain)]
        assert [row["policy"] for row in last[0]] == list(range(first, first + len(last[1]) - 1))
    shares = {row["policy"]: row["share"] for row in weight_history(read_all([warm])).rows if row["step"] == 750}
    assert shares == {i: pytest.approx(share) for i, share in enumerate(block_weights(4)[1:].tolist())}
    (note,) = weight_history(read_all([warm])).notes
    assert "transitions from before the run are left out; weights/prior is their weight" in note
