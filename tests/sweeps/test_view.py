"""What a person sees of a sweep, and what its command says and returns."""

import sys

import pytest
from fake_runs import write_run
from rich.console import Console

from pdml.cli import main
from pdml.config.schema import Settings
from pdml.sweeps import worker
from pdml.sweeps.plan import PlannedRun
from pdml.sweeps.view import SweepView
from pdml.sweeps.worker import Outcome

STUDY = """
summary = "small"
envs = ["Hopper-v5"]
methods = ["sac", "mbpo"]
seeds = "0-1"
steps = 9000
"""

FAKE = """
import sys
from pathlib import Path
words = sys.argv[1:]
run, seed, method = (words[words.index(name) + 1] for name in ("--run-dir", "--seed", "--method"))
print(f"step 1\\npdml: the run failed (fire in {method} {seed}); see error.txt")
sys.exit(1 if (method, seed) == ("mbpo", "0") else 0)
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study, and a command that does nothing but fail in one run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", FAKE))
    (tmp_path / "small.toml").write_text(STUDY)


def lines(text):
    """Leave out the time of day."""
    return [line.partition("  ")[2] if line[2:3] == ":" else line for line in text.splitlines()]


def test_without_a_terminal_every_change_is_a_line_and_failures_come_last(study, capsys):
    assert main(["sweep", "small.toml", "--jobs", "1"]) == 1
    out, err = capsys.readouterr()
    assert lines(out) == [
        "small: 4 runs in runs/small, 0 done already",
        "0 of 4  started  Hopper-v5/sac/seed_0",
        "1 of 4  done     Hopper-v5/sac/seed_0",
        "1 of 4  started  Hopper-v5/mbpo/seed_0",
        "2 of 4  failed   Hopper-v5/mbpo/seed_0: the run failed (fire in mbpo 0)",
        "2 of 4  started  Hopper-v5/sac/seed_1",
        "3 of 4  done     Hopper-v5/sac/seed_1",
        "3 of 4  started  Hopper-v5/mbpo/seed_1",
        "4 of 4  done     Hopper-v5/mbpo/seed_1",
        "done: 3 of 4 runs in runs/small",
    ]
    assert err == "pdml: runs/small/Hopper-v5/mbpo/seed_0: the run failed (fire in mbpo 0)\n"


def test_after_a_stop_failures_are_named_too(study, capsys, monkeypatch):
    stops = "if seed == '1': import os, time; os.kill(os.getppid(), 15); time.sleep(60)"
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", FAKE.replace("print", f"{stops}\nprint")))
    assert main(["sweep", "small.toml", "--jobs", "1"]) == 143
    assert capsys.readouterr().err.splitlines() == [
        "pdml: runs/small/Hopper-v5/mbpo/seed_0: the run failed (fire in mbpo 0)",
        "pdml: stopped (SIGTERM); the same command resumes",
    ]


def test_options_choose_among_the_study_and_where_to(study, capsys):
    words = ["--methods", "sac", "--seeds", "0,3", "--set", "agent.gamma=0.9", "batch_size=64", "--out", "there"]
    assert main(["sweep", "small.toml", *words, "--envs", "Hopper-v5", "Ant-v5", "--steps", "6000"]) == 0
    started = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "started" in line]
    name = "sac-agent.gamma=0.9-batch_size=64"
    assert sorted(started) == sorted(f"{env}/{name}/seed_{i}" for env in ("Hopper-v5", "Ant-v5") for i in (0, 3))


def test_finished_runs_are_skipped(study, tmp_path, capsys):
    for i in (0, 1):
        write_run(tmp_path / "runs/small/Hopper-v5/mbpo" / f"seed_{i}", "mbpo", seed=i)
    assert main(["sweep", "small.toml"]) == 0
    out = capsys.readouterr().out
    assert "4 runs in runs/small, 2 done already" in out
    assert "mbpo" not in out
    assert out.splitlines()[-1] == "done: 4 of 4 runs in runs/small"
    assert main(["sweep", "small.toml", "--methods", "mbpo"]) == 0
    assert capsys.readouterr().out == "done: 2 of 2 runs in runs/small\n"


def test_a_run_with_other_settings_is_refused_by_name_and_nothing_starts(study, tmp_path, capsys):
    write_run(tmp_path / "runs/small/Hopper-v5/mbpo/seed_1", "mbpo", seed=1, **{"agent.gamma": 0.9})
    assert main(["sweep", "small.toml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "pdml: run-dir = 'runs/small/Hopper-v5/mbpo/seed_1': its run has agent.gamma = 0.9, not 0.99\n",
    )
    assert not (tmp_path / "runs/small/Hopper-v5/sac").exists()


def test_a_dry_run_prints_every_run_and_writes_nothing(study, tmp_path, capsys):
    assert main(["sweep", "small.toml", "--dry-run", "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    assert all(f"Hopper-v5/{method}/seed_{i}" in out for method in ("sac", "mbpo") for i in (0, 1))
    assert "3 workers need about" in out
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_default_jobs_fit_into_the_memory_and_more_are_refused(study, capsys, monkeypatch):
    monkeypatch.setattr("pdml.runs.device.physical_cores", lambda: 4)
    monkeypatch.setattr("pdml.sweeps.cost.available_memory", lambda: 1e9)
    assert main(["sweep", "small.toml", "--jobs", "4"]) == 2
    assert capsys.readouterr().err.startswith("pdml: jobs = 4: so many runs need up to ")
    assert main(["sweep", "small.toml", "--dry-run"]) == 0
    assert "1 worker needs about" in capsys.readouterr().out
    assert main(["sweep", "small.toml", "--methods", "sac"]) == 0
    assert capsys.readouterr().out.startswith("small: 2 runs in runs/small, 0 done already; 1 at a time, for lack of")


def test_more_cores_per_run_than_there_are_are_refused_before_anything_is_written(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pdml.runs.device.available_threads", lambda: 2)
    for more in ([], ["--dry-run"]):
        assert main(["sweep", "small.toml", "--cpus-per-run", "64", *more]) == 2
        said = "pdml: cpus-per-run = 64: must lie in [1, 2], the cores this process may use\n"
        assert capsys.readouterr() == ("", said)
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_cores_per_run_reach_the_command(study, monkeypatch):
    monkeypatch.setattr("pdml.runs.device.available_threads", lambda: 2)
    monkeypatch.setattr(
        worker,
        "COMMAND",
        (sys.executable, "-c", "import sys; sys.exit(sys.argv[sys.argv.index('--threads') + 1] != '2')"),
    )
    assert main(["sweep", "small.toml", "--cpus-per-run", "2"]) == 0


def test_on_a_terminal_there_is_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    runs = [PlannedRun(tmp_path / f"seed_{i}", Settings(), ()) for i in range(4)]
    write_run(runs[0].path, finished=False, returns=(500.0,))
    with SweepView("four runs", runs[:3], runs[3:], tmp_path) as view:
        view.changed(runs[0], None)
        view.changed(runs[1], None)
        view.changed(runs[1], Outcome(1, "it burns"))
        console = Console(width=120, force_terminal=False)
        with console.capture() as captured:
            console.print(view._table())
    assert [line.split() for line in captured.get().splitlines()] == [
        ["run", "state", "step", "last", "return", "steps/s", "time", "left"],
        ["seed_0", "running", "6,000", "of", "9,000", "500.0", "2.5", "-"],
        ["seed_1", "failed", "-", "-", "-", "-", "it", "burns"],
        ["seed_3", "done", "-", "-", "-", "-"],
        ["seed_2", "waiting", "-", "-", "-", "-"],
        ["4", "runs:", "1", "done,", "1", "running,", "1", "waiting,", "1", "failed"],
    ]
    assert capsys.readouterr().out.startswith("four runs\n")


def test_nothing_is_shown_before_the_first_change(tmp_path, capsys):
    with SweepView("title", [], [], tmp_path):
        pass
    assert capsys.readouterr().out == ""


def test_of_a_long_path_the_end_is_shown_and_every_run_takes_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "sac-" + "-".join(f"setting_{i}=1" for i in range(20))
    runs = [PlannedRun(tmp_path / name / f"seed_{i}", Settings(), ()) for i in range(2)]
    view = SweepView("long", runs, [], tmp_path)
    view._rows[runs[0].path] = view._rows[runs[0].path]._replace(state="failed", note="fire " * 50)
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(view._table())
    lines = captured.get().splitlines()
    assert len(lines) == 4
    assert all("/seed_" in line and line.startswith("…") for line in lines[1:3])


def test_a_table_is_as_long_as_the_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("LINES", "12")
    runs = [PlannedRun(tmp_path / f"seed_{i}", Settings(), ()) for i in range(1000)]
    view = SweepView("many", runs, [], tmp_path)
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(view._table())
    assert len(captured.get().splitlines()) <= 12
    assert "1000 runs: 1000 waiting" in captured.get()
