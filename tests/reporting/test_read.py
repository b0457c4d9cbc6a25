"""Runs as they are read: their status, their labels, and what is left of damaged files."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from fake_runs import write_run
from safetensors.numpy import save_file

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.config.tasks import generic
from pdml.core.errors import UserError
from pdml.reporting import blocks, curves, model_errors, read, report, summary
from pdml.reporting.figures import KINDS


def labels(path):
    return [run.label for run in read.read_all([path])]


def test_a_finished_run(tmp_path):
    run = read.read(write_run(tmp_path / "run", seed=3, returns=[1.0, 2.0], diagnose=True, steps=2000))
    assert (run.status, run.message, run.problems) == ("done", "", ())
    assert (run.config.env, run.config.method, run.config.seed) == ("Hopper-v5", "pdml", 3)
    assert (run.options.steps, run.options.diagnose, run.task.obs_size) == (7000, True, 11)
    assert run.progress["steps_after_warmup"].tolist() == list(range(250, 2001, 250))
    assert run.timing["seconds"][-1] == 800.0
    assert run.diagnostics["step"].tolist() == [6000, 7000]
    found = read.returns(run)
    assert (found.name, found.steps.tolist(), found.values.tolist()) == ("pdml seed 3", [1000, 2000], [1.0, 2.0])


def test_a_run_is_done_at_its_last_step_even_without_the_file_done(tmp_path):
    assert read.read(write_run(tmp_path / "kept", finished=False)).status == "done"  # results are kept without DONE
    assert read.read(write_run(tmp_path / "short", returns=[1.0, 2.0, 3.0], finished=False)).status == "unfinished"
    assert read.read(write_run(tmp_path / "new", returns=[], finished=False)).status == "unfinished"


def test_a_failed_run_says_why(tmp_path):
    error = "FloatingPointError: the critic's loss is nan"
    broken = read.read(write_run(tmp_path / "a", returns=[1.0], finished=False, error=error))
    assert (broken.status, broken.message) == ("failed", error)
    at_the_end = read.read(write_run(tmp_path / "b", finished=False, error="OSError: no space left"))
    assert (at_the_end.status, at_the_end.message) == ("failed", "OSError: no space left")
    (tmp_path / "a" / "error.txt").write_text("")
    assert read.read(tmp_path / "a").message == "no reason given"


def test_every_run_below_a_directory_is_found_once(tmp_path, monkeypatch):
    paths = [write_run(tmp_path / "x" / name) for name in ("b", "a/deep", "c")]
    assert read.find([tmp_path]) == sorted(paths)
    monkeypatch.chdir(tmp_path)
    assert len(read.find([tmp_path, tmp_path / "x" / "b", paths[1].relative_to(tmp_path)])) == 3


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_path_without_a_run_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("step,return\n")
    write_run(tmp_path / "run")
    with pytest.raises(UserError, match=f"{name}': no run there or below"):
        read.find([tmp_path / "run", tmp_path / name])


def test_a_damaged_configuration_is_refused(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "config.json").write_text((path / "config.json").read_text()[:100])
    with pytest.raises(UserError, match="not a configuration written by this package"):
        read.read(path)


def test_runs_are_labelled_by_their_method_if_nothing_else_differs(tmp_path):
    for seed in (0, 1):
        for method in ("sac", "mbpo", "pdml"):
            write_run(tmp_path / f"{method}{seed}", method, seed=seed, eval_episodes=2 + seed)
    found = read.read_all([tmp_path])
    assert [(run.label, run.config.seed) for run in found] == [
        (method, seed) for method in ("pdml", "mbpo", "sac") for seed in (0, 1)
    ]
    assert {label: len(group) for label, group in read.groups(found).items()} == {"pdml": 2, "mbpo": 2, "sac": 2}


def test_a_label_names_only_what_differs_within_a_method(tmp_path):
    shared = {"agent.gamma": 0.98}
    write_run(tmp_path / "a", **shared, **{"mixture.rate": 0.1})
    write_run(tmp_path / "b", **shared)
    write_run(tmp_path / "c", "mbpo", **{"agent.gamma": 0.9})
    assert labels(tmp_path) == ["pdml", "pdml mixture.rate=0.1", "mbpo"]
    write_run(tmp_path / "d", **{"mixture.rate": 0.1})
    assert labels(tmp_path) == [
        "pdml agent.gamma=0.98",
        "pdml agent.gamma=0.98 mixture.rate=0.1",
        "pdml mixture.rate=0.1",
        "mbpo",
    ]


def test_a_preset_is_named(tmp_path):
    write_run(tmp_path / "a", "mbpo")
    write_run(tmp_path / "b", "mbpo", preset="released")
    assert labels(tmp_path) == ["mbpo", "mbpo preset=released"]


def test_environments_do_not_share_labels(tmp_path):
    write_run(tmp_path / "a", env="Hopper-v5", **{"mixture.rate": 0.1})
    write_run(tmp_path / "b", env="Ant-v5")
    found = read.read_all([tmp_path])
    assert [(run.config.env, run.label) for run in found] == [("Ant-v5", "pdml"), ("Hopper-v5", "pdml")]
    with pytest.raises(UserError, match="runs of Ant-v5, Hopper-v5: a figure shows one environment"):
        read.one_environment(found)


def test_a_run_of_an_unknown_method_does_not_affect_the_others(tmp_path):
    write_run(tmp_path / "a")
    broken = write_run(tmp_path / "b")
    text = (broken / "config.json").read_text()
    (broken / "config.json").write_text(text.replace('"method": "pdml"', '"method": "pdlm"'))
    problems = []
    assert [run.label for run in read.read_all([tmp_path], problems)] == ["pdml"]
    (problem,) = problems
    assert "method = 'pdlm': unknown (did you mean pdml?)" in problem
    with pytest.raises(UserError, match="method = 'pdlm': unknown"):
        read.read_all([tmp_path])


def test_how_far_a_run_goes_and_what_it_records_is_no_difference(tmp_path):
    changes = {"eval_every": 500, "checkpoint_every": 10, "archive_at": (6000,), "env_timeout": 5.0}
    run = read.read(write_run(tmp_path / "a", steps=777, diagnose=True, diagnose_every=500, seed=9, **changes))
    assert read.differences(run) == []
    training = read.read(write_run(tmp_path / "b", eval_episodes=0))
    assert read.differences(training) == ["eval_episodes=0"]  # its returns are of training episodes


TASK = {"task": {"obs_size": 3, "action_size": 1, "time_limited": True}}
SPACES = {"spaces": {"obs_size": 3, "low": [-1.0], "high": [1.0]}}  # recorded by older versions


@pytest.mark.parametrize("metadata", [TASK, SPACES], ids=["task", "spaces"])
@pytest.mark.parametrize("env", ["notinstalled:Arm-v0", "python:Arm"])
@pytest.mark.parametrize(("method", "preset"), [("pdml", "paper"), ("dhmbpo", "published")])
def test_a_run_is_read_reported_and_drawn_without_its_environment(env, method, preset, metadata, tmp_path):
    run_path = write_run(tmp_path / "run", method, env, diagnose=True)
    settings = defaults(env, method, preset, generic(3, 1, True))
    (run_path / "config.json").write_text(to_json(settings))
    (run_path / "metadata.json").write_text(json.dumps(metadata))
    (run,) = read.read_all([tmp_path])
    assert run.task == generic(3, 1, True)
    assert (run.config, run.options) == (settings.learning, settings.run)
    assert read.differences(run) == ([] if preset == "paper" else [f"preset={preset}"])
    assert (run.label, run.config.warmup_steps, run.problems) == (method, 1000, ())
    rows = curves.learning_curves([run]).rows
    assert [(row["source"], row["step"], row["mean"]) for row in rows] == [
        ("runs", 1000 * i, 500.0 * i) for i in (1, 2, 3, 4)
    ]
    (axis,) = KINDS["curves"].draw(rows).axes
    assert axis.lines[0].get_ydata().tolist() == [500.0, 1000.0, 1500.0, 2000.0]
    assert model_errors.one_step_errors([run]).rows[0]["mean"] == 1e-3
    (final,) = summary.final_returns([run]).rows
    assert (final["mean"], final["paper"]) == (2000.0, None)
    assert f'<h2 id="{env}">{env}</h2>' in report.page([run], {}).html


def test_a_setting_that_a_method_does_not_read_makes_no_difference(monkeypatch, tmp_path):
    """When a default of DHMBPO changes, older runs of PDML are still runs with PDML's defaults."""
    kept = [write_run(tmp_path / method, method) for method in ("pdml", "dhmbpo")]
    monkeypatch.setattr(
        read, "defaults", lambda *about: change(defaults(*about), {"double.near": 9, "double.kl_bound": 1.0})
    )
    pdml, dhmbpo = (read.differences(read.read(path)) for path in kept)
    assert pdml == []
    assert dhmbpo == ["double.near=5", "double.kl_bound=0.0"]


def test_changed_settings_of_an_environment_that_is_not_listed_are_differences(tmp_path):
    path = write_run(tmp_path / "run", env="notinstalled:Arm-v0", **{"agent.gamma": 0.9, "max_episode_steps": 50})
    assert read.differences(read.read(path)) == ["max_episode_steps=50", "agent.gamma=0.9"]


def test_reading_imports_neither_jax_nor_gymnasium_nor_the_environments_module(tmp_path):
    """In a process of its own: other tests import them."""
    path = write_run(tmp_path / "run", env="notinstalled:Arm-v0")
    code = f"""if True:
        import sys
        from pathlib import Path
        from pdml.reporting import draw, figures, report, read
        runs = read.read_all([Path({str(path)!r})])
        report.page(runs, {{}})
        figures.KINDS["curves"].rows(runs, figures.FigureOptions())
        print(sorted({{"jax", "gymnasium", "notinstalled"}} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def damaged(path, name, text):
    """Return the run after one of its files was overwritten."""
    (path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read.read(path)


def test_an_empty_csv_is_named_and_the_rest_kept(tmp_path):
    path = write_run(tmp_path / "run")
    run = damaged(path, "evaluations.csv", "")
    assert run.problems == (f"{path / 'evaluations.csv'}: is empty",)
    assert read.returns(run).steps.shape == (0,)
    assert len(run.progress["step"]) == 16
    assert run.status == "done"


def test_a_csv_with_only_a_header_is_named(tmp_path):
    path = write_run(tmp_path / "run")
    run = damaged(path, "evaluations.csv", "step,episode,return,length\n")
    assert run.problems == (f"{path / 'evaluations.csv'}: has a header but no rows",)
    assert read.returns(run).values.shape == (0,)


def test_a_half_written_line_is_left_out_and_named(tmp_path):
    path = write_run(tmp_path / "run", returns=[100.0, 200.0])
    whole = (path / "evaluations.csv").read_text()
    lines = whole.splitlines()
    for cut in (3, 8, len(lines[-1])):  # without a newline even a readable line may be cut
        run = damaged(path, "evaluations.csv", "\n".join([*lines[:-1], lines[-1][:cut]]))
        assert run.problems == (
            f"{path / 'evaluations.csv'}: line 5 is half-written and was left out",
            f"{path / 'evaluations.csv'}: step 7000 lacks episodes and was left out",
        )
        assert read.returns(run).values.tolist() == [100.0]


@pytest.mark.parametrize("line", ["6000,0,1.0", "6000,0,x,200", "", "\0\0\0", '6000,0,"1.0,200', "nan,0,1.0,200"])
def test_a_damaged_line_is_left_out_and_named(tmp_path, line):
    path = write_run(tmp_path / "run", returns=[100.0, 200.0, 300.0])
    lines = (path / "evaluations.csv").read_text().splitlines()
    run = damaged(path, "evaluations.csv", "\n".join([*lines[:2], line, *lines[3:], ""]))
    assert run.problems == (f"{path / 'evaluations.csv'}: line 3 is damaged and was left out",)
    assert read.returns(run).values.tolist() == [90.0, 200.0, 300.0]


@pytest.mark.parametrize("text", ["st", "step,epis", "\n", "7,0,1.0,200\n7,1,1.0,200\n", b"\xff\xfe\x00\x81"])
def test_nothing_is_read_below_a_damaged_header(tmp_path, text):
    path = write_run(tmp_path / "run")
    run = damaged(path, "evaluations.csv", text)
    assert run.problems == (f"{path / 'evaluations.csv'}: its header is damaged; nothing was read from it",)
    assert read.returns(run).steps.shape == (0,)


def test_bytes_that_are_not_text_cost_only_their_line(tmp_path):
    path = write_run(tmp_path / "run", returns=[100.0, 200.0])
    whole = (path / "evaluations.csv").read_bytes().splitlines(keepends=True)
    run = damaged(path, "evaluations.csv", b"".join([*whole[:2], b"\xff\xfe\x81\n", *whole[3:]]))
    assert len(run.problems) == 1
    assert read.returns(run).values.tolist() == [90.0, 200.0]


def test_a_missing_file_is_no_problem(tmp_path):
    path = write_run(tmp_path / "run")
    for name in ("evaluations", "progress", "timing"):
        (path / f"{name}.csv").unlink()
    run = read.read(path)
    assert (run.status, run.problems, run.evaluations, run.diagnostics) == ("done", (), {}, {})
    assert read.column(run, run.diagnostics, "current_l2").steps.shape == (0,)


def test_a_running_run_is_read_up_to_its_last_whole_evaluation(tmp_path):
    """An evaluation is appended in one write; one that still lacks episodes does not count."""
    path = write_run(tmp_path / "run", returns=[100.0], finished=False)
    with (path / "evaluations.csv").open("a") as file:
        file.write("7000,0,5.0,200\n7000,1,7.0,200\n8000,0,5.0,200\n")
    run = read.read(path)
    assert run.problems == (f"{path / 'evaluations.csv'}: step 8000 lacks episodes and was left out",)
    assert read.returns(run).steps.tolist() == [1000, 2000]
    assert read.returns(run).values.tolist() == [100.0, 6.0]


def test_weights_of_blocks(tmp_path):
    run = read.read(write_run(tmp_path / "run", returns=[1.0], steps=1000))
    files = blocks.block_files(run)
    assert list(files) == [0, 250, 500, 750]
    np.testing.assert_allclose(blocks.block_weights(run, files[750]), [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    assert blocks.block_files(read.read(write_run(tmp_path / "sac", "sac"))) == {}
    os.truncate(files[250], 20)
    assert blocks.block_weights(run, files[250]) is None


def test_where_only_the_starts_are_weighted_their_weights_are_shown(tmp_path):
    file = tmp_path / "step_00005000.safetensors"
    arrays = {"model": np.array([1.0], np.float32), "starts": np.array([2.0], np.float32)}
    save_file(arrays, file)
    for method, changes, expected in (
        ("pdml", {}, 1.0),
        ("pdml-starts-only", {}, 2.0),
        ("pdml", {"mixture.misaligned": True}, 2.0),
    ):
        run = read.read(write_run(tmp_path / f"{method}{len(changes)}", method, **changes))
        assert blocks.block_weights(run, file).tolist() == [expected]
