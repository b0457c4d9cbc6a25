"""Collecting results: finished runs only, whole, small, without paths of the machine, and nothing is lost silently."""

import json
import shutil
from pathlib import Path

import pytest
from csv_rows import column, read_back
from fake_runs import write_run

from pdml.cli import main
from pdml.reporting import collect
from pdml.reporting.collect import KEPT, collect_runs
from pdml.reporting.read import read, returns


@pytest.fixture
def out(tmp_path):
    """Two finished runs, one that is not, and one that failed."""
    folder = tmp_path / "runs"
    write_run(folder / "Hopper-v5" / "pdml" / "seed_0", diagnose=True)
    write_run(folder / "Hopper-v5" / "pdml" / "seed_1", seed=1, diagnose=True)
    write_run(folder / "Hopper-v5" / "mbpo" / "seed_0", "mbpo", returns=[500.0, 600.0], finished=False)
    write_run(folder / "Hopper-v5" / "sac" / "seed_0", "sac", returns=[5.0], finished=False, error="ValueError: no")
    return folder


def described(path, **more):
    """Give a run the metadata of a start."""
    (path / "metadata.json").write_text(json.dumps({"format": 2, **more}, indent=2) + "\n")


def outcomes(out, into, **options):
    return {str(found.source.relative_to(out)): found.outcome for found in collect_runs(out, into, **options)}


def command(*words):
    return main(["results", "collect", *map(str, words)])


def test_finished_runs_are_kept_and_the_others_are_named(out, tmp_path, capsys):
    into = tmp_path / "results"
    assert command(out, "--into", into) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{out}/Hopper-v5/mbpo/seed_0: skipped, it is not finished (step 7000 of 9000)",
        f"{into}/Hopper-v5/pdml/seed_0: collected",
        f"{into}/Hopper-v5/pdml/seed_1: collected",
        f"{out}/Hopper-v5/sac/seed_0: skipped, it failed at step 6000 (ValueError: no)",
        "2 collected, 2 skipped",
    ]
    kept = {str(path.relative_to(into)) for path in into.rglob("*") if path.is_file()}
    names = [name for name in KEPT if name != "metadata.json"]  # these runs have none
    assert kept == {f"Hopper-v5/pdml/seed_{seed}/{name}" for seed in (0, 1) for name in names}


def test_runs_of_tuning_are_left_out_unless_they_are_asked_for(out, tmp_path):
    shutil.rmtree(out)
    write_run(out / "seed_999", seed=999)
    write_run(out / "seed_1000", seed=1000)
    found = {run.source.name: run for run in collect_runs(out, tmp_path / "results")}
    assert [found[name].outcome for name in ("seed_999", "seed_1000")] == ["collected", "skipped"]
    assert found["seed_1000"].reason == "seeds from 1000 on are for tuning, and its seed is 1000; see --tuning"
    assert command(out, "--into", tmp_path / "results", "--tuning") == 0
    assert (tmp_path / "results" / "seed_1000" / "config.json").exists()


def test_a_kept_run_reads_as_the_run_did(out, tmp_path):
    source = out / "Hopper-v5" / "pdml" / "seed_1"
    outcomes(out, tmp_path / "results")
    kept, was = read(tmp_path / "results" / "Hopper-v5" / "pdml" / "seed_1"), read(source)
    assert (kept.status, kept.problems, kept.config, kept.options) == ("done", (), was.config, was.options)
    assert returns(kept).values.tolist() == returns(was).values.tolist()
    for name in ("evaluations", "progress", "diagnostics", "timing"):
        assert (kept.path / f"{name}.csv").read_bytes() == (source / f"{name}.csv").read_bytes()


def test_a_second_time_nothing_changes_and_what_is_new_is_added(out, tmp_path):
    into, source = tmp_path / "results", out / "Hopper-v5" / "pdml" / "seed_0"
    outcomes(out, into)
    times = {path: path.stat().st_mtime_ns for path in into.rglob("*.csv")}
    assert list(outcomes(out, into).values()) == ["skipped", "unchanged", "unchanged", "skipped"]
    (source / "analysis").mkdir()
    (source / "analysis" / "converged.csv").write_text("step,error\n1,2.0\n")
    (source / "analysis" / "notes.txt").write_text("not kept")
    (source / "policy.safetensors").write_bytes(b"not kept")
    found = {one.outcome: one.reason for one in collect_runs(out, into)}
    assert found["extended"] == "analysis/converged.csv"
    assert {path: path.stat().st_mtime_ns for path in times} == times
    kept = into / "Hopper-v5" / "pdml" / "seed_0"
    assert (kept / "analysis" / "converged.csv").read_text() == "step,error\n1,2.0\n"
    assert {path.name for path in kept.rglob("*")} >= {"converged.csv"}
    assert not {"notes.txt", "policy.safetensors", "blocks", "DONE"} & {path.name for path in kept.rglob("*")}


def test_an_analysis_with_more_rows_is_extended_and_one_with_other_rows_is_refused(out, tmp_path):
    into, source = tmp_path / "results", out / "Hopper-v5" / "pdml" / "seed_0"
    analysis, kept = (path / "analysis" / "weightings.csv" for path in (source, into / "Hopper-v5" / "pdml" / "seed_0"))
    analysis.parent.mkdir()
    analysis.write_text("step,error\n5000,2.0\n")
    outcomes(out, into)
    analysis.write_text("step,error\n2000,1.0\n5000,2.0\n")  # rows are in the order of steps
    found = {one.outcome: one.reason for one in collect_runs(out, into)}
    assert found["extended"] == "analysis/weightings.csv"
    assert kept.read_text() == "step,error\n2000,1.0\n5000,2.0\n"
    for text in ("step,error\n2000,1.0\n", "step,error\n2000,1.0\n5000,3.0\n", "step,loss\n2000,1.0\n5000,2.0\n", ""):
        analysis.write_text(text)
        assert outcomes(out, into)["Hopper-v5/pdml/seed_0"] == "refused"
    assert kept.read_text() == "step,error\n2000,1.0\n5000,2.0\n"


def test_other_content_is_refused_until_it_is_to_be_replaced(out, tmp_path, capsys):
    into, source = tmp_path / "results", out / "Hopper-v5" / "pdml" / "seed_0"
    outcomes(out, into)
    kept = into / "Hopper-v5" / "pdml" / "seed_0"
    (kept / "analysis").mkdir()
    (kept / "analysis" / "converged.csv").write_text("step\n1\n")
    before = {path: path.read_bytes() for path in kept.rglob("*.*")}
    shutil.rmtree(source)
    write_run(source, returns=[1.0, 2.0, 3.0, 4.0])  # and no diagnostics
    capsys.readouterr()
    assert command(out, "--into", into) == 2
    captured = capsys.readouterr()
    names = "config.json, evaluations.csv, progress.csv, diagnostics.csv"
    assert captured.err == f"pdml: {source}: refused, other content is there ({names}); --replace overwrites it\n"
    assert captured.out.splitlines()[-1] == "1 unchanged, 2 skipped, 1 refused"
    assert {path: path.read_bytes() for path in kept.rglob("*.*")} == before
    assert command(out, "--into", into, "--replace") == 0
    assert returns(read(kept)).values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert not (kept / "diagnostics.csv").exists()
    assert not (kept / "analysis" / "converged.csv").exists()  # it was about the other run
    assert outcomes(out, into)["Hopper-v5/pdml/seed_0"] == "unchanged"


def test_large_tables_are_thinned_and_the_metadata_says_so(out, tmp_path, monkeypatch):
    source = out / "Hopper-v5" / "pdml" / "seed_0"
    described(source, command="pdml train")
    monkeypatch.setattr(collect, "LARGE", (source / "progress.csv").stat().st_size - 1)
    outcomes(out, tmp_path / "results")
    kept = tmp_path / "results" / "Hopper-v5" / "pdml" / "seed_0"
    assert column(read_back(source / "progress.csv"), "step").tolist() == list(range(5250, 9001, 250))
    assert column(read_back(kept / "progress.csv"), "step").tolist() == [5250, 6500, 7750, 9000]
    assert (kept / "diagnostics.csv").read_bytes() == (source / "diagnostics.csv").read_bytes()
    about = {"format": 2, "command": "pdml train", "collected": {"progress.csv": "one row in 5"}}
    assert json.loads((kept / "metadata.json").read_text()) == about
    assert read(kept).status == "done"
    assert set(outcomes(out, tmp_path / "results").values()) == {"unchanged", "skipped"}


def test_much_larger_tables_are_thinned_further(out, tmp_path, monkeypatch):
    source = out / "Hopper-v5" / "pdml" / "seed_0"
    monkeypatch.setattr(collect, "LARGE", (source / "progress.csv").stat().st_size // 8 + 1)
    found = [one.reason for one in collect_runs(source, tmp_path / "results")]
    assert found == ["progress.csv: one row in 8, diagnostics.csv: one row in 5"]
    assert column(read_back(tmp_path / "results" / "seed_0" / "progress.csv"), "step").tolist() == [7000, 9000]


def test_absolute_paths_in_commands_are_shortened(out, tmp_path):
    source = out / "Hopper-v5" / "pdml" / "seed_0"
    start = "pdml train --config '/home/me and you/config.json' --env lab:Arm-v0 --run-dir {}/Hopper-v5/pdml/seed_0"
    again = {"step": 6000, "command": "pdml resume --steps=9000 --x=/far/mixture.rate=0.1/seed_0"}
    machine = {"cpu": "one", "threads": 1, "xla_flags": "--xla_dump_to=/home/me/dump --xla_b=false"}
    other = {"path": "/home/me/runs/Hopper-v5/mbpo/seed_0", "step": 9000}
    described(source, command=start.format("/home/me/runs"), machine=machine, resumed=[again], start_from=other)
    outcomes(out, tmp_path / "results")
    file = tmp_path / "results" / "Hopper-v5" / "pdml" / "seed_0" / "metadata.json"
    about = json.loads(file.read_text())
    assert about["command"] == "pdml train --config config.json --env lab:Arm-v0 --run-dir Hopper-v5/pdml/seed_0"
    assert about["resumed"] == [{"step": 6000, "command": "pdml resume --steps=9000 --x=seed_0"}]
    assert about["start_from"] == {"path": "seed_0", "step": 9000}
    assert about["machine"] == machine | {"xla_flags": "--xla_dump_to=dump --xla_b=false"}
    one = collect_runs(source, tmp_path / "results" / "Hopper-v5" / "pdml")  # by itself: the same
    assert [found.outcome for found in one] == ["unchanged"]


@pytest.mark.parametrize("text", ["pdml train --env Hopper-v5 --run-dir runs/a", "pdml.Agent in it's own"])
def test_other_metadata_stay_as_they_are(text, out, tmp_path):
    source = out / "Hopper-v5" / "pdml" / "seed_0"
    (source / "metadata.json").write_text(json.dumps({"command": text, "spaces": {"low": [-1.0]}}))
    outcomes(out, tmp_path / "results")
    kept = tmp_path / "results" / "Hopper-v5" / "pdml" / "seed_0"
    assert (kept / "metadata.json").read_bytes() == (source / "metadata.json").read_bytes()


def test_a_run_that_ends_without_its_last_files_is_not_finished(out, tmp_path):
    (out / "Hopper-v5" / "pdml" / "seed_0" / "DONE").unlink()  # its rows are whole, its checkpoint may not be
    assert outcomes(out, tmp_path / "results")["Hopper-v5/pdml/seed_0"] == "skipped"


def test_a_run_that_is_resumed_while_it_is_read_is_left_out(out, tmp_path, monkeypatch):
    done = out / "Hopper-v5" / "pdml" / "seed_0" / "DONE"

    def kept_files(path, target, _real=collect.kept_files):
        done.unlink(missing_ok=True)
        return _real(path, target)

    monkeypatch.setattr(collect, "kept_files", kept_files)
    assert outcomes(out, tmp_path / "results")["Hopper-v5/pdml/seed_0"] == "skipped"
    assert not (tmp_path / "results" / "Hopper-v5" / "pdml" / "seed_0").exists()


def test_damaged_runs_are_refused_and_the_others_are_kept(out, tmp_path, capsys):
    half, lost = (out / "Hopper-v5" / "pdml" / f"seed_{seed}" for seed in (0, 1))
    (half / "evaluations.csv").write_text((half / "evaluations.csv").read_text()[:-3])
    (lost / "config.json").write_text("{")
    write_run(out / "whole", seed=2)
    assert command(out, "--into", tmp_path / "results") == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "1 collected, 2 skipped, 2 refused"
    assert captured.err.splitlines() == [
        f"pdml: {half}: refused, {half}/evaluations.csv: line 9 is half-written and was left out",
        f"pdml: {lost}: refused, config = '{lost}/config.json': not a configuration written by this package",
    ]
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["whole"]


def test_an_interrupted_copy_is_no_run_and_is_completed_the_next_time(out, tmp_path, monkeypatch):
    source, kept = out / "Hopper-v5" / "pdml" / "seed_0", tmp_path / "results" / "seed_0"

    def replace(self, target, _real=Path.replace):
        if target.name == "timing.csv":
            raise KeyboardInterrupt
        return _real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        list(collect_runs(source, tmp_path / "results"))
    assert not (kept / "config.json").exists()
    monkeypatch.undo()
    assert [one.outcome for one in collect_runs(source, tmp_path / "results")] == ["extended"]
    assert read(kept).status == "done"
    assert not list(kept.rglob("*.partial"))


def test_what_is_collected_is_not_collected_again(out, tmp_path):
    into = out / "results"
    outcomes(out, into)
    assert list(outcomes(out, into)) == [
        f"Hopper-v5/{run}" for run in ("mbpo/seed_0", "pdml/seed_0", "pdml/seed_1", "sac/seed_0")
    ]
    assert not (into / "results").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--into", "new"], "run = 'nowhere': no run there or below (no config.json)"),
        (["run"], "the following arguments are required: --into"),
        (["run", "--into", "file"], "into = 'file': is a file, a directory is needed"),
        (["run", "--into", "."], "into = '.': 'run' is already in it; collect from another directory"),
        (["run", "--into", "run"], "into = 'run': 'run' is already in it"),
        (["all", "--into", "all/kept"], "run = 'all': all its runs are already in 'all/kept'"),
        (["run", "--into", "file/deep"], "into = 'file/deep/run': cannot be written (Not a directory)"),
        (["run", "--into", "new", "--overwrite"], "'--overwrite': pdml results has no such argument"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    write_run(tmp_path / "all" / "kept" / "a")
    (tmp_path / "file").write_text("")
    assert command(*words) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err
    assert not (tmp_path / "new").exists()
