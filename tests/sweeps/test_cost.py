"""What the runs of a plan need: from finished runs if there are any, else from the machine's speed."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_runs import write_run

from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.config.schema import Settings
from pdml.core.errors import UserError
from pdml.core.transition import Layout
from pdml.runs.directory import metadata
from pdml.runs.resources import EFFICIENCY, estimate
from pdml.runs.session import start_run
from pdml.sweeps import cost
from pdml.sweeps.cost import Cost, costs, describe_plan, jobs_in_memory, require_disk, require_memory
from pdml.sweeps.plan import plan
from pdml.sweeps.study import Arm, Study, override, read_study

HOPPER = Layout(11, 3)
PEAK = 1e11
MEASURED_PEAK = cost._peak
"""The fixture replaces it."""


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine of known speed, and no runs but those of the test."""
    monkeypatch.setattr(cost, "_peak", lambda threads: PEAK * threads)
    monkeypatch.setattr(cost, "available_memory", lambda: 1e12)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e12))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def runs_of(*methods, out="out", seeds=(0,), steps=9000, cpus=1, **changes):
    arms = tuple(Arm(method, {}) for method in methods)
    study = Study("mine", "", ("Hopper-v5",), arms, tuple(seeds), steps, {}, False, ())
    return plan(study._replace(**changes), Path(out), cpus)


def finished(path, method="pdml", threads=1, seconds_per_block=100.0, done=True, **changes):
    """Write a run of 4000 steps after warm-up, on this machine."""
    write_run(path, method, finished=done, **changes)
    about = metadata(threads, "pdml train")
    (path / "metadata.json").write_text(json.dumps(about))
    lines = (path / "timing.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    scaled = [[row[0], str(float(row[1]) * seconds_per_block / 100.0), *row[2:]] for row in rows]
    (path / "timing.csv").write_text("\n".join([lines[0], *(",".join(row) for row in scaled)]) + "\n")
    return path


def flop(settings: Settings, steps=None) -> float:
    return estimate(settings if steps is None else change(settings, {"steps": steps}), HOPPER).flop


def test_without_finished_runs_the_time_is_work_by_speed():
    for cpus in (1, 2):
        run = runs_of("pdml", cpus=cpus)[0]
        needed = costs([run], Path("out"))[0]
        assert needed.seconds == pytest.approx(flop(run.settings) / (EFFICIENCY * PEAK * cpus))
        assert not needed.measured
        assert needed.memory == estimate(run.settings, HOPPER).memory


@pytest.mark.parametrize("place", ["out", "runs", "out/deep/down"])
def test_finished_runs_of_the_same_method_and_task_tell_the_time(place):
    """Below the output or `runs`; 16 blocks of 100 s each, for a plan of the same length."""
    finished(Path(place) / "elsewhere" / "seed_9")
    same, longer = runs_of("pdml")[0], runs_of("pdml", steps=20_000)[0]
    needed = costs([same, longer], Path("out"))
    assert needed[0].seconds == pytest.approx(1600.0)
    assert needed[1].seconds == pytest.approx(1600.0 * flop(longer.settings) / flop(same.settings))
    assert all(each.measured for each in needed)


def test_the_median_of_several_finished_runs_counts():
    for i, seconds in enumerate((100.0, 110.0, 5000.0)):  # one was frozen for long
        finished(Path("runs") / str(i), seconds_per_block=seconds)
    assert costs(runs_of("pdml"), Path("out"))[0].seconds == pytest.approx(16 * 110.0)


def test_the_time_in_which_a_run_was_suspended_does_not_count():
    path = finished(Path("runs/seed_9")) / "timing.csv"
    head, *rows = path.read_text().splitlines()
    step, seconds, *rest = zip(*(row.split(",") for row in rows), strict=True)
    late = [str(float(value) + 36_000.0 * (i >= 8)) for i, value in enumerate(seconds)]
    rows = [",".join(row) for row in zip(step, late, *rest, strict=True)]
    path.write_text("\n".join([head, *rows]) + "\n")
    assert costs(runs_of("pdml"), Path("out"))[0].seconds == pytest.approx(15 * 100.0 + cost.LONGEST_BLOCK * 100.0)


def test_runs_that_tell_nothing_are_left_out(monkeypatch):
    """Of another method, task, machine or number of threads, not finished, damaged, without times."""
    finished(Path("runs/method"), "mbpo")
    finished(Path("runs/task"), env="Walker2d-v5")
    finished(Path("runs/threads"), threads=2)
    finished(Path("runs/unfinished"), done=False)
    other = finished(Path("runs/machine"))
    about = json.loads((other / "metadata.json").read_text())
    about["machine"]["cpu"] = "another"
    (other / "metadata.json").write_text(json.dumps(about))
    (finished(Path("runs/unknown")) / "metadata.json").unlink()
    (finished(Path("runs/damaged")) / "config.json").write_text("{")
    (finished(Path("runs/untimed")) / "timing.csv").unlink()
    (finished(Path("runs/empty")) / "timing.csv").write_text("step,seconds\n")
    run = runs_of("pdml")[0]
    needed = costs([run], Path("out"))[0]
    assert not needed.measured
    assert needed.seconds == pytest.approx(flop(run.settings) / (EFFICIENCY * PEAK))


def test_a_run_that_is_done_needs_nothing_and_a_broken_one_the_rest():
    done, broken, new = runs_of("sac", seeds=range(3))
    write_run(done.path, "sac", seed=0)
    write_run(broken.path, "sac", seed=1, finished=False)
    (broken.path / "checkpoints").mkdir()
    for step in (6000, 7000):
        (broken.path / "checkpoints" / f"step_{step:08d}.safetensors").write_bytes(bytes(1_000_000))
    nothing, rest, whole = costs([done, broken, new], Path("out"))
    assert nothing[:3] == (0.0, 0.0, 0.0)
    assert rest.seconds / whole.seconds == pytest.approx(2000 / 4000)  # SAC's work is that of its updates
    written = sum(file.stat().st_size for file in broken.path.rglob("*") if file.is_file())
    assert rest.disk == pytest.approx(whole.disk - written)
    assert rest.memory == whole.memory


def test_the_disk_has_two_checkpoints_and_all_archives():
    plain, archived = runs_of("pdml")[0], runs_of("pdml", archive_at=(6000, 9000))[0]
    first, second = costs([plain, archived], Path("out"))
    needs = estimate(plain.settings, HOPPER)
    assert first.disk == needs.disk - needs.checkpoint
    rows = 4 * HOPPER.width * (6000 + 9000)
    assert second.disk > first.disk + rows
    assert second.disk < first.disk + rows + 2 * 30e6  # networks and their optimisers


@pytest.mark.slow
def test_the_disk_of_a_tiny_run_is_as_estimated(tiny, tmp_path):
    settings = change(tiny, {"archive_at": (80, 160)})
    start_run(settings, tmp_path / "run", 1, "pdml train")
    left = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    layout = Layout(4, 1)
    said = cost._disk(settings, layout, estimate(settings, layout))
    assert left < said < left + 5e6  # the estimate has 2 MB for csv files and the like


def test_a_plan_is_described_run_by_run_and_in_all():
    runs = runs_of("pdml", "sac", seeds=(0, 1))
    write_run(runs[0].path, "pdml", seed=0)
    needed = [Cost(0.0, 0.0, 0.0), Cost(60.0, 2e6, 1e9), Cost(7200.0, 3e9, 2e9), Cost(120.0, 4e6, 3e9)]
    lines = describe_plan(runs, 2, needed).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["Hopper-v5/pdml/seed_0", "done"],
        ["Hopper-v5/sac/seed_0", "new", "60", "s", "2", "MB"],
        ["Hopper-v5/pdml/seed_1", "new", "2", "h", "00", "min", "3.0", "GB"],
        ["Hopper-v5/sac/seed_1", "new", "2", "min", "4", "MB"],
    ]
    assert lines[4] == "4 runs (1 done, 3 new): 2 h 03 min in all, 3.0 GB of disk"
    assert lines[5] == "2 workers need about 2 h 00 min and 5.0 GB of memory"
    assert lines[6].startswith("times: from the matmul speed of this machine when it is idle")
    assert len(lines) == 7
    assert describe_plan(runs, 1, needed).splitlines()[5] == "1 worker needs about 2 h 03 min and 3.0 GB of memory"


def test_a_plan_says_what_is_missing(monkeypatch):
    runs, needed = runs_of("sac", seeds=(0, 1)), [Cost(60.0, 2e9, 1e9), Cost(60.0, 2e9, 1e9)]
    monkeypatch.setattr(cost, "available_memory", lambda: 1.5e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=3e9))
    lines = describe_plan(runs, 2, needed).splitlines()
    assert lines[2] == "2 runs (2 new): 2 min in all, 4.0 GB of disk (only 3.0 GB are free)"
    assert lines[3] == "2 workers need about 60 s and 2.0 GB of memory (only 1.5 GB are free)"


def test_as_many_runs_at_a_time_as_the_memory_has_room_for(monkeypatch):
    needed = [Cost(60.0, 0.0, memory) for memory in (1e9, 3e9, 0.0, 2e9)]
    for free, fitting in ((6e9, 9), (5.5e9, 2), (5e9, 2), (4e9, 1), (1e9, 1), (None, 9)):
        monkeypatch.setattr(cost, "available_memory", lambda free=free: free)
        assert jobs_in_memory(needed, 9) == fitting
    monkeypatch.setattr(cost, "available_memory", lambda: 4e9)
    require_memory(needed, 1)
    said = "jobs = 2: so many runs need up to 5.0 GB of memory at a time, 4.0 GB are free; --jobs 1 fits"
    with pytest.raises(UserError, match=said):
        require_memory(needed, 2)


def test_a_description_says_where_times_come_from():
    finished(Path("runs/seed_9"))
    mixed, measured = runs_of("pdml", "sac"), runs_of("pdml")
    assert "of 1 runs from finished runs of the same method and task, of the others" in describe_plan(mixed, 1)
    assert describe_plan(measured, 1).endswith("times: from finished runs of the same method and task")
    assert describe_plan([], 1) == "no runs"


def test_each_worker_takes_the_next_run_in_order():
    needed = [Cost(seconds, 0.0, 0.0) for seconds in (5.0, 1.0, 1.0, 4.0, 1.0)]
    assert [cost._until_done(needed, jobs) for jobs in (1, 2, 100)] == [12.0, 6.0, 5.0]


def test_too_little_disk_is_refused_with_numbers(monkeypatch, tmp_path):
    runs = runs_of("sac", seeds=(0, 1), out=tmp_path / "not" / "yet")
    needed = [Cost(1.0, 3e9, 1e9), Cost(1.0, 2e9, 1e9)]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4e9))
    with pytest.raises(UserError, match=r"its 2 runs need about 5.0 GB of disk, 4.0 GB are free") as caught:
        require_disk(runs, needed, tmp_path / "not" / "yet")
    assert "\n" not in str(caught.value)
    require_disk(runs[:1], needed[:1], tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()


def test_the_speed_of_the_machine_is_measured():
    assert 1e8 < MEASURED_PEAK(1) < 1e13
    assert 1e8 < MEASURED_PEAK(10_000) < 1e13  # of a cluster's nodes, which have more cores than this machine


def test_a_machine_whose_jax_does_not_start_is_one_line(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    with pytest.raises(UserError, match=r"speed of this machine could not be measured: .*abacus") as error:
        MEASURED_PEAK.__wrapped__(1)
    assert "\n" not in str(error.value)


def test_the_search_for_finished_runs_ends(monkeypatch):
    """However many runs there are; what was found by then counts."""
    now = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    for i in range(10):
        finished(Path("runs") / str(i), "mbpo")
    assert not costs(runs_of("pdml"), Path("out"))[0].measured
    assert next(now) <= 6


DESCRIBE = """
import time
from pathlib import Path
from pdml.sweeps.cost import describe_plan
from pdml.sweeps.plan import plan
from pdml.sweeps.study import override, read_study
print(describe_plan(plan(override(read_study("comparison"), seeds="0-27"), Path("out")), 100))
print(time.process_time())
"""


@pytest.mark.slow
def test_a_thousand_runs_are_described_in_seconds():
    """Half of them are done. Timed by the processor's clock, in a process without the type checks of tests."""
    runs = plan(override(read_study("comparison"), seeds="0-27"), Path("out"))
    assert len(runs) == 1008
    for run in runs[:504]:
        run.path.mkdir(parents=True)
        (run.path / "config.json").write_text(to_json(run.settings))
        (run.path / "DONE").write_text("")
    done = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True, check=True)
    *lines, seconds = done.stdout.splitlines()
    assert float(seconds) < 10.0
    assert len(lines) == 1008 + 3
    assert lines[1008].startswith("1008 runs (504 done, 504 new): ")
