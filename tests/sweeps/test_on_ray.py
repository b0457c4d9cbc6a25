"""Sweeps on Ray, as far as it needs no cluster: a stand-in for the library does each task at once. See tests/ray."""

import os
import signal
import sys
import types
from pathlib import Path

import pytest

from pdml.cli import main
from pdml.core.errors import UserError
from pdml.core.signals import Stopped
from pdml.sweeps import on_ray
from pdml.sweeps.on_ray import RETRIES, installed_software, run_on_ray, software_difference
from pdml.sweeps.plan import plan
from pdml.sweeps.status import runs_below, status_of
from pdml.sweeps.study import Arm, Study
from pdml.sweeps.worker import OUTPUT, STOPPED, Outcome

STUDY = Study("mini", "", ("InvertedPendulum-v5",), (Arm("mbpo", {}),), (0, 1, 2), None, {}, False, ())


class CancelledError(Exception):
    pass


class Task:
    """A function that runs when its result is waited for."""

    def __init__(self, ray, function):
        self._ray, self._function = ray, function

    def options(self, **_):
        return self

    def remote(self, *given):
        return Promise(self._ray, lambda: self._function(*given))


class Promise:
    def __init__(self, ray, call):
        self.ray, self.call, self.cancelled = ray, call, False

    def value(self):
        if self.cancelled:
            raise CancelledError
        return self.call()


class FakeRay(types.ModuleType):
    """What `run_on_ray` uses of Ray."""

    def __init__(self):
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(TaskCancelledError=CancelledError)
        strategies = types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = types.SimpleNamespace(scheduling_strategies=strategies)
        self.options, self.closed, self.waits = [], False, 0
        self.during_wait = lambda: None

    def init(self, **_):
        pass

    def shutdown(self):
        self.closed = True

    def nodes(self):
        node = {"Alive": True, "NodeID": "1", "NodeManagerHostname": "one", "NodeManagerAddress": "10.0.0.1"}
        return [{**node, "Resources": {"CPU": 2.0}}, {**node, "Alive": False, "Resources": {"CPU": 64.0}}]

    def remote(self, **options):
        self.options.append(options)
        return lambda function: Task(self, function)

    def wait(self, promises, num_returns, timeout):
        self.waits += 1
        self.during_wait()
        return promises[:1], promises[1:]

    def get(self, promise, timeout=None):
        return promise.value()

    def cancel(self, promise):
        promise.cancelled = True


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.fixture
def done(monkeypatch, tmp_path):
    """The words that were done, by a stand-in for the worker; the run of seed 1 fails."""
    found = []

    def work(words, path, stop):
        found.append((words, path))
        return Outcome(1, "it diverged") if path.name == "seed_1" else Outcome(0, "")

    monkeypatch.setattr(on_ray, "work", work)
    return found


def test_every_run_is_a_task_that_ray_repeats(ray, done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, changes = plan(STUDY, Path("out"), 2), []
    ended = run_on_ray(runs, None, 2, lambda run, outcome: changes.append((run, outcome)))
    assert [(run.path.name, outcome) for run, outcome in ended] == [
        ("seed_0", Outcome(0, "")),
        ("seed_1", Outcome(1, "it diverged")),
        ("seed_2", Outcome(0, "")),
    ]
    assert changes == ended
    assert ray.options[-1] == {"num_cpus": 2, "max_retries": RETRIES}
    assert ray.closed
    for (words, path), run in zip(done, runs, strict=True):  # a worker may have been started elsewhere
        assert path == tmp_path / run.path
        assert words[words.index("--run-dir") + 1] == str(path)
        assert [word for word in words if word != str(path)] == [word for word in run.words if word != str(run.path)]
    assert not list(Path("out").glob(".seen*"))


def test_a_start_is_told_once_the_run_says_something(ray, done, tmp_path):
    runs, changes = plan(STUDY, tmp_path / "out"), []
    (runs[2].path).mkdir(parents=True)
    (runs[2].path / OUTPUT).write_text("of an earlier sweep\n")
    ray.during_wait = lambda: ray.waits == 1 and (runs[1].path / OUTPUT).write_text("hello\n")
    run_on_ray(runs, None, 1, lambda run, outcome: changes.append((run.path.name, outcome is None)))
    assert changes == [("seed_1", True), ("seed_0", False), ("seed_1", False), ("seed_2", False)]


def test_a_run_whose_directory_is_moved_meanwhile_does_not_end_the_others(ray, done, tmp_path):
    runs = plan(STUDY, tmp_path / "out")
    ray.during_wait = lambda: ray.waits == 1 and runs[2].path.rename(tmp_path / "moved")
    assert len(run_on_ray(runs, None, 1, lambda run, outcome: None)) == 3


def test_a_worker_that_raises_says_why(monkeypatch, tmp_path):
    def work(words, path, stop):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(on_ray, "work", work)
    job = on_ray._Job(installed_software(), {}, tmp_path, tmp_path)
    said = "OSError: [Errno 28] No space left on device"
    assert on_ray._do(("train",), str(tmp_path), job) == Outcome(1, said)


def test_a_task_that_ray_gives_up_is_a_run_that_failed(ray, monkeypatch, tmp_path):
    def work(words, path, stop):
        raise AssertionError

    def fails(*_):
        raise RuntimeError("the node died\nand more about it")

    monkeypatch.setattr(on_ray, "work", work)
    monkeypatch.setattr(on_ray, "_do", fails)
    ended = run_on_ray(plan(STUDY, tmp_path), None, 1, lambda run, outcome: None)
    assert {outcome for _, outcome in ended} == {Outcome(1, "given up by Ray: RuntimeError: the node died")}
    assert {status_of(run.path)[1] for run, _ in ended} == {"failed"}


def test_a_signal_cancels_the_rest(ray, done, tmp_path):
    changes = []
    ray.during_wait = lambda: signal.raise_signal(signal.SIGTERM) if ray.waits == 1 else None
    with pytest.raises(Stopped, match="SIGTERM"):
        run_on_ray(plan(STUDY, tmp_path), None, 1, lambda run, outcome: changes.append(outcome))
    assert changes == [Outcome(0, ""), *[Outcome(STOPPED, "stopped")] * 2]
    assert ray.closed
    assert runs_below([tmp_path]) == []  # nothing is waiting any more


def test_other_software_on_a_node_is_refused_before_anything_is_written(ray, done, tmp_path, monkeypatch):
    ours = installed_software()
    answers = iter([ours, ours | {"jax": "0.1"}])  # of the driver, and of the node
    monkeypatch.setattr(on_ray, "installed_software", lambda: next(answers))
    with pytest.raises(UserError, match=r"node one \(10.0.0.1\): jax is 0.1 there and .* here; install the same"):
        run_on_ray(plan(STUDY, tmp_path / "a" / "b"), None, 1, lambda run, outcome: None)
    assert list(tmp_path.iterdir()) == []
    assert done == []


def test_a_late_node_with_other_software_or_without_the_results_does_no_run(done, tmp_path):
    job = on_ray._Job(installed_software(), {}, tmp_path, tmp_path)
    other = job._replace(software=job.software | {"numpy": "1.0"})
    assert on_ray._do(("train",), str(tmp_path), other).code == 2
    assert "numpy is" in on_ray._do(("train",), str(tmp_path), other).reason
    assert "that all nodes share" in on_ray._do(("train",), str(tmp_path), job._replace(out=tmp_path / "no")).reason
    assert done == []
    assert on_ray._do(("train",), str(tmp_path), job) == Outcome(0, "")


def test_too_many_cpus_per_run_are_refused(ray, tmp_path):
    with pytest.raises(UserError, match="cpus-per-run = 3: the largest node has 2 CPUs"):
        run_on_ray(plan(STUDY, tmp_path / "out"), None, 3, lambda run, outcome: None)
    assert not (tmp_path / "out").exists()


def test_variables_of_jax_and_pdml_reach_the_runs(ray, monkeypatch, tmp_path):
    """The driver has them when the sweep begins, and a node does not."""
    seen = []

    def look(words, path, stop):
        seen.append({name: os.environ.get(name) for name in ("PDML_LEASE_SECONDS", "HOME_OF_OTHERS")})
        return Outcome(0, "")

    def node():
        for name in ("PDML_LEASE_SECONDS", "HOME_OF_OTHERS"):
            monkeypatch.delenv(name, raising=False)

    monkeypatch.setenv("PDML_LEASE_SECONDS", "7")
    monkeypatch.setenv("HOME_OF_OTHERS", "no")
    monkeypatch.setattr(on_ray, "work", look)
    ray.during_wait = node
    run_on_ray(plan(STUDY, tmp_path / "out"), None, 1, lambda run, outcome: None)
    assert seen == 3 * [{"PDML_LEASE_SECONDS": "7", "HOME_OF_OTHERS": None}]


def test_the_software_is_the_code_and_the_versions_that_decide_the_bits():
    found = installed_software()
    assert list(found) == ["the code of pdml", "python", "jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco"]
    assert found == installed_software()
    assert software_difference(found, found) == ""
    assert (
        software_difference({"a": "1", "b": "2"}, {"a": "3"})
        == "a is 3 there and 1 here, b is missing there and 2 here"
    )


def test_without_ray_the_command_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["sweep", "rate", "--on", "ray", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err == "pdml: --on ray: needs Ray: pip install 'pdml[ray]' (in a checkout, '.[ray]')\n"
    assert not (tmp_path / "out").exists()


def test_the_cluster_is_asked_before_anything_is_measured(ray, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pdml.sweeps.cost.costs", lambda runs, out: pytest.fail("it was measured"))
    words = ["sweep", "rate", "--on", "ray", "--address", "nowhere", "--seeds", "0", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith("pdml: address = 'nowhere': must be auto, or HOST:PORT")


def test_a_directory_called_ray_is_not_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with pytest.raises(UserError, match="needs Ray"):
        run_on_ray([], None, 1, lambda run, outcome: None)


@pytest.mark.parametrize(
    ("address", "code", "printed", "said"),
    [
        ("auto", 1, "Traceback ...\nConnectionError: none", "start one with: ray start --head"),
        (
            "here",
            1,
            "Traceback ...\n  File\nRuntimeError: Version mismatch",
            "address = 'here': RuntimeError: Version mismatch",
        ),
        ("here", 1, "", "address = 'here': no Ray cluster answers there"),
    ],
)
def test_why_a_cluster_cannot_be_used_is_one_line(ray, address, code, printed, said, monkeypatch):
    monkeypatch.setattr(on_ray, "_require_port", lambda address: None)
    answer = types.SimpleNamespace(returncode=code, stderr=printed)
    monkeypatch.setattr(on_ray.subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(UserError) as caught:
        on_ray.require_cluster(address)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
