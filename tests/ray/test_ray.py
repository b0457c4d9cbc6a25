"""Sweeps on a real Ray cluster of two nodes, of which workers, nodes and the driver are killed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_files import assert_same_files
from two_nodes import PATIENCE, descendants, parent

import pdml
from pdml.sweeps.status import runs_below

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

STUDY = """
envs = ["InvertedPendulum-v5"]
methods = ["mbpo"]
seeds = "0-2"
steps = 700
[settings]
warmup_steps = 60
model_every = 20
eval_every = 100
eval_episodes = 1
checkpoint_every = 20
"agent.hidden_sizes" = "16"
"dynamics.hidden_sizes" = "16,16,16,16"
"rollouts.batch" = 50
"""


def command(folder, out, *more):
    return [sys.executable, "-m", "pdml", "sweep", str(folder / "tiny.toml"), "--out", str(out), *more]


class Driver:
    """`pdml sweep --on ray` in a process of its own, ended with the test."""

    def __init__(self, folder, out, *address):
        self._output = folder / "driver.txt"
        words = command(folder, out, "--on", "ray", *address)
        with self._output.open("w") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, cwd=folder)

    def said(self):
        return self._output.read_text()

    def wait(self):
        code = self.process.wait(2 * PATIENCE)
        print(self.said())
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The same study on this machine, never interrupted."""
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "tiny.toml").write_text(STUDY)
    subprocess.run(command(folder, folder / "out", "--jobs", "2"), check=True, cwd=folder)
    return folder / "out"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.toml").write_text(STUDY)
    return tmp_path


def eventually(find, driver=None):
    """Return what is found, as soon as something is."""
    deadline = time.monotonic() + PATIENCE
    while not (found := find()):
        assert time.monotonic() < deadline, "waited in vain"
        assert driver is None or driver.process.poll() is None, driver.said()
        time.sleep(0.05)
    return found


def training(out):
    """Return the runs that are under way and have a checkpoint, with their process."""
    found = {}
    for path in runs_below([out]):
        leases = sorted((path / "lease").glob("*.json"))
        if leases and len(list((path / "checkpoints").glob("*.safetensors"))) == 2 and not (path / "DONE").exists():
            pid = json.loads(leases[-1].read_text())["pid"]
            found |= {path: pid} if parent(pid) else {}
    return found


def resumed(path):
    """Return the steps from which a run was resumed."""
    return [each["step"] for each in json.loads((path / "metadata.json").read_text()).get("resumed", [])]


def assert_as_unbroken(out, unbroken):
    runs = runs_below([out])
    assert len(runs) == 3
    for run in runs:
        assert_same_files(run, unbroken / run.relative_to(out))


def refused(folder, *more, **environment):
    """Run a sweep that must be refused before it writes anything; return what it says."""
    began = time.monotonic()
    done = subprocess.run(
        command(folder, folder / "out", "--on", "ray", *more),
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (folder / "out").exists()
    return done.stderr, time.monotonic() - began


def test_without_a_cluster_and_an_address_it_says_how_to_start_one(folder):
    """Comes first: a cluster on this machine is found without an address."""
    said, seconds = refused(folder)
    assert "ray start --head" in said
    assert seconds < 20


def test_a_killed_worker_and_a_killed_node_change_no_byte_of_any_run(cluster, folder, unbroken):
    out = folder / "out"
    with Driver(folder, out, "--address", cluster.address) as driver:
        first, pid = next(iter(eventually(lambda: training(out), driver).items()))
        os.kill(parent(pid), signal.SIGKILL)  # the worker process of Ray, whose child the run is
        eventually(lambda: parent(pid) == 0, driver)  # the run saves and stops
        eventually(lambda: resumed(first), driver)

        def on_second_node():
            there = descendants(cluster.raylets[1])
            return [path for path, pid in training(out).items() if pid in there]

        second = eventually(on_second_node, driver)[0]
        before = resumed(second)
        cluster.kill_second_node()
        assert driver.wait() == 0
    assert len(resumed(first)) >= 1
    assert len(resumed(second)) > len(before)
    assert_as_unbroken(out, unbroken)
    cluster.start_second_node()


def test_ctrl_c_saves_every_run_and_the_same_command_resumes(cluster, folder, unbroken):
    out = folder / "out"
    with Driver(folder, out, "--address", cluster.address) as driver:
        pids = eventually(lambda: training(out), driver)
        driver.process.send_signal(signal.SIGINT)
        assert driver.wait() == 130
        assert "the same command resumes" in driver.said()
    assert [pid for pid in pids.values() if parent(pid)] == []
    assert not all((path / "DONE").exists() for path in runs_below([out]))
    with Driver(folder, out, "--address", cluster.address) as driver:
        assert driver.wait() == 0
    assert any(resumed(path) for path in pids)
    assert_as_unbroken(out, unbroken)


def test_runs_end_when_the_driver_is_killed(cluster, folder):
    out = folder / "out"
    with Driver(folder, out, "--address", cluster.address) as driver:
        pids = eventually(lambda: training(out), driver)
        driver.process.kill()
        assert eventually(lambda: not any(parent(pid) for pid in pids.values()))
    assert eventually(lambda: not training(out))


def test_a_run_that_fails_is_named_and_the_others_go_on(cluster, folder):
    out = folder / "out"
    (folder / "broken_env.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Box(-1, 1, (1,))\n"
        "    def reset(self, seed=None, options=None):\n"
        "        return self.observation_space.low, {}\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('it broke')\n"
        "gymnasium.register('Broken-v0', Broken, max_episode_steps=50)\n"
    )
    text = STUDY.replace('["InvertedPendulum-v5"]', '["broken_env:Broken-v0"]').replace("0-2", "0-1")
    (folder / "tiny.toml").write_text(text)
    with Driver(folder, out) as driver:  # on a node of the cluster, the address can be left out
        assert driver.wait() == 1
        said = driver.said()
    assert "done: 0 of 2 runs" in said
    assert said.count("it broke") >= 2


def test_other_code_than_the_nodes_have_is_refused(cluster, folder):
    shutil.copytree(Path(pdml.__file__).parent, folder / "other" / "pdml")
    with (folder / "other" / "pdml" / "api.py").open("a") as file:
        file.write("# changed\n")
    said, _ = refused(folder, "--address", cluster.address, PYTHONPATH=str(folder / "other"))
    assert re.search(r"node .*: the code of pdml is \w{12} there and \w{12} here; install the same", said)


def test_more_cpus_than_a_node_has_are_refused(cluster, folder):
    said, _ = refused(folder, "--address", cluster.address, "--cpus-per-run", "2")
    assert "cpus-per-run = 2: the largest node has 1 CPUs" in said


@pytest.mark.parametrize("address", ["nowhere", "ray://127.0.0.1:10001", "127.0.0.1:0", "127.0.0.1:port"])
def test_what_is_no_address_is_refused(folder, address):
    said, _ = refused(folder, "--address", address)
    assert f"address = '{address}': must be auto, or HOST:PORT" in said


def test_an_address_that_nothing_listens_at_is_refused_soon(folder):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but not listening
        said, seconds = refused(folder, "--address", f"127.0.0.1:{closed.getsockname()[1]}")
    assert "cannot be reached (Connection refused)" in said
    assert seconds < 20


def test_a_port_that_is_no_cluster_is_refused_within_20_s(folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said, seconds = refused(folder, "--address", f"127.0.0.1:{silent.getsockname()[1]}")
    assert "no Ray cluster answers there" in said
    assert seconds < 20


def test_the_cluster_leaves_no_process_behind():
    from two_nodes import TwoNodes

    with TwoNodes() as nodes:
        assert nodes.processes()
        nodes.kill_second_node()
    assert nodes.processes() == []
    assert not Path(nodes.folder).exists()
