"""Figures: what is drawn is what the csv says, what the csv says is what the runs say, and mistakes are named."""

import math
from functools import cache

import numpy as np
import pytest
from csv_rows import NAN, column, drawn, pick, read_back
from fake_runs import block_weights, diagnosed, write_run, write_seeds
from matplotlib.collections import QuadMesh

from pdml.config.methods import METHODS
from pdml.core.errors import UserError
from pdml.reporting import blocks, curves, model_errors, published, read
from pdml.reporting.figures import KINDS, FigureOptions, save_figure
from pdml.reporting.rows import write_rows
from pdml.reporting.style import FIGURES, SPARE_LINES, lines

OF_ONE_ENVIRONMENT = {
    "curves",
    "seeds",
    "errors",
    "compounding",
    "weights",
    "heatmap",
    "tsne",
    "ablation",
    "rates",
    "horizons",
    "behaviour",
}
"""Figures that show a single environment."""


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Hopper by PDML with three seeds and MBPO with two, diagnosed, SAC with one; beside it, double-horizon methods."""
    path = tmp_path_factory.mktemp("many") / "hopper"
    write_seeds(
        path, "pdml", [[100.0, 400.0, 900.0, 3200.0], [200.0, 500.0, 800.0, 3100.0], [300.0, 600.0]], diagnose=True
    )
    write_seeds(path, "mbpo", [[50.0, 150.0, 350.0, 550.0], [70.0, None, 450.0, NAN]], diagnose=True)
    write_seeds(path, "sac", [[10.0, 20.0, 30.0, 40.0]])
    for method, seed in (("pdml", 0), ("mbpo", 0)):
        analysis = path / method / str(seed) / "analysis"
        analysis.mkdir()
        write_rows(analysis / "tsne.csv", [{"step": s, "x": s / 7, "y": -s / 3 - seed} for s in (0, 0, 250, 500)])
    write_seeds(path.parent / "double", "dhmbpo", [[100.0, 200.0], [300.0]])
    write_run(path.parent / "double" / "far", "pdml-dhmbpo", **{"double.far": 10})
    return path


@cache
def chosen(many, kind):
    """Return the runs that a figure can show."""
    if kind == "tsne":
        return read.read_all([many / "pdml" / "0", many / "mbpo" / "0"])
    if kind == "horizons":
        return read.read_all([many.parent / "double"])
    if kind == "heatmap":
        return read.read_all([many / "pdml" / "0", many / "mbpo" / "1"])
    return read.read_all([many])


def made(many, kind, out, **options):
    """Return the rows of a figure's csv, the drawing of its rows, and its notes, without saving pictures."""
    found = KINDS[kind].rows(chosen(many, kind), FigureOptions(**options))
    write_rows(out / "rows.csv", found.rows)
    return read_back(out / "rows.csv"), KINDS[kind].draw(found.rows), found.notes


def test_every_figure_of_the_list_is_made():
    assert list(KINDS) == list(FIGURES)


@pytest.mark.parametrize("kind", ["curves", "heatmap"])
def test_a_figure_is_saved_as_png_pdf_and_csv(kind, many, tmp_path):
    paths, found = save_figure(kind, chosen(many, kind), tmp_path / "new" / "dir", FigureOptions())
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "new" / "dir").iterdir()}
    assert [path.name for path in paths] == [f"{kind}.{ending}" for ending in ("csv", "png", "pdf")]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert paths[2].read_bytes().startswith(b"%PDF")
    assert len(read_back(paths[0])) == len(found.rows)


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_is_laid_out_and_its_csv_has_its_rows(kind, many, tmp_path):
    found = KINDS[kind].rows(chosen(many, kind), FigureOptions())
    KINDS[kind].draw(found.rows).draw_without_rendering()  # a warning would be an error
    write_rows(tmp_path / "rows.csv", found.rows)
    rows = read_back(tmp_path / "rows.csv")
    assert len(rows) == len(found.rows) > 0
    for row, kept in zip(rows, found.rows, strict=True):
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
        "pdml seed 2: ends at step 2000, others at 4000; later points average fewer seeds",
        "mbpo seed 1: 1 of 3 values are not finite and were left out",
        "mbpo seed 1: no value at 1 of 4 steps, first at 2000; these points average fewer seeds",
        "mbpo seed 1: ends at step 3000, others at 4000; later points average fewer seeds",
    ]


def test_every_run_has_its_own_line_even_beside_one_of_the_same_seed(tmp_path):
    write_seeds(tmp_path, "dhmbpo", [[100.0, NAN, 300.0], [200.0]])
    write_run(tmp_path / "again", "dhmbpo", seed=1, returns=[5.0, 7.0, 9.0])
    write_run(tmp_path / "other", "pdml-dhmbpo", returns=[1.0, 2.0, 3.0])
    found = curves.each_seed(read.read_all([tmp_path]))
    left, right = KINDS["seeds"].draw(found.rows).axes
    kept = [(line.get_label(), drawn(line).tolist()) for line in left.get_lines()[-3:]]
    assert sorted(kept) == [
        ("seed 0", [[1000, 3000], [100.0, 300.0]]),
        ("seed 1", [[1000], [200.0]]),
        ("seed 1", [[1000, 2000, 3000], [5.0, 7.0, 9.0]]),
    ]
    published = [row for row in found.rows if row["source"] != "runs"]
    assert {row["curve"] for row in published} == {"dhmbpo", "pdml-dhmbpo"}  # in both panels
    assert (left.get_ylim(), left.get_xlim()) == (right.get_ylim(), right.get_xlim())
    assert "dhmbpo seed 0: 1 of 3 values are not finite and were left out" in found.notes
    assert sum("as published" in note for note in found.notes) == 1
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
        assert line.get_color() == METHODS[curve].line.color
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
            assert row["half_bin"] == 5000
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
    assert figure.axes[0].get_xlim()[1] == 10_000  # the end of the bin that they end in


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
    assert "pdml seed 2: ends at step 2000, others at 4000; later points average fewer seeds" in notes


def test_an_axis_of_errors_does_not_go_below_zero(tmp_path):
    write_run(tmp_path / "run", diagnose=True)
    rows = model_errors.one_step_errors(read.read_all([tmp_path])).rows
    for row, mean in zip(rows, (9.0, 1.0), strict=False):  # half the range of the means below the smallest is −3
        row |= {"mean": mean, "low": -5.0, "high": 20.0}
    current, _ = KINDS["errors"].draw(rows).axes
    assert current.get_ylim()[0] == 0.0


def test_compounding_errors_are_drawn_over_depth_at_the_last_common_step(many, tmp_path):
    rows, figure, notes = made(many, "compounding", tmp_path)
    assert {row["step"] for row in rows} == {2000}
    assert "at step 2000, the last that all runs were diagnosed at; some were at 4000" in notes
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
        model_errors.compounding_errors(chosen(many, "curves"), (1500,))


def test_depths_that_no_episode_reached_are_left_out_and_named(tmp_path):
    for seed in (0, 1):
        path = write_run(tmp_path / str(seed), seed=seed, diagnose=True)
    text = (path / "diagnostics.csv").read_text().splitlines()
    cut = [",".join([*line.split(",")[:-2], "nan", "nan"]) for line in text[1:]]
    (path / "diagnostics.csv").write_text("\n".join([text[0], *cut, ""]))
    found = model_errors.compounding_errors(read.read_all([tmp_path]), (3000, 4000))
    assert [row["seeds"] for row in found.rows] == [2, 2, 1, 1] * 2
    assert found.notes == [
        f"pdml, step {step}: from depth 3, some seeds had no episode that long" for step in (3000, 4000)
    ]


def test_weights_have_the_papers_form(many, tmp_path):
    rows, figure, notes = made(many, "weights", tmp_path, at=(1000,))
    assert notes == ["sac seed 0: no block weights"]
    (axis,) = figure.axes
    for curve, seeds in (("pdml", 3), ("mbpo", 2)):
        for seed in range(seeds):
            found = pick(rows, curve=curve, seed=seed)
            weights = block_weights(5)
            assert len(found) == len(weights) - 2  # without warm-up and newest
            assert column(found, "weight").sum() == pytest.approx(1.0)
            np.testing.assert_allclose(column(found, "weight"), weights[1:-1] / weights[1:-1].sum(), rtol=1e-6)
            (line,) = [line for line in axis.lines if line.get_label() == f"{curve}, seed {seed}"]
            np.testing.assert_array_equal(drawn(line), [column(found, "policy"), column(found, "weight")])
    with pytest.raises(UserError, match="at = 900: pdml seed 0 has no weights of that step; the nearest is 1000"):
        blocks.policy_weights(chosen(many, "curves"), (900,))


def test_the_papers_weights_are_drawn_once(tmp_path):
    for seed in (0, 1):
        path = write_run(tmp_path / str(seed), env="Humanoid-v5", seed=seed, returns=[5.0], steps=1000)
        (path / "blocks" / "step_00005750.safetensors").rename(path / "blocks" / "step_00055000.safetensors")
    found = blocks.policy_weights(read.read_all([tmp_path]), (50_000,))
    paper, known = pick(found.rows, source="paper"), published.mixture("Humanoid-v5", 50_000)
    assert known is not None
    np.testing.assert_array_equal(column(paper, "weight"), known)
    assert column(paper, "policy").tolist() == list(range(1, 200))
    lines = KINDS["weights"].draw(found.rows).axes[0].lines
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
    found = blocks.weight_history(read.read_all([path]))
    assert found.notes == ["pdml seed 0: one in 2 of its 200 blocks is shown"]
    steps = sorted({row["step"] for row in found.rows})
    assert steps == list(range(10, 2000, 20))  # the last is among them
    assert len(steps) <= blocks.HEAT_STEPS


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
    assert notes == ["mbpo seed 1: 1 of 3 evaluations are NaN and count as below the threshold"]
    lines = figure.axes[0].lines
    edge = 1.08 * 4000
    for curve, reached, never in zip(("pdml", "mbpo", "sac"), lines[::2], lines[1::2], strict=True):
        steps = column(pick(rows, curve=curve), "steps")
        np.testing.assert_array_equal(drawn(reached)[0], steps[np.isfinite(steps)])
        assert drawn(never)[0].tolist() == [edge] * int(np.isinf(steps).sum())
    assert [text.get_text() for text in figure.axes[0].texts] == ["never"]


def test_the_threshold_is_the_papers_last_point_of_mbpo(many, tmp_path):
    rows, _, _ = made(many, "thresholds", tmp_path)
    assert {row["threshold"] for row in rows} == {published.curve("Hopper-v5", "mbpo").mean[-1]}
    assert [row["steps"] for row in rows][:3] == [4000.0, math.inf, math.inf]


@pytest.mark.parametrize("kind", FIGURES)
def test_a_figure_shows_one_environment(kind, tmp_path):
    method = "pdml-dhmbpo" if kind == "horizons" else "pdml"
    for env in ("Ant-v5", "Hopper-v5"):
        path = write_run(tmp_path / env, method, env=env, diagnose=True, returns=[1.0], steps=1000)
        (path / "analysis").mkdir()
        write_rows(path / "analysis" / "tsne.csv", [{"step": 0, "x": 0.0, "y": 1.0}])
    both = read.read_all([tmp_path])
    if kind in OF_ONE_ENVIRONMENT:
        with pytest.raises(UserError, match="runs of Ant-v5, Hopper-v5: a figure shows one environment"):
            KINDS[kind].rows(both, FigureOptions())
    else:
        found = KINDS[kind].rows(both, FigureOptions())
        assert len(KINDS[kind].draw(found.rows).axes) >= 1
        assert found.rows[0].get("seeds") == 2 or {row["env"] for row in found.rows} == {"Ant-v5", "Hopper-v5"}


def test_panels_beyond_four_are_in_a_second_row(tmp_path):
    for seed in range(5):
        write_run(tmp_path / str(seed), seed=seed, returns=[1.0], steps=1000)
    figure = KINDS["heatmap"].draw(blocks.weight_history(read.read_all([tmp_path])).rows)
    assert [axis.get_title() for axis in figure.axes[:5]] == [f"pdml, seed {seed}" for seed in range(5)]
    assert figure.get_size_inches().tolist() == [4 * 5.6, 2 * 4.2]


def test_every_method_has_its_own_line_and_variants_have_others():
    own = [method.line for method in METHODS.values()]
    assert len(set(own)) == len(METHODS)
    assert not set(SPARE_LINES) & set(own)
    found = lines(["pdml", *(f"pdml mixture.rate={rate}" for rate in range(len(SPARE_LINES))), "pdml"])
    assert len(set(found.values())) == 1 + len(SPARE_LINES)
    assert found["pdml"] == METHODS["pdml"].line
    assert list(lines(METHODS).values()) == own


def test_numbers_are_written_so_that_they_read_back_exactly(tmp_path):
    values = [0.1, 1 / 3, -2.5e-300, math.inf, 12345678901234567.0]
    write_rows(tmp_path / "a.csv", [{"a": value, "b": None} for value in values] + [{"a": NAN, "c": 7}])
    assert (tmp_path / "a.csv").read_text().splitlines()[0] == "a,b,c"
    assert column(read_back(tmp_path / "a.csv")[:-1], "a").tolist() == values
    assert (tmp_path / "a.csv").read_text().splitlines()[-1] == ",,7"
