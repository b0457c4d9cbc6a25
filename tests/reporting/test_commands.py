"""The commands figure and report: what they write and print, their exit codes, and their mistakes in one line."""

from types import SimpleNamespace

import pytest
from csv_rows import NAN, column, pick, read_back
from fake_runs import write_run, write_seeds
from matplotlib.figure import Figure

from pdml.cli import main
from pdml.reporting import read, summary
from pdml.reporting.style import FIGURES


@pytest.fixture
def unsaved(monkeypatch):
    """Leave out the pictures, which are slow to save: only the csv is checked."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Hopper by PDML, diagnosed, and by MBPO; the last evaluation of one seed is NaN."""
    path = tmp_path_factory.mktemp("runs")
    write_seeds(path, "pdml", [[100.0, 400.0, 900.0], [200.0, 500.0, 800.0]], steps=3000, diagnose=True)
    write_seeds(path, "mbpo", [[50.0, 150.0, 550.0], [70.0, 450.0, NAN]], steps=3000)
    return path


def figure(*words):
    return main(["figure", *map(str, words)])


def test_a_figure_is_three_files_which_are_named_and_the_same_every_time(runs, tmp_path, capsys):
    first, again = tmp_path / "a", tmp_path / "b"
    assert figure("thresholds", runs, "--threshold", "500", "--out", first) == 0
    out, err = capsys.readouterr()
    note = "note: mbpo seed 1: 1 of 3 evaluations are NaN and count as below the threshold"
    assert out.splitlines() == [note, *(str(first / f"thresholds.{ending}") for ending in ("csv", "png", "pdf"))]
    assert err == ""
    assert {row["threshold"] for row in read_back(first / "thresholds.csv")} == {500.0}
    assert figure("thresholds", runs, "--threshold", "500", "--out", again) == 0
    for path in first.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_options_reach_the_figure(runs, tmp_path, unsaved):
    many = tmp_path / "many"
    write_seeds(many, "pdml", [[60.0 * i**1.4] for i in range(11)], steps=1000)  # so many that resamples differ
    assert figure("compounding", runs, "--at", "1000,3000", "--out", tmp_path) == 0
    assert {row["step"] for row in read_back(tmp_path / "compounding.csv")} == {1000.0, 3000.0}
    assert figure("aggregate", many, "--seed", "3", "--out", tmp_path) == 0
    rows = read_back(tmp_path / "aggregate.csv")
    for seed in (3, 4):
        found = summary.aggregates(read.read_all([many]), seed).rows
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
    ("curves RUN OTHER", "runs of Ant-v5, Hopper-v5: a figure shows one environment; give the runs of one"),
    ("errors RUN", "none of the runs was diagnosed: train with --diagnose"),
    ("tsne RUN", "no analysis/tsne.csv; run pdml analyse tsne first"),
    ("weights SAC", "none of the runs has block weights"),
    ("heatmap SAC", "none of the runs has block weights"),
    ("ablation SAC", "no run of pdml, mbpo, pdml-model-only, pdml-starts-only, dhmbpo, pdml-dhmbpo"),
    ("rates SAC", "no run of pdml, pdml-dhmbpo: their runs are compared by mixture.rate"),
    ("horizons RUN", "no run of dhmbpo, pdml-dhmbpo: their runs are compared by double.far and double.near"),
    ("weights RUN --at 7", "at = 7: pdml seed 0 has no weights of that step; the nearest is 0"),
    ("weights RUN --at x", "at = 'x': must be a whole number"),
    ("thresholds RUN --threshold much", "threshold = 'much': must be a number"),
    ("aggregate RUN --seed -1", "seed = '-1': must be a whole number"),
    ("curves PENDULUM", "the runs have nothing to draw yet (pdml seed 0: no values)"),
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


def test_whole_lines_of_damaged_files_are_drawn_and_the_rest_is_named(tmp_path, capsys):
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
        "note: pdml seed 1: no values",
        *(str(tmp_path / "out" / f"curves.{ending}") for ending in endings),
    ]
    assert all((tmp_path / "out" / f"curves.{ending}").stat().st_size > 0 for ending in endings)
    rows = pick(read_back(tmp_path / "out" / "curves.csv"), source="runs")
    assert [(row["mean"], row["seeds"]) for row in rows] == [(100.0, 1.0)]


def test_where_nothing_can_be_read_the_damage_is_named_before_the_refusal(tmp_path, capsys):
    path = write_run(tmp_path / "run", env="InvertedPendulum-v5")
    (path / "evaluations.csv").write_text("step,episode,return,length\n")
    assert figure("curves", path, "--out", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"pdml: {path / 'evaluations.csv'}: has a header but no rows"
    assert lines[1].startswith("pdml: figure = 'curves': the runs have nothing to draw yet")


def test_whole_lines_of_a_damaged_analysis_are_drawn(tmp_path, capsys, unsaved):
    path = write_run(tmp_path / "run")
    (path / "analysis").mkdir()
    file = path / "analysis" / "tsne.csv"
    file.write_text("step,x,y\n0,1.0,2.0\n0,1.0\n250,3.0,4.0\n")
    assert figure("tsne", path, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == f"pdml: {file}: line 3 is damaged and was left out\n"
    assert column(read_back(tmp_path / "out" / "tsne.csv"), "x").tolist() == [1.0, 3.0]
    file.write_text("step,x\n")
    assert figure("tsne", path, "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err == f"pdml: {file}: its header is damaged; nothing was read from it\n"


def report(*words):
    return main(["report", *map(str, words), "--no-frames"])


def test_a_report_is_written_and_named(runs, tmp_path, capsys):
    out = tmp_path / "deep" / "report.html"
    assert report(runs, "--out", out) == 0
    assert capsys.readouterr() == (f"{out} ({out.stat().st_size / 1e6:.1f} MB, 4 runs)\n", "")


def test_unfinished_and_failed_runs_are_no_problem_of_a_report(tmp_path):
    write_run(tmp_path / "a", finished=False, returns=(500.0, 1000.0))
    write_run(tmp_path / "b", seed=1, finished=False, returns=(500.0,), error="ValueError: no")
    assert report(tmp_path, "--out", tmp_path / "r.html") == 0


def test_damaged_files_of_a_report_are_named_by_the_command_and_its_exit_code(tmp_path, capsys):
    half, early, whole = (tmp_path / name for name in "abc")
    write_run(half)
    with (half / "evaluations.csv").open("a") as file:
        file.write("10000,0,12")
    write_run(early, seed=1, finished=False, returns=(500.0, 1000.0))
    with (early / "evaluations.csv").open("a") as file:
        file.write("8000,0,9999.0,200\n")
    write_run(whole, seed=2)
    for run, message in (
        (half, "line 10 is half-written and was left out"),
        (early, "step 8000 lacks episodes and was left out"),
    ):
        assert report(run, whole, "--out", tmp_path / "r.html") == 2
        assert capsys.readouterr().err == f"pdml: {run / 'evaluations.csv'}: {message}\n"


def test_a_watched_page_loads_itself_again_until_all_runs_have_ended(tmp_path, capsys, monkeypatch):
    run, out, pages = write_run(tmp_path / "a", finished=False, returns=(500.0,)), tmp_path / "r.html", []

    def sleep(seconds):
        assert seconds == 10
        pages.append(out.read_text())
        if len(pages) == 2:
            with (run / "evaluations.csv").open("a") as file:
                file.write("7000,0,100.0,200\n7000,1,300.0,200\n")
        if len(pages) == 3:
            (run / "DONE").touch()

    monkeypatch.setattr("pdml.cli.look.time", SimpleNamespace(sleep=sleep))  # other threads sleep as ever
    assert report(tmp_path, "--out", out, "--watch") == 0
    tag = '<meta http-equiv="refresh" content="10">'
    assert [page.count(tag) for page in (*pages, out.read_text())] == [1, 1, 1, 0]
    assert pages[0] == pages[1] != pages[2]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("1 runs); written every 10 s until all have ended, Ctrl-C ends it")
    assert not list(tmp_path.glob("*.partial"))


def test_watching_waits_for_the_first_planned_run_and_ctrl_c_leaves_a_page_that_stays(tmp_path, capsys, monkeypatch):
    planned, out, slept = tmp_path / "runs" / "a", tmp_path / "r.html", []
    planned.mkdir(parents=True)
    (planned / "sweep_note.txt").touch()

    def sleep(seconds):
        slept.append(out.exists())
        if len(slept) == 1:
            write_run(tmp_path / "runs" / "b", finished=False)
        if len(slept) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("pdml.cli.look.time", SimpleNamespace(sleep=sleep))  # other threads sleep as ever
    assert report(tmp_path / "runs", "--out", out, "--watch") == 0
    assert slept == [False, True]
    assert "http-equiv" not in out.read_text()
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_run_that_cannot_be_read_is_one_line_of_a_report(tmp_path, capsys):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1)
    (tmp_path / "b" / "config.json").write_text("{")
    block = sorted((tmp_path / "a" / "blocks").iterdir())[3]
    block.write_bytes(block.read_bytes()[:40])
    assert report(tmp_path, "--out", tmp_path / "r.html") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "not a configuration written by this package" in lines[0]
    assert f"{block}: is damaged and was left out" in lines[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "run = 'nowhere': no run there or below (no config.json)"),
        (["report", "{run}", "--out", "/proc/r.html"], "out = '/proc/r.html': cannot be written"),
        (["video", "nowhere"], "run = 'nowhere': no run there (it has no config.json)"),
        (["video", "{run}", "--episodes", "0"], "episodes = '0': must be a whole number in [1, 4294967295]"),
        (["analyse", "tsne"], "pdml analyse tsne needs a run"),
        (["analyse", "theory", "{run}"], "uses random MDPs, not a run"),
        (["analyse", "converged", "{run}", "--at", "x"], "at = 'x': must be a whole number in [0, 4294967295]"),
        (["analyse", "converged", "{run}"], "nothing archived; train with --archive-at STEPS"),
        (["analyse", "tsne", "{run}"], "keeps no policies yet"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main([word.replace("{run}", str(run)) for word in words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
