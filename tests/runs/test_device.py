"""Cores: each run on one of its own while there are enough, distinct physical cores first."""

import os
import subprocess
import sys
import tempfile
from itertools import accumulate, chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from pdml.runs import device

needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of four physical cores with two threads each: 0 and 4 are one core, 1 and 5, and so on."""
    monkeypatch.setattr(device, "_usable_cores", lambda: list(range(8)))
    monkeypatch.setattr(device, "_siblings", lambda core: f"{core % 4},{core % 4 + 4}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(device, "CPU_QUOTA", tmp_path / "cpu.max")

    def as_another_process():
        others.append(dict(device._held))
        device._held.clear()

    others = []
    device._held, before = {}, device._held
    yield as_another_process
    for handle in [handle for held in (*others, device._held) for handle in held.values()]:
        os.close(handle)
    device._held = before


def test_distinct_physical_cores_come_first(machine, monkeypatch):
    assert device.cores_in_order() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert device.physical_cores() == 4
    assert device.available_threads() == 8
    monkeypatch.setattr(device, "_siblings", lambda core: f"{core - core % 2}-{core - core % 2 + 1}")
    assert device.cores_in_order() == [0, 2, 4, 6, 1, 3, 5, 7]
    monkeypatch.setattr(device, "_usable_cores", lambda: [1, 4, 5])
    assert device.cores_in_order() == [1, 4, 5]
    assert device.physical_cores() == 2


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 4)]
)
def test_a_container_has_as_many_cores_as_its_cpu_time(limit, cores, machine, tmp_path):
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert device.physical_cores() == cores


def test_runs_get_free_cores_and_then_those_with_fewest_runs(machine):
    taken = []
    for count in (1, 2, 3, 2, 1, 8, 1):
        taken.append(device.take_cores(count))
        machine()
    assert taken == [{0}, {1, 2}, {3, 4, 5}, {6, 7}, {0}, set(range(8)), {1}]


def test_a_process_keeps_the_cores_that_it_took(machine):
    assert device.take_cores(2) == {0, 1}
    assert device.take_cores(2) == {0, 1}
    machine()
    assert device.take_cores(1) == {2}


def test_where_no_locks_can_be_made_the_first_cores_are_taken(machine, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert device.take_cores(2) == {0, 1}
    machine()
    assert device.take_cores(2) == {0, 1}


def test_the_commands_set_the_threads_before_numpy_is_imported():
    code = "import sys, pdml.cli; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_machine_says_how_its_cores_are_threaded():
    usable = os.sched_getaffinity(0)
    assert 1 <= device.physical_cores() <= device.available_threads() == len(usable)
    assert set(device.cores_in_order()) == usable
    assert device._siblings(10**6) == "1000000"


CODE = """
import os
os.sched_setaffinity(0, range(os.cpu_count()))  # the tests themselves may have one core only
from pdml.runs import device
print(*device.cores_in_order())
device.prepare({threads})
print(*os.sched_getaffinity(0), flush=True)
input()
"""


def beside(tmp_path, threads):
    """Start a process that takes cores and keeps them until its input ends."""
    line = [sys.executable, "-c", CODE.format(threads=threads)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def cores_of(*processes):
    """End the processes; return the cores that they could use, in order, and those that they took."""
    lines = [[list(map(int, process.stdout.readline().split())) for _ in range(2)] for process in processes]
    for process in processes:
        process.kill()
        process.communicate()
    return lines[0][0], [taken for _, taken in lines]


@needs_two_cores
def test_two_runs_with_one_thread_are_on_different_cores_and_their_end_frees_these(tmp_path):
    for _ in range(2):
        usable, taken = cores_of(beside(tmp_path, 1), beside(tmp_path, 1))
        assert sorted(taken) == sorted([core] for core in usable[:2])


@needs_two_cores
def test_a_run_with_all_cores_takes_none_from_others(tmp_path):
    usable, taken = cores_of(beside(tmp_path, "None"), beside(tmp_path, 1))
    assert sorted(taken[0]) == sorted(usable)
    assert taken[1] == usable[:1]
    assert {path.name for path in Path(tmp_path).rglob("*.*")} == {f"{usable[0]}.0"}


@pytest.fixture
def fresh_process(tmp_path, monkeypatch):
    """Variables as no one has set them; JAX itself is left alone. Returns the calls that would pin the process."""
    for name in ("XLA_FLAGS", "JAX_PLATFORMS", "TF_CPP_MIN_LOG_LEVEL", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    pinned = []
    monkeypatch.setattr(device, "require_right_rows", lambda folder: None)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: pinned.append(cores))
    return pinned


def fake_gpu(tmp_path, monkeypatch):
    """Let the plugin of a GPU be installed, and the kernel have its device."""
    monkeypatch.setattr(device, "package_version", lambda name: "0.8.2" if name == "jax-cuda12-plugin" else None)
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()


@pytest.mark.parametrize("gpu", [False, True])
def test_what_only_helps_on_a_cpu_is_left_alone_on_a_gpu(gpu, machine, fresh_process, tmp_path, monkeypatch):
    if gpu:
        fake_gpu(tmp_path, monkeypatch)
    assert device.prepare(1) == 1
    assert fresh_process == ([] if gpu else [{0}])
    assert os.environ.get("XLA_FLAGS") == (None if gpu else "--xla_cpu_multi_thread_eigen=false")
    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == (None if gpu else "3")  # it would hide a driver that fails
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_gpu_is_used_if_plugin_and_device_are_there_or_it_is_asked_for(fresh_process, tmp_path, monkeypatch):
    assert not device.uses_gpu()
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert device.uses_gpu()
    monkeypatch.delenv("JAX_PLATFORMS")
    fake_gpu(tmp_path, monkeypatch)
    assert device.uses_gpu()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not device.uses_gpu()
    monkeypatch.delenv("JAX_PLATFORMS")
    (tmp_path / "nvidia0").unlink()  # the plugin alone: JAX falls back to the CPU
    assert not device.uses_gpu()


def test_a_device_is_named_by_its_platform_and_model(monkeypatch):
    class Gpu:
        platform, device_kind = "gpu", "NVIDIA A100"

    assert device.device_name() == f"cpu, {device.cpu_model()}"
    monkeypatch.setattr("jax.devices", lambda: [Gpu()])
    assert device.device_name() == "gpu, NVIDIA A100"


@pytest.mark.parametrize(("by_numpy", "by_jax"), [(2.0, 0.5), (0.5, 2.0)])
def test_the_peak_is_that_of_the_faster_library(monkeypatch, by_numpy, by_jax):
    """On some CPUs NumPy's product is half as fast as JAX's, and a run computes with JAX."""
    marks = accumulate(chain.from_iterable((0.1, took) for took in (by_numpy, by_jax) * 3))
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: next(marks)))
    assert device.matmul_peak(size=8, repeats=3) == pytest.approx(2 * 8**3 / 0.5)


@pytest.mark.parametrize(("of_cpu", "products"), [(True, 3), (False, 6)])
def test_the_peak_of_a_cpu_is_not_that_of_a_gpu(monkeypatch, of_cpu, products):
    seen = iter(range(100))
    monkeypatch.setattr(device, "uses_gpu", lambda: True)
    monkeypatch.setattr(device, "time", SimpleNamespace(perf_counter=lambda: float(next(seen))))
    assert device.matmul_peak(size=8, repeats=3, of_cpu=of_cpu) == 2 * 8**3
    assert next(seen) == 2 * products  # each was timed from its start to its end
