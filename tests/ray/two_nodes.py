"""A Ray cluster of two nodes on this machine, in a process of its own that a test talks to.

Run as a program, it starts the nodes, prints a JSON line about them, and obeys the words that it reads: `add` starts
another second node. At the end of its input it ends all processes of the cluster.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 300.0
STARTS = 4
"""Ray gives a node 30 s to start, which a busy machine may miss."""


class TwoNodes:
    """The cluster: its address, the process of each node, and the means to kill them."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="pdml-ray-", dir="/tmp")  # short: paths of sockets have 107 bytes at most
        with Path(self.folder, "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env=os.environ | {"RAY_TMPDIR": self.folder, "RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self):
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, Path(self.folder, "log").read_text()
        found = json.loads(line)
        self.address, self.raylets = found["address"], found["raylets"]

    def kill_second_node(self):
        """Kill every process of the second node at once, as if its machine had lost power."""
        for pid in [*descendants(self.raylets[1]), self.raylets[1]]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_second_node(self):
        """Start another second node in the place of the killed one."""
        self._process.stdin.write("add\n")
        self._process.stdin.flush()
        self._read()

    def processes(self):
        """Return all processes that were started in the cluster."""
        return [pid for pid in all_processes() if self.folder in environment(pid) and pid != os.getpid()]

    def close(self):
        """End the cluster and everything that was started in it."""
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        deadline = time.monotonic() + 30
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.2)
        for pid in self.processes():  # started here, all of them: their environment says so
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def all_processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def environment(pid):
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def parent(pid):
    """Return a process's parent, 0 if there is no such process or it has ended."""
    try:
        state, number = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state == "Z" else int(number)


def descendants(pid):
    """Return the children of a process, their children and so on."""
    parents = {each: parent(each) for each in all_processes()}
    found, layer = [], [pid]
    while layer:
        layer = [each for each, its in parents.items() if its in layer]
        found += layer
    return found


def start_cluster():
    from ray.cluster_utils import Cluster

    def retried(start):
        for i in range(STARTS):
            try:
                return start()
            except Exception:
                if i == STARTS - 1:
                    raise
                time.sleep(2)

    def head():
        made = Cluster()
        try:
            made.add_node(num_cpus=1, include_dashboard=False)
        except Exception:
            made.shutdown()
            raise
        return made

    cluster = retried(head)
    return cluster, lambda: retried(lambda: cluster.add_node(num_cpus=1))


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no answer
    Path(os.environ["RAY_TMPDIR"], "ray").mkdir()
    cluster, add = start_cluster()

    def tell(second):
        raylets = [node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, second)]
        print(json.dumps({"address": cluster.address, "raylets": raylets}), file=answers, flush=True)

    try:
        tell(add())
        for line in sys.stdin:
            assert line == "add\n"
            tell(add())
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
