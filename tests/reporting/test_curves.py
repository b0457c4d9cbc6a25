"""Learning curves as rows: which runs a figure compares, and which published points stand beside them."""

import pytest
from csv_rows import pick
from fake_runs import write_run, write_seeds

from pdml.reporting import curves, published, read
from pdml.reporting.figures import KINDS


@pytest.fixture(scope="module")
def double(tmp_path_factory):
    """Hopper by both double-horizon methods, and by variants of them."""
    path = tmp_path_factory.mktemp("double")
    write_seeds(path, "dhmbpo", [[100.0 * i for i in range(1, 31)]] * 2, steps=30_000)
    write_seeds(path, "pdml-dhmbpo", [[110.0 * i for i in range(1, 31)]], steps=30_000)
    for option, value in (("double.far", 10), ("double.near", 3)):
        write_run(path / option, "dhmbpo", steps=30_000, **{option: value})
    for i, changes in enumerate([{"weigh": word} for word in ("model", "starts", "none")] + [{"mixture.rate": 0.3}]):
        write_run(path / f"arm{i}", "pdml-dhmbpo", steps=30_000, **changes)
    return path


def test_which_methods_are_compared():
    assert set(curves.ABLATION) == {"pdml", "pdml-model-only", "pdml-starts-only", "mbpo", "dhmbpo", "pdml-dhmbpo"}
    assert curves.RATED == ("pdml", "pdml-dhmbpo")
    assert curves.DOUBLE_HORIZON == ("dhmbpo", "pdml-dhmbpo")


def test_a_variant_of_a_method_is_not_compared_with_the_papers_curve_of_the_method(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **{"mixture.rate": 0.3})
    write_run(tmp_path / "c", **{"mixture.rate": 0.2})
    found = read.read_all([tmp_path])
    papers = {row["curve"] for row in curves.learning_curves(found).rows if row["source"] == "paper"}
    assert papers == {"pdml"}
    rates = curves.rates(found).rows
    assert {row["curve"]: row["rate"] for row in rates} == {
        "pdml": 0.02,
        "pdml mixture.rate=0.2": 0.2,
        "pdml mixture.rate=0.3": 0.3,
    }
    known = published.rate_curve("Hopper-v5", 0.3)
    assert known is not None
    assert [row["mean"] for row in rates if row["source"] == "paper" and row["rate"] == 0.3] == known.mean.tolist()
    assert pick(rates, source="paper", rate=0.2) == []


def test_both_double_horizon_methods_stand_beside_dhmbpos_published_curve_drawn_once(double):
    found = curves.learning_curves(read.read_all([double / "dhmbpo", double / "pdml-dhmbpo"]))
    points, known = [row for row in found.rows if row["source"] != "runs"], published.curve("Hopper-v5", "dhmbpo")
    assert known is not None
    assert {(row["curve"], row["source"], row["seeds"]) for row in points} == {("dhmbpo", "DHMBPO as published", 8)}
    assert {row["note"] for row in points} == {known.note}
    assert f"DHMBPO as published: {known.note}" in found.notes
    for title in ("steps", "mean", "low", "high"):
        assert [row[title.removesuffix("s")] for row in points] == getattr(known, title).tolist()
    (container,) = KINDS["curves"].draw(found.rows).axes[0].containers
    assert " ".join(container.get_label().split()) == f"DHMBPO as published: {known.note}"
    alone = curves.learning_curves(read.read_all([double / "pdml-dhmbpo"])).rows
    assert {row["curve"] for row in alone if row["source"] == "DHMBPO as published"} == {"pdml-dhmbpo"}


@pytest.mark.parametrize("method", ["dhmbpo", "pdml-dhmbpo"])
@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"preset": "published"}, "DHMBPO as published"),
        ({"updates_per_step": 2}, "DHMBPO as published, 2 updates per step"),
        ({"preset": "published", "updates_per_step": 2}, "DHMBPO as published, 2 updates per step"),
        ({"updates_per_step": 3}, None),
        ({"double.far": 10}, None),
        ({"preset": "published", "double.near": 3}, None),
        ({"warmup_steps": 4000}, None),
    ],
)
def test_dhmbpos_own_settings_have_its_published_curve_and_no_others(changes, label, method, tmp_path):
    path = write_run(tmp_path / "run", method, returns=[1.0], steps=1000, **changes)
    found = {row["source"] for row in curves.learning_curves(read.read_all([path])).rows}
    assert found == {"runs", label} - {None}


def test_arms_rates_and_horizons_of_the_double_horizon_methods(double):
    found = read.read_all([double])
    arms = {f"pdml-dhmbpo weigh={word}" for word in ("model", "starts", "none")}
    own = {"dhmbpo", "pdml-dhmbpo", "pdml-dhmbpo mixture.rate=0.3", *arms}
    horizons = {"dhmbpo double.far=10", "dhmbpo double.near=3"}
    assert {row["curve"] for row in curves.ablation(found).rows} == own | horizons
    rates = curves.rates(found).rows
    assert {row["curve"]: row["rate"] for row in rates} == dict.fromkeys(own - {"dhmbpo"}, 0.08) | {
        "pdml-dhmbpo mixture.rate=0.3": 0.3
    }
    assert {row["curve"] for row in rates if row["source"] != "runs"} == {"pdml-dhmbpo"}
    rows = curves.horizons(found).rows
    lengths = {row["curve"]: (row["far"], row["near"]) for row in rows}
    assert lengths == dict.fromkeys(own, (20, 5)) | dict(zip(sorted(horizons), [(10, 5), (20, 3)], strict=True))
    assert {row["curve"] for row in rows if row["source"] != "runs"} == {"dhmbpo"}


def test_a_repeated_seed_is_named(tmp_path):
    for copy in ("a", "b"):
        write_run(tmp_path / copy, returns=(100.0, 200.0))
    assert "pdml: 2 runs have seed 0; each is counted" in curves.learning_curves(read.read_all([tmp_path])).notes
