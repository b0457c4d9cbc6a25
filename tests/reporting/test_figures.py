"""Figures: what is drawn is what the csv says, what the csv says is what the runs say, and mistakes are named."""

import csv
import math
from functools import cache

import numpy as np
import pytest
from fake_runs import block_weights, diagnosed, write_run, write_seeds
from matplotlib.collections import QuadMesh

from pdml.cli import main
from pdml.config.schema import METHODS
from pdml.core.errors import UserError
from pdml.reporting import published, read, summary
from pdml.reporting.figures import KINDS, Wishes, save, write_rows
from pdml.reporting.style import FIGURES, METHOD_LOOKS, SPARE, looks

NAN = float("nan")
TOLD_APART = {"curves", "seeds", "errors", "compounding", "weights", "heatmap", "tsne", "ablation", "rates", "horizons"}
"""Figures of one environment."""


def parsed(text):
    if not text:
        return NAN
    try:
        return float(text)
    except ValueError:
        return text


def read_back(path):
    with path.open(newline="") as file:
        return [{key: parsed(text) for key, text in row.items()} for row in csv.DictReader(file)]


def pick(rows, **wanted):
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def column(rows, name):
    return np.array([row[name] for row in rows], float)


def drawn(line):
    return np.array(line.get_data(), float)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hopper by PDML with three seeds and MBPO with two, diagnosed, and SAC with one."""
    path = tmp_path_factory.mktemp("many")
    write_seeds(
        path, "pdml", [[100.0, 400.0, 900.0, 3200.0], [200.0, 500.0, 800.0, 3100.0], [300.0, 600.0]], diagnose=True
    )
    write_seeds(path, "mbpo", [[50.0, 150.0, 350.0, 550.0], [70.0, None, 450.0, NAN]], diagnose=True)
    write_seeds(path, "sac", [[10.0, 20.0, 30.0, 40.0]])
    for method, seed in (("pdml", 0), ("mbpo", 0)):
        analysis = path / method / str(seed) / "analysis"
        analysis.mkdir()
        write_rows(analysis / "tsne.csv", [{"step": s, "x": s / 7, "y": -s / 3 - seed} for s in (0, 0, 250, 500)])
    return path


@pytest.fixture(scope="module")
def double(many):
    """Hopper by both double-horizon methods, and by variants of them, beside the others."""
    path = many.parent / "double"
    write_seeds(path, "dhmbpo", [[100.0 * i for i in range(1, 31)]] * 2, steps=30_000)
    write_seeds(path, "pdml-dhmbpo", [[110.0 * i for i in range(1, 31)]], steps=30_000)
    for option, value in (("double.far", 10), ("double.near", 3)):
        write_run(path / option, "dhmbpo", steps=30_000, **{option: value})
    for i, changes in enumerate([{"weigh": word} for word in ("model", "starts", "none")] + [{"mixture.rate": 0.3}]):
        write_run(path / f"arm{i}", "pdml-dhmbpo", steps=30_000, **changes)
    return path


@cache
def chosen(many, kind):
    """Return the runs of a figure: all, or those that it is about."""
    if kind == "tsne":
        return read.read_all([many / "pdml" / "0", many / "mbpo" / "0"])
    if kind == "horizons":
        return read.read_all([many.parent / "double"])
    if kind == "heatmap":
        return read.read_all([many / "pdml" / "0", many / "mbpo" / "1"])
    return read.read_all([many])


def made(many, kind, out, **wishes):
    """Return the rows of a figure's csv, the drawing of its rows, and its notes, without saving pictures."""
    table = KINDS[kind].rows(chosen(many, kind), Wishes(**wishes))
    write_rows(out / "rows.csv", table.rows)
    return read_back(out / "rows.csv"), KINDS[kind].draw(table.rows), table.notes


def test_every_figure_of_the_list_is_made():
    assert list(KINDS) == list(FIGURES)


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_is_kept_as_png_pdf_and_csv(kind, many, double, tmp_path):
    paths, table = save(kind, chosen(many, kind), tmp_path / "new" / "dir", Wishes())
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "new" / "dir").iterdir()}
    assert [path.name for path in paths] == [f"{kind}.{ending}" for ending in ("csv", "png", "pdf")]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[2].read_bytes().startswith(b"%PDF")
    rows = read_back(paths[0])
    assert len(rows) == len(table.rows) > 0
    for row, kept in zip(rows, table.rows, strict=True):
        for key, value in kept.items():
            unknown = value in ("", None) or (isinstance(value, float) and math.isnan(value))
            assert math.isnan(row[key]) if unknown else row[key] == value, key


def test_curves_are_the_means_of_the_seeds(many, tmp_path):
    rows, _, notes = made(many, "curves", tmp_path)
    ours = pick(rows, source="runs", curve="pdml")
    assert column(ours, "step").tolist() == [1000, 2000, 3000, 4000]
    assert column(ours, "mean").tolist() == [200.0, 500.0, 850.0, 3150.0]
    assert column(ours, "seeds").tolist() == [3, 3, 2, 2]
    half = 4.302653 * 100 / math.sqrt(3)
    assert (ours[0]["low"], ours[0]["high"]) == pytest.approx((200 - half, 200 + half), abs=1e-4)
    theirs = pick(rows, source="runs", curve="mbpo")
    assert column(theirs, "mean").tolist() == [60.0, 150.0, 400.0, 550.0]
    assert column(theirs, "seeds").tolist() == [2, 1, 2, 1]
    alone = pick(rows, source="runs", curve="sac")
    assert np.isnan(column(alone, "low")).all()
    assert notes == [
        "pdml seed 2: ends at step 2000, others go on to 4000; later points use fewer seeds",
        "mbpo seed 1: 1 of 3 values are not finite and were left out",
        "mbpo seed 1: no value at 1 steps, first at 2000; the others' are used",
        "mbpo seed 1: ends at step 3000, others go on to 4000; later points use fewer seeds",
    ]


def test_every_run_has_its_own_line_even_beside_one_of_the_same_seed(tmp_path):
    write_seeds(tmp_path, "dhmbpo", [[100.0, NAN, 300.0], [200.0]])
    write_run(tmp_path / "again", "dhmbpo", seed=1, returns=[5.0, 7.0, 9.0])
    write_run(tmp_path / "other", "pdml-dhmbpo", returns=[1.0, 2.0, 3.0])
    table = summary.each_seed(read.read_all([tmp_path]))
    left, right = KINDS["seeds"].draw(table.rows).axes
    kept = [(line.get_label(), drawn(line).tolist()) for line in left.get_lines()[-3:]]
    assert sorted(kept) == [
        ("seed 0", [[1000, 3000], [100.0, 300.0]]),
        ("seed 1", [[1000], [200.0]]),
        ("seed 1", [[1000, 2000, 3000], [5.0, 7.0, 9.0]]),
    ]
    published = [row for row in table.rows if row["source"] != "runs"]
    assert {row["curve"] for row in published} == {"dhmbpo", "pdml-dhmbpo"}  # in both panels
    assert (left.get_ylim(), left.get_xlim()) == (right.get_ylim(), right.get_xlim())
    assert "dhmbpo seed 0: 1 of 3 values are not finite and were left out" in table.notes
    assert sum("as published" in note for note in table.notes) == 1
    assert len(KINDS["seeds"].draw(published).axes) == 2  # runs without an evaluation yet


@pytest.mark.parametrize("kind", ["curves", "ablation", "rates"])
def test_drawn_curves_and_the_papers_points_are_those_of_the_csv(kind, many, tmp_path):
    rows, figure, _ = made(many, kind, tmp_path)
    (axis,) = figure.axes
    labelled = {line.get_label(): line for line in axis.lines}
    containers = {container.get_label(): container for container in axis.containers}
    names = list(dict.fromkeys(row["curve"] for row in rows))
    assert names == {"curves": ["pdml", "mbpo", "sac"], "ablation": ["pdml", "mbpo"], "rates": ["pdml"]}[kind]
    for i, curve in enumerate(names):
        ours, paper = pick(rows, curve=curve, source="runs"), pick(rows, curve=curve, source="paper")
        most = int(column(ours, "seeds").max())
        line = labelled[f"{curve} ({most} seed{'s' if most > 1 else ''})"]
        np.testing.assert_array_equal(drawn(line), [column(ours, "step"), column(ours, "mean")])
        assert line.get_color() == METHOD_LOOKS[curve].color
        band = np.concatenate([path.vertices for path in axis.collections[3 * i].get_paths()] or [np.zeros((0, 2))])
        for row in ours:
            if not math.isnan(row["low"]):
                edges = band[band[:, 0] == row["step"], 1]
                assert {row["low"], row["high"]} == set(edges.tolist())
        points, _, (whiskers, bands) = containers[f"{curve}, paper"]
        np.testing.assert_array_equal(drawn(points), [column(paper, "step"), column(paper, "mean")])
        assert points.get_markerfacecolor() == "white"
        for row, segment in zip(paper, whiskers.get_segments(), strict=True):
            ends = [(row["step"] - row["half_bin"], row["mean"]), (row["step"] + row["half_bin"], row["mean"])]
            np.testing.assert_allclose(segment, ends)
            assert row["half_bin"] == pytest.approx(10_000, rel=1e-3)
        for row, segment in zip(paper, bands.get_segments(), strict=True):
            low, high = (row["mean"] if math.isnan(row[end]) else row[end] for end in ("low", "high"))
            np.testing.assert_allclose(segment, [(row["step"], low), (row["step"], high)])


def test_the_papers_points_are_the_papers(many, tmp_path):
    rows, _, _ = made(many, "curves", tmp_path)
    for method in ("pdml", "mbpo", "sac"):
        paper, known = pick(rows, curve=method, source="paper"), published.curve("Hopper-v5", method)
        assert known is not None
        np.testing.assert_array_equal(column(paper, "step"), known.steps)
        np.testing.assert_array_equal(column(paper, "mean"), known.mean)
        np.testing.assert_array_equal(column(paper, "low"), known.low)


def test_short_runs_are_not_squashed_by_the_papers_curves(many, tmp_path):
    _, figure, _ = made(many, "curves", tmp_path)
    assert figure.axes[0].get_xlim()[1] == pytest.approx(4400)


def test_a_variant_of_a_method_is_not_compared_with_the_papers_curve_of_the_method(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **{"mixture.rate": 0.3})
    write_run(tmp_path / "c", **{"mixture.rate": 0.2})
    found = read.read_all([tmp_path])
    papers = {row["curve"] for row in summary.learning_curves(found).rows if row["source"] == "paper"}
    assert papers == {"pdml"}
    rates = summary.rates(found).rows
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
    table = summary.learning_curves(read.read_all([double / "dhmbpo", double / "pdml-dhmbpo"]))
    points, known = [row for row in table.rows if row["source"] != "runs"], published.curve("Hopper-v5", "dhmbpo")
    assert known is not None
    assert {(row["curve"], row["source"], row["seeds"]) for row in points} == {("dhmbpo", "DHMBPO as published", 8)}
    assert {row["note"] for row in points} == {known.note}
    assert f"DHMBPO as published: {known.note}" in table.notes
    for title in ("steps", "mean", "low", "high"):
        assert [row[title.removesuffix("s")] for row in points] == getattr(known, title).tolist()
    (container,) = KINDS["curves"].draw(table.rows).axes[0].containers
    assert " ".join(container.get_label().split()) == f"DHMBPO as published: {known.note}"
    alone = summary.learning_curves(read.read_all([double / "pdml-dhmbpo"])).rows
    assert {row["curve"] for row in alone if row["source"] == "DHMBPO as published"} == {"pdml-dhmbpo"}


@pytest.mark.parametrize("method", ["dhmbpo", "pdml-dhmbpo"])
@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"preset": "published"}, "DHMBPO as published"),
        ({"updates_per_step": 2}, "DHMBPO as published, 2 updates a step"),
        ({"preset": "published", "updates_per_step": 2}, "DHMBPO as published, 2 updates a step"),
        ({"updates_per_step": 3}, None),
        ({"double.far": 10}, None),
        ({"preset": "published", "double.near": 3}, None),
        ({"warmup_steps": 4000}, None),
    ],
)
def test_dhmbpos_own_settings_have_its_published_curve_and_no_others(changes, label, method, tmp_path):
    path = write_run(tmp_path / "run", method, returns=[1.0], steps=1000, **changes)
    found = {row["source"] for row in summary.learning_curves(read.read_all([path])).rows}
    assert found == {"runs", label} - {None}


def test_arms_rates_and_horizons_of_the_double_horizon_methods(double):
    found = read.read_all([double])
    arms = {f"pdml-dhmbpo weigh={word}" for word in ("model", "starts", "none")}
    own = {"dhmbpo", "pdml-dhmbpo", "pdml-dhmbpo mixture.rate=0.3", *arms}
    horizons = {"dhmbpo double.far=10", "dhmbpo double.near=3"}
    assert {row["curve"] for row in summary.ablation(found).rows} == own | horizons
    rates = summary.rates(found).rows
    assert {row["curve"]: row["rate"] for row in rates} == dict.fromkeys(own - {"dhmbpo"}, 0.08) | {
        "pdml-dhmbpo mixture.rate=0.3": 0.3
    }
    assert {row["curve"] for row in rates if row["source"] != "runs"} == {"pdml-dhmbpo"}
    rows = summary.horizons(found).rows
    lengths = {row["curve"]: (row["far"], row["near"]) for row in rows}
    assert lengths == dict.fromkeys(own, (20, 5)) | dict(zip(sorted(horizons), [(10, 5), (20, 3)], strict=True))
    assert {row["curve"] for row in rows if row["source"] != "runs"} == {"dhmbpo"}


def test_errors_are_drawn_as_diagnosed(many, tmp_path):
    rows, figure, notes = made(many, "errors", tmp_path)
    for error, axis in zip(("current", "overall"), figure.axes, strict=True):
        line, _ = axis.lines
        found = pick(rows, curve="pdml", error=error)
        np.testing.assert_array_equal(drawn(line), [column(found, "step"), column(found, "mean")])
        seeds = (0, 1, 2)
        expected = [
            np.mean([diagnosed(seed, step)[f"{error}_l2"] for seed in seeds if seed < 2 or step <= 2000])
            for step in (1000, 2000, 3000, 4000)
        ]
        np.testing.assert_allclose(column(found, "mean"), expected)
    assert "sac seed 0: not diagnosed" in notes
    assert "pdml seed 2: ends at step 2000, others go on to 4000; later points use fewer seeds" in notes


def test_compounding_errors_are_drawn_over_depth_at_the_last_common_step(many, tmp_path):
    rows, figure, _ = made(many, "compounding", tmp_path)
    assert {row["step"] for row in rows} == {2000}
    for curve, line in zip(("pdml", "mbpo"), figure.axes[0].lines, strict=True):
        found = pick(rows, curve=curve)
        np.testing.assert_array_equal(drawn(line), [column(found, "depth"), column(found, "mean")])
        seeds = range(int(found[0]["seeds"]))
        expected = [np.mean([diagnosed(s, 2000)[f"compounding_{d:02d}"] for s in seeds]) for d in (1, 2, 3, 4)]
        np.testing.assert_allclose(column(found, "mean"), expected)


def test_compounding_errors_at_chosen_steps(many, tmp_path):
    rows, figure, notes = made(many, "compounding", tmp_path, at=(1000, 3000))
    assert [axis.get_title() for axis in figure.axes] == ["step 1000", "step 3000"]
    for axis, step in zip(figure.axes, (1000, 3000), strict=True):
        np.testing.assert_array_equal(drawn(axis.lines[0])[1], column(pick(rows, curve="pdml", step=step), "mean"))
    assert {row["seeds"] for row in pick(rows, curve="pdml", step=3000)} == {2}
    assert "pdml seed 2: not diagnosed at step 3000" in notes
    with pytest.raises(UserError, match="at = 1500: not diagnosed; there are 1000, 2000, 3000, 4000"):
        summary.compounding(chosen(many, "curves"), (1500,))


def test_depths_that_no_episode_reached_are_left_out_and_named(tmp_path):
    for seed in (0, 1):
        path = write_run(tmp_path / str(seed), seed=seed, diagnose=True)
    text = (path / "diagnostics.csv").read_text().splitlines()
    cut = [",".join([*line.split(",")[:-2], "nan", "nan"]) for line in text[1:]]
    (path / "diagnostics.csv").write_text("\n".join([text[0], *cut, ""]))
    table = summary.compounding(read.read_all([tmp_path]), (3000, 4000))
    assert [row["seeds"] for row in table.rows] == [2, 2, 1, 1] * 2
    assert table.notes == [
        f"pdml, step {step}: from depth 3 on, not every seed had an episode so long" for step in (3000, 4000)
    ]


def test_weights_have_the_papers_form(many, tmp_path):
    rows, figure, notes = made(many, "weights", tmp_path, at=(1000,))
    assert notes == ["sac seed 0: no weights of blocks are kept"]
    (axis,) = figure.axes
    for curve, seeds in (("pdml", 3), ("mbpo", 2)):
        for seed in range(seeds):
            found = pick(rows, curve=curve, seed=seed)
            blocks = block_weights(5)
            assert len(found) == len(blocks) - 2  # without warm-up and newest
            assert column(found, "weight").sum() == pytest.approx(1.0)
            np.testing.assert_allclose(column(found, "weight"), blocks[1:-1] / blocks[1:-1].sum(), rtol=1e-6)
            (line,) = [line for line in axis.lines if line.get_label() == f"{curve}, seed {seed}"]
            np.testing.assert_array_equal(drawn(line), [column(found, "policy"), column(found, "weight")])
    with pytest.raises(UserError, match="at = 900: pdml seed 0 has no weights of that step; the nearest is 1000"):
        summary.mixture_weights(chosen(many, "curves"), (900,))


def test_the_papers_weights_are_drawn_once(tmp_path):
    for seed in (0, 1):
        path = write_run(tmp_path / str(seed), env="Humanoid-v5", seed=seed, returns=[5.0], steps=1000)
        (path / "blocks" / "step_00005750.safetensors").rename(path / "blocks" / "step_00055000.safetensors")
    table = summary.mixture_weights(read.read_all([tmp_path]), (50_000,))
    paper, known = pick(table.rows, source="paper"), published.mixture("Humanoid-v5", 50_000)
    assert known is not None
    np.testing.assert_array_equal(column(paper, "weight"), known)
    assert column(paper, "policy").tolist() == list(range(1, 200))
    lines = KINDS["weights"].draw(table.rows).axes[0].lines
    assert [line.get_label() for line in lines] == ["pdml, seed 0", "pdml, paper", "pdml, seed 1"]
    np.testing.assert_array_equal(drawn(lines[1])[1], known)


def test_heat_maps_hold_the_weights_of_every_block(many, tmp_path):
    rows, figure, notes = made(many, "heatmap", tmp_path)
    assert notes == []
    for axis, (curve, seed) in zip(figure.axes, (("pdml", 0), ("mbpo", 1)), strict=False):
        (mesh,) = [artist for artist in axis.collections if isinstance(artist, QuadMesh)]
        grid = np.ma.filled(np.ma.asarray(mesh.get_array(), float), NAN)
        assert grid.shape == (16, 16)
        found = pick(rows, curve=curve, seed=seed)
        for row in found:
            assert grid[int(row["policy"]), int(row["step"]) // 250] == row["share"]
        assert len(found) == np.isfinite(grid).sum() == 16 * 17 // 2
        np.testing.assert_array_equal(grid[:, 15], block_weights(16))


def test_a_heat_map_of_many_blocks_is_thinned_with_a_note(tmp_path):
    path = write_run(tmp_path / "run", steps=2000, returns=[1.0, 2.0], model_every=10)
    table = summary.weight_history(read.read_all([path]))
    assert table.notes == ["pdml seed 0: of its 200 blocks one in 2 is shown"]
    steps = sorted({row["step"] for row in table.rows})
    assert steps == list(range(10, 2000, 20))  # the last is among them
    assert len(steps) <= summary.HEAT_STEPS


def test_visited_states_are_drawn_where_the_csv_has_them(many, tmp_path):
    rows, figure, _ = made(many, "tsne", tmp_path)
    assert [axis.get_title() for axis in figure.axes] == ["pdml seed 0", "mbpo seed 0"]
    for axis in figure.axes:
        for step, points in zip((0, 250, 500), axis.collections, strict=True):
            found = pick(rows, curve=axis.get_title(), step=step)
            np.testing.assert_array_equal(
                points.get_offsets(), np.stack([column(found, "x"), column(found, "y")], axis=1)
            )


def test_time_counts_neither_evaluation_nor_diagnosis(many, tmp_path):
    rows, figure, _ = made(many, "time", tmp_path)
    assert [row["curve"] for row in rows] == ["pdml", "mbpo", "sac"]
    # A block of 250 steps takes 100 s, of which 20 do not count.
    np.testing.assert_allclose(column(rows, "hours_per_100k_mean"), 80 / 250 * 1e5 / 3600)
    assert column(rows, "seeds").tolist() == [3, 2, 1]
    assert column(rows, "times_mbpo").tolist() == [1.0, 1.0, 1.0]
    assert rows[0]["paper_times_mbpo"] == pytest.approx(35.7 / 35.5)
    assert math.isnan(rows[2]["paper_times_mbpo"])
    (axis,) = figure.axes
    assert [bar.get_width() for bar in axis.patches] == column(rows, "hours_per_100k_mean").tolist()
    assert [text.get_text() for text in axis.texts] == [
        " 8.89, 1.00 × mbpo (paper 1.01 ×)",
        " 8.89, 1.00 × mbpo (paper 1.00 ×)",
        " 8.89, 1.00 × mbpo",
    ]


def test_a_run_without_timing_is_named(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "timing.csv").unlink()
    table = summary.training_time(read.read_all([path]))
    assert table.notes == ["pdml seed 0: no timing"]
    (text,) = KINDS["time"].draw(table.rows).axes[0].texts
    assert text.get_text() == " no timing"


def test_steps_to_a_threshold_are_seed_by_seed_and_may_be_never(many, tmp_path):
    rows, figure, notes = made(many, "thresholds", tmp_path, threshold=500.0)
    assert [(row["curve"], row["seed"], row["steps"]) for row in rows] == [
        ("pdml", 0, 3000),
        ("pdml", 1, 2000),
        ("pdml", 2, 2000),
        ("mbpo", 0, 4000),
        ("mbpo", 1, math.inf),
        ("sac", 0, math.inf),
    ]
    assert notes == ["mbpo seed 1: 1 evaluations are not numbers; they count as below the threshold"]
    lines = figure.axes[0].lines
    edge = 1.08 * 4000
    for curve, reached, never in zip(("pdml", "mbpo", "sac"), lines[::2], lines[1::2], strict=True):
        steps = column(pick(rows, curve=curve), "steps")
        np.testing.assert_array_equal(drawn(reached)[0], steps[np.isfinite(steps)])
        assert drawn(never)[0].tolist() == [edge] * int(np.isinf(steps).sum())
    assert [text.get_text() for text in figure.axes[0].texts] == ["never"]


def test_the_threshold_is_the_papers_last_point_of_mbpo(many, tmp_path):
    rows, _, _ = made(many, "thresholds", tmp_path)
    assert {row["threshold"] for row in rows} == {published.final_return("Hopper-v5", "mbpo")}
    assert [row["steps"] for row in rows][:3] == [4000.0, math.inf, math.inf]


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
    table = summary.aggregates(read.read_all([two_tasks]))
    write_rows(tmp_path / "rows.csv", table.rows)
    rows = read_back(tmp_path / "rows.csv")
    values = {(row["statistic"], row["curve"]): row["mean"] for row in rows}
    assert values["iqm", "pdml"] == pytest.approx(np.mean([0.8, 0.85, 0.9, 0.95]))  # of eight two are cut on each side
    assert values["iqm", "mbpo"] == pytest.approx(0.6)
    assert values["optimality_gap", "pdml"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.15 + 0.05 + 0.7) / 8)
    assert values["optimality_gap", "mbpo"] == pytest.approx(0.4)
    assert values["probability", "pdml"] == pytest.approx((5.5 / 6 + 7 / 10) / 2)  # one tie
    assert values["probability", "mbpo"] == pytest.approx(1 - values["probability", "pdml"])
    assert [row["seeds"] for row in rows if row["statistic"] == "iqm"] == [8, 4]
    assert table.notes == ["pdml: tasks have different numbers of seeds; each seed counts alike"]
    figure = KINDS["aggregate"].draw(table.rows)
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
    table = summary.aggregates(read.read_all([two_tasks, hopper, broken, unborn]))
    assert table.notes == [
        "Hopper-v5: compared at step 2000; sac seed 0 went on",
        "pdml seed 8: no evaluation",
        "mbpo seed 7 on Hopper-v5: its last return is not a number and was left out",
        "pdml: tasks have different numbers of seeds; each seed counts alike",
        "mbpo: tasks have different numbers of seeds; each seed counts alike",
        "sac: runs on 1 of 2 tasks; its aggregates are over these",
    ]
    assert [row["seeds"] for row in pick(table.rows, statistic="iqm")] == [8, 4, 1]


def test_last_returns_beside_the_papers(many):
    table = summary.final_returns(chosen(many, "curves"))
    rows = {row["curve"]: row for row in table.rows}
    assert rows["pdml"]["mean"] == pytest.approx(np.mean([3200.0, 3100.0, 600.0]))
    assert (rows["mbpo"]["mean"], rows["mbpo"]["seeds"]) == (500.0, 2)
    assert (rows["mbpo"]["first_step"], rows["mbpo"]["step"]) == (3000, 4000)
    assert rows["pdml"]["paper"] == published.final_return("Hopper-v5", "pdml")
    assert rows["pdml"]["paper_step"] == 120_000
    assert table.notes == [
        "pdml on Hopper-v5: seeds end at different steps, 2000 to 4000",
        "mbpo seed 1 on Hopper-v5: its last return is not a number; the last that is one is taken",
        "mbpo on Hopper-v5: seeds end at different steps, 3000 to 4000",
    ]


def test_the_mean_of_the_last_five_evaluations(double, tmp_path):
    rows = {row["curve"]: row for row in summary.final_returns(read.read_all([double])).rows}
    assert (rows["dhmbpo"]["mean"], rows["dhmbpo"]["last_five"]) == (3000.0, 2800.0)
    assert math.isnan(rows["dhmbpo double.far=10"]["last_five"])  # of four evaluations
    last = published.final_return("Hopper-v5", "dhmbpo")
    for curve in ("dhmbpo", "pdml-dhmbpo"):
        assert (rows[curve]["paper"], rows[curve]["paper_step"]) == (last, 195_000)
    write_seeds(tmp_path, "pdml", [[1.0, 2.0, 3.0, NAN, 4.0, 5.0, 6.0], [1.0]], steps=7000)
    table = summary.final_returns(read.read_all([tmp_path]))
    assert table.rows[0]["last_five"] == 4.0
    assert "pdml on Hopper-v5: seeds with fewer than five evaluations are not in the last five" in table.notes


@pytest.mark.parametrize("kind", FIGURES)
def test_one_plot_shows_one_environment(kind, tmp_path):
    method = "pdml-dhmbpo" if kind == "horizons" else "pdml"
    for env in ("Ant-v5", "Hopper-v5"):
        path = write_run(tmp_path / env, method, env=env, diagnose=True, returns=[1.0], steps=1000)
        (path / "analysis").mkdir()
        write_rows(path / "analysis" / "tsne.csv", [{"step": 0, "x": 0.0, "y": 1.0}])
    both = read.read_all([tmp_path])
    if kind in TOLD_APART:
        with pytest.raises(UserError, match="runs of Ant-v5, Hopper-v5: one plot shows one environment"):
            KINDS[kind].rows(both, Wishes())
    else:
        found = KINDS[kind].rows(both, Wishes())
        assert len(KINDS[kind].draw(found.rows).axes) >= 1
        assert found.rows[0].get("seeds") == 2 or {row["env"] for row in found.rows} == {"Ant-v5", "Hopper-v5"}


def test_panels_beyond_four_go_on_below(tmp_path):
    for seed in range(5):
        write_run(tmp_path / str(seed), seed=seed, returns=[1.0], steps=1000)
    figure = KINDS["heatmap"].draw(summary.weight_history(read.read_all([tmp_path])).rows)
    assert [axis.get_title() for axis in figure.axes[:5]] == [f"pdml, seed {seed}" for seed in range(5)]
    assert figure.get_size_inches().tolist() == [4 * 5.6, 2 * 4.2]


def test_every_method_has_its_own_look_and_variants_have_others():
    assert set(METHOD_LOOKS) == set(METHODS)
    assert len(set(METHOD_LOOKS.values())) == len(METHODS)
    assert not set(SPARE) & set(METHOD_LOOKS.values())
    found = looks(["pdml", *(f"pdml mixture.rate={rate}" for rate in range(len(SPARE))), "pdml"])
    assert len(set(found.values())) == 1 + len(SPARE)
    assert found["pdml"] == METHOD_LOOKS["pdml"]


def test_numbers_are_written_so_that_they_read_back_exactly(tmp_path):
    values = [0.1, 1 / 3, -2.5e-300, math.inf, 12345678901234567.0]
    write_rows(tmp_path / "a.csv", [{"a": value, "b": None} for value in values] + [{"a": NAN, "c": 7}])
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "a,b,c"
    assert column(read_back(tmp_path / "a.csv")[:-1], "a").tolist() == values
    assert (tmp_path / "a.csv").read_text().splitlines()[-1] == ",,7"


# The command line.


def figure(*words):
    return main(["figure", *map(str, words)])


def test_the_command_writes_three_files_names_them_and_repeats_itself(many, tmp_path, capsys):
    first, again = tmp_path / "a", tmp_path / "b"
    assert figure("thresholds", many, "--threshold", "500", "--out", first) == 0
    out, err = capsys.readouterr()
    note = "note: mbpo seed 1: 1 evaluations are not numbers; they count as below the threshold"
    assert out.splitlines() == [note, *(str(first / f"thresholds.{ending}") for ending in ("csv", "png", "pdf"))]
    assert err == ""
    assert {row["threshold"] for row in read_back(first / "thresholds.csv")} == {500.0}
    assert figure("thresholds", many, "--threshold", "500", "--out", again) == 0
    for path in first.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_options_reach_the_figure(many, two_tasks, tmp_path):
    assert figure("compounding", many, "--at", "1000,3000", "--out", tmp_path) == 0
    assert {row["step"] for row in read_back(tmp_path / "compounding.csv")} == {1000.0, 3000.0}
    assert figure("aggregate", two_tasks, "--seed", "3", "--out", tmp_path) == 0
    rows = read_back(tmp_path / "aggregate.csv")
    for seed in (3, 4):
        found = summary.aggregates(read.read_all([two_tasks]), seed).rows
        same = [
            row["low"] == kept["low"] and row["high"] == kept["high"] for row, kept in zip(found, rows, strict=True)
        ]
        assert all(same) == (seed == 3)


def test_list_figures(capsys):
    assert main(["list", "figures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)


BAD = [
    ("curve RUN", "figure = 'curve': unknown (did you mean curves?); allowed: curves, seeds, errors"),
    ("curves", "the following arguments are required: RUN"),
    ("curves NOWHERE", "nowhere': no run there or below (no config.json)"),
    ("curves RUN NOWHERE", "nowhere': no run there or below (no config.json)"),
    ("curves RUN OTHER", "runs of Ant-v5, Hopper-v5: one plot shows one environment; give the runs of one"),
    ("errors RUN", "none of the runs was diagnosed: train with --diagnose"),
    ("tsne RUN", "no analysis/tsne.csv; run pdml analyse tsne first"),
    ("weights SAC", "none of the runs keeps the weights of its blocks"),
    ("heatmap SAC", "none of the runs keeps the weights of its blocks"),
    ("ablation SAC", "no run of pdml, pdml-model-only, pdml-starts-only, mbpo, dhmbpo, pdml-dhmbpo"),
    ("rates SAC", "no run of pdml, pdml-dhmbpo: their runs are compared by mixture.rate"),
    ("horizons RUN", "no run of dhmbpo, pdml-dhmbpo: their runs are compared by double.far and double.near"),
    ("weights RUN --at 7", "at = 7: pdml seed 0 has no weights of that step; the nearest is 0"),
    ("weights RUN --at x", "at = 'x': must be a whole number"),
    ("thresholds RUN --threshold much", "threshold = 'much': must be a number"),
    ("aggregate RUN --seed -1", "seed = '-1': must be a whole number"),
    ("curves PENDULUM", "the runs have nothing to draw yet (pdml seed 0: no value at all)"),
    ("aggregate PENDULUM", "no evaluation in any of the runs"),
    ("curves RUN --out FILE", "file': cannot be written"),
    ("curves RUN --ot x", "'--ot': pdml figure has no such argument"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    path = tmp_path_factory.mktemp("places")
    write_run(path / "run", returns=[1.0], steps=1000)
    write_run(path / "other", env="Ant-v5", returns=[1.0], steps=1000)
    write_run(path / "sac", "sac", returns=[1.0], steps=1000)
    write_run(path / "pendulum", env="InvertedPendulum-v5", returns=[], finished=False)
    (path / "file").write_text("")
    return path


@pytest.mark.parametrize(("words", "message"), BAD)
def test_mistakes_are_one_line_and_exit_code_2(words, message, places, tmp_path, capsys):
    out = [] if "--out" in words else ["--out", tmp_path / "out"]
    given = [places / word.lower() if word.isupper() else word for word in words.split()]
    assert figure(*given, *out) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("pdml: ")
    assert message in captured.err
    assert not (tmp_path / "out").exists()


def test_what_is_whole_of_damaged_files_is_drawn_and_the_rest_named(tmp_path, capsys):
    half, empty = (write_run(tmp_path / "runs" / str(seed), seed=seed, returns=[100.0, 200.0]) for seed in (0, 1))
    (half / "evaluations.csv").write_text((half / "evaluations.csv").read_text()[:-5])
    (empty / "evaluations.csv").write_text("")
    assert figure("curves", tmp_path / "runs", "--out", tmp_path / "out") == 2
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"pdml: {half / 'evaluations.csv'}: line 5 is half-written and was left out",
        f"pdml: {half / 'evaluations.csv'}: step 7000 lacks episodes and was left out",
        f"pdml: {empty / 'evaluations.csv'}: is empty",
    ]
    endings = ("csv", "png", "pdf")
    assert out.splitlines() == [
        "note: pdml seed 1: no value at all",
        *(str(tmp_path / "out" / f"curves.{ending}") for ending in endings),
    ]
    assert all((tmp_path / "out" / f"curves.{ending}").stat().st_size > 0 for ending in endings)
    rows = pick(read_back(tmp_path / "out" / "curves.csv"), source="runs")
    assert [(row["mean"], row["seeds"]) for row in rows] == [(100.0, 1.0)]


def test_where_nothing_is_whole_the_damage_is_named_before_the_refusal(tmp_path, capsys):
    path = write_run(tmp_path / "run", env="InvertedPendulum-v5")
    (path / "evaluations.csv").write_text("step,episode,return,length\n")
    assert figure("curves", path, "--out", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"pdml: {path / 'evaluations.csv'}: has a head and no rows"
    assert lines[1].startswith("pdml: figure = 'curves': the runs have nothing to draw yet")


def test_a_damaged_analysis_is_drawn_as_far_as_it_is_whole(tmp_path, capsys):
    path = write_run(tmp_path / "run")
    (path / "analysis").mkdir()
    file = path / "analysis" / "tsne.csv"
    file.write_text("step,x,y\n0,1.0,2.0\n0,1.0\n250,3.0,4.0\n")
    assert figure("tsne", path, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == f"pdml: {file}: line 3 is damaged and was left out\n"
    assert column(read_back(tmp_path / "out" / "tsne.csv"), "x").tolist() == [1.0, 3.0]
    file.write_text("step,x\n")
    assert figure("tsne", path, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == f"pdml: {file}: its head is damaged; nothing of it was read\n"


def test_a_seed_that_is_there_twice_is_named(tmp_path):
    for copy in ("a", "b"):
        write_run(tmp_path / copy, returns=(100.0, 200.0))
    assert (
        "pdml: seed 0 is there 2 times and counts as often" in summary.learning_curves(read.read_all([tmp_path])).notes
    )
