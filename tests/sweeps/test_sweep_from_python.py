"""`pdml.sweep`: the runs of a study from Python, and a table of what came out; the runs themselves are written here."""

import signal

import numpy as np
import pytest
from fake_runs import write_run

import pdml
from pdml.core.signals import Stopped
from pdml.sweeps.worker import Outcome

STUDY = {"envs": ["Hopper-v5"], "methods": ["pdml", "mbpo"], "seeds": range(2), "steps": 9000}
RETURNS = {("pdml", 0): 1000.0, ("pdml", 1): 2000.0, ("mbpo", 0): 500.0, ("mbpo", 1): 500.0}


class Local:
    """Stands in for the workers: writes runs, but for those of some method and seed, and notes what it was asked."""

    def __init__(self):
        self.failing, self.asked, self.signal = set(), [], None

    def __call__(self, runs, jobs, changed):
        self.asked.append(([(run.settings.learning.method, run.settings.learning.seed) for run in runs], jobs))
        if self.signal is not None:
            raise Stopped(self.signal)
        return [(run, self.outcome(run, changed)) for run in runs]

    def outcome(self, run, changed):
        config = run.settings.learning
        kind = (config.method, config.seed)
        changed(run, None)
        if kind not in self.failing:
            write_run(run.path, config.method, config.env, config.seed, returns=[0.0, 0.0, 0.0, RETURNS[kind]])
        outcome = Outcome(1, "it diverged") if kind in self.failing else Outcome(0, "")
        changed(run, outcome)
        return outcome


@pytest.fixture
def local(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    workers = Local()
    monkeypatch.setattr("pdml.sweeps.sweep.run_local", workers)
    monkeypatch.setattr("pdml.sweeps.sweep.physical_cores", lambda: 3)
    monkeypatch.setattr("pdml.sweeps.sweep.available_threads", lambda: 3)
    monkeypatch.setattr("pdml.sweeps.cost._peak", lambda threads: 1e10)
    monkeypatch.setattr("pdml.sweeps.cost._free_disk", lambda out: 1e12)
    monkeypatch.setattr("pdml.sweeps.cost.available_memory", lambda: 1e12)
    return workers


def test_all_runs_are_done_and_their_last_returns_have_intervals(local, tmp_path, capsys):
    done = pdml.sweep(STUDY, tmp_path / "out")
    assert local.asked == [([("pdml", 0), ("mbpo", 0), ("pdml", 1), ("mbpo", 1)], 3)]
    assert [path.relative_to(tmp_path / "out").as_posix() for path in done.done] == [
        f"Hopper-v5/{method}/seed_{seed}" for seed in (0, 1) for method in ("pdml", "mbpo")
    ]
    assert done.failed == {}
    first, second = done.final_returns()
    half = 12.7062 * 500.0 * np.sqrt(2.0) / np.sqrt(2.0)  # Student's quantile with one degree of freedom
    assert (first["env"], first["method"], first["step"], first["seeds"]) == ("Hopper-v5", "pdml", 4000, 2)
    assert [first["mean"], first["low"], first["high"]] == pytest.approx([1500.0, 1500.0 - half, 1500.0 + half], 1e-5)
    assert [second[name] for name in ("method", "mean", "low", "high")] == ["mbpo", 500.0, 500.0, 500.0]
    assert capsys.readouterr().out.splitlines()[0] == f"out: 4 runs in {tmp_path / 'out'}, 0 done already"


def test_a_failed_run_is_named_and_the_same_call_tries_only_it_again(local, capsys):
    local.failing = {("mbpo", 1)}
    broken = pdml.sweep(STUDY, "out", jobs=1, progress_bar=False)
    assert [(path.as_posix(), reason) for path, reason in broken.failed.items()] == [
        ("out/Hopper-v5/mbpo/seed_1", "it diverged")
    ]
    assert [(row["method"], row["seeds"]) for row in broken.final_returns()] == [("pdml", 2), ("mbpo", 1)]
    local.failing = set()
    assert len(pdml.sweep(STUDY, "out", jobs=2, progress_bar=False).done) == 4
    assert [asked for asked in local.asked[1:]] == [([("mbpo", 1)], 2)]
    assert capsys.readouterr().out == ""


def test_what_is_missing_from_the_table_is_a_warning(local, tmp_path):
    done = pdml.sweep(STUDY, "out", progress_bar=False)
    (done.done[0] / "evaluations.csv").unlink()
    with pytest.warns(UserWarning, match="pdml seed 0 on Hopper-v5: no evaluation"):
        assert done.final_returns()[0]["seeds"] == 1


def test_cores_of_a_run_leave_room_for_fewer_runs_and_reach_them(local, monkeypatch):
    threads = []
    monkeypatch.setattr(local, "outcome", lambda run, changed: threads.append(run.threads) or Outcome(0, ""))
    pdml.sweep({**STUDY, "seeds": [4]}, "out", cpus_per_run=3, progress_bar=False)
    assert local.asked == [([("pdml", 4), ("mbpo", 4)], 1)]
    assert threads == [3, 3]


def test_a_study_can_be_a_file(local, tmp_path):
    (tmp_path / "mine.toml").write_text('envs = ["Hopper-v5"]\nmethods = ["mbpo"]\n')
    assert len(pdml.sweep(tmp_path / "mine.toml", "out", progress_bar=False).done) == 1


def test_a_study_of_the_package_is_refused_if_the_disk_is_too_small(local, tmp_path, monkeypatch):
    monkeypatch.setattr("pdml.sweeps.cost._free_disk", lambda out: 1e9)
    with pytest.raises(pdml.UserError, match=r"out = 'out': its 144 runs need about 164.1 GB of disk, 1.0 GB are free"):
        pdml.sweep("decay", "out")
    assert not list(tmp_path.iterdir())


def test_more_runs_at_a_time_than_memory_has_room_for_are_refused_or_fewer(local, monkeypatch):
    monkeypatch.setattr("pdml.sweeps.cost.available_memory", lambda: 1e8)
    with pytest.raises(pdml.UserError, match="jobs = 2: so many runs need up to"):
        pdml.sweep(STUDY, "out", jobs=2)
    pdml.sweep(STUDY, "out", progress_bar=False)
    assert [jobs for _, jobs in local.asked] == [1]


def test_ctrl_c_reaches_the_caller(local):
    local.signal = signal.SIGINT
    with pytest.raises(KeyboardInterrupt, match="SIGINT; the same call continues"):
        pdml.sweep(STUDY, "out")
