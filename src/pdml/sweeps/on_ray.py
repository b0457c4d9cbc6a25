"""Many runs on a Ray cluster: each is one task, of the same function that does it on one machine.

Ray chooses the node, and starts a task again whose worker or node has died; the run's own command resumes it. There is
no other scheduler. Results are on a path that all nodes share.
"""

import hashlib
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from pdml.core.errors import UserError
from pdml.core.signals import Stopped
from pdml.core.version import package_version
from pdml.sweeps.local import Changed
from pdml.sweeps.plan import PlannedRun
from pdml.sweeps.stop_requests import stop_requests
from pdml.sweeps.worker import OUTPUT, STOPPED, Outcome, attempt, mark_planned, note_outcome, unmark_planned, work

RETRIES = 20
"""How often Ray starts a run again whose worker or node has died."""

SAME = ("jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco")
"""Packages of which all nodes must have the driver's version: they decide the bits of a result."""

PASSED_ON = ("JAX_", "XLA_", "PDML_")
"""How the variables of the environment begin that runs on other nodes get too."""

CONNECT_SECONDS, REACH_SECONDS, PROBE_SECONDS = 5.0, 11.0, 180.0
"""How long to wait for a port, for an answer of the cluster, and for an answer of every node."""

LOOK_SECONDS, LOOKED_AT = 1.0, 100
"""How often, and at how many of the next runs, the driver looks whether they have begun."""

_REACH = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


class _Job(NamedTuple):
    """What all tasks of a sweep need to know."""

    software: dict[str, str]
    environment: dict[str, str]
    folder: Path
    """Where the driver was started: modules of environments may be there."""
    out: Path
    """Above all runs; every node must see it."""


def run_on_ray(
    runs: Sequence[PlannedRun], address: str | None, cpus_per_run: int, changed: Changed
) -> list[tuple[PlannedRun, Outcome]]:
    """Do all runs on a cluster; return how each ended.

    Args:
        address: Of the cluster's head, as HOST:PORT; None for the cluster that this machine is a node of. See
            `require_cluster`.
        cpus_per_run: CPU slots that a run takes.
        changed: Called when a run starts, with None, and when it has ended, with its outcome.

    Raises:
        Stopped: After all runs have saved and stopped, if Ctrl-C, SIGTERM or SIGHUP asked for it.
    """
    ray = _ray()
    address = address or "auto"
    if not runs:
        return []
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        raise UserError(f"address = '{address}': cannot be used ({_one_line(error)})") from None
    try:
        folders = [str(run.path.parent.absolute()) for run in runs]
        job = _Job(installed_software(), _environment(), Path.cwd(), Path(os.path.commonpath(folders)))
        _require_same_nodes(ray, job, cpus_per_run)
        return _run_all(ray, runs, job, cpus_per_run, changed)
    finally:
        ray.shutdown()


def installed_software() -> dict[str, str]:
    """Return what must be the same on all nodes: the code of this package by its hash, and versions."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".toml")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    versions = {name: str(package_version(name)) for name in SAME}
    return {"the code of pdml": digest.hexdigest()[:12], "python": platform.python_version(), **versions}


def software_difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Say what another node has instead of what this one has; empty if nothing."""
    names = [name for name in ours if ours[name] != theirs.get(name)]
    return ", ".join(f"{name} is {theirs.get(name, 'missing')} there and {ours[name]} here" for name in names)


def _ray() -> Any:
    """Return the library."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        ray = None
    if not hasattr(ray, "init"):  # a directory of that name can be imported too
        raise UserError("--on ray: needs Ray: pip install 'pdml[ray]' (in a checkout, '.[ray]')")
    return ray


def require_cluster(address: str | None) -> None:
    """Raise, within 20 s, unless a cluster answers. Ray itself may wait for minutes, so another process asks it."""
    _ray()
    address = address or "auto"
    if address != "auto":
        _require_port(address)
    try:
        command = [sys.executable, "-c", _REACH, address]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=REACH_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise UserError(f"address = '{address}': no Ray cluster answers there within {REACH_SECONDS:.0f} s") from None
    if asked.returncode != 0:
        said = [line for line in asked.stderr.splitlines() if line.strip() and not line.startswith(" ")]
        if address == "auto":
            said = ["this machine is no node of a running cluster; start one with: ray start --head"]
        raise UserError(f"address = '{address}': {' '.join(said[-1:]) or 'no Ray cluster answers there'}")


def _require_port(address: str) -> None:
    """Raise unless something listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536 and "/" not in host):
        raise UserError(f"address = '{address}': must be auto, or HOST:PORT of the cluster's head node")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror
        raise UserError(f"address = '{address}': cannot be reached ({why}); is the cluster running?") from None


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}


def _require_same_nodes(ray: Any, job: _Job, cpus: int) -> None:
    """Raise unless every node has the same software, sees the results, and one has enough CPUs."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    most = int(max((node["Resources"].get("CPU", 0) for node in nodes), default=0))
    if most < cpus:
        raise UserError(f"cpus-per-run = {cpus}: the largest node has {most} CPUs")
    missing = [path for path in (job.out, *job.out.parents) if not path.exists()]
    job.out.mkdir(parents=True, exist_ok=True)
    sign = job.out / f".seen-{os.getpid()}-{os.urandom(4).hex()}"
    sign.touch()
    try:
        for node, (software, seen) in _ask_nodes(ray, nodes, sign):
            wrong = software_difference(job.software, software)
            if wrong:
                raise UserError(f"node {node}: {wrong}; install the same on all nodes")
            if not seen:
                raise UserError(f"node {node}: does not see '{job.out}'; --out must be on a path that all nodes share")
    except UserError:
        sign.unlink()
        for path in missing:
            path.rmdir()
        raise
    sign.unlink()


def _ask_nodes(ray: Any, nodes: Iterable[Any], sign: Path) -> list[tuple[str, tuple[dict[str, str], bool]]]:
    """Ask every node what it has installed, and whether it sees a file."""

    def answer(path: str) -> tuple[dict[str, str], bool]:  # sent as it is: this package may be missing there
        import pathlib

        try:
            from pdml.sweeps.on_ray import installed_software

            software = installed_software()
        except ImportError as error:
            software = {"the code of pdml": f"not to be imported ({error})"}
        return software, pathlib.Path(path).exists()

    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    task = ray.remote(num_cpus=0, max_retries=3)(answer)
    asked = {
        f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})": task.options(
            scheduling_strategy=strategy(node["NodeID"], soft=False)
        ).remote(str(sign))
        for node in nodes
    }
    return [(name, _answer(ray, name, answer)) for name, answer in asked.items()]


def _answer(ray: Any, node: str, asked: Any) -> Any:
    try:
        return ray.get(asked, timeout=PROBE_SECONDS)
    except Exception as error:
        raise UserError(f"node {node}: cannot be asked for its versions ({_one_line(error)})") from None


def _run_all(
    ray: Any, runs: Sequence[PlannedRun], job: _Job, cpus: int, changed: Changed
) -> list[tuple[PlannedRun, Outcome]]:
    """Hand all runs to Ray, and wait for them."""
    mark_planned([run.path for run in runs])
    sizes = {run.path: _printed(run.path) for run in runs}  # of those that have not begun
    task = ray.remote(num_cpus=cpus, max_retries=RETRIES)(_do)
    asked = {task.remote(_absolute(run), str(run.path.absolute()), job): run for run in runs}
    waiting, ended, cancelled = list(asked), list[tuple[PlannedRun, Outcome]](), False
    stop, leave = threading.Event(), threading.Event()  # leaving ends Ray's workers
    with stop_requests(stop, leave.set) as received:
        while waiting and not leave.is_set():
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
            if stop.is_set() and not cancelled:
                cancelled = True
                for each in waiting:
                    ray.cancel(each)
            for path in [path for path in list(sizes)[:LOOKED_AT] if _printed(path) > sizes[path]]:
                del sizes[path]
                changed(next(run for run in runs if run.path == path), None)
            for each in done:
                outcome = _outcome(ray, each)
                note_outcome(asked[each].path, outcome)
                sizes.pop(asked[each].path, None)
                ended.append((asked[each], outcome))
                changed(asked[each], outcome)
    if received:
        unmark_planned([run.path for run in runs])
        raise Stopped(received[0])
    return ended


def _printed(path: Path) -> int:
    """Return how many bytes a run has printed; none if its directory was moved or removed."""
    try:
        return (path / OUTPUT).stat().st_size
    except OSError:
        return 0


def _absolute(run: PlannedRun) -> tuple[str, ...]:
    """Return the words of a run with an absolute path: a worker may have been started elsewhere."""
    place = run.words.index("--run-dir") + 1
    return (*run.words[:place], str(run.path.absolute()), *run.words[place + 1 :])


def _outcome(ray: Any, asked: Any) -> Outcome:
    """Return how a task ended, also if Ray gave it up."""
    try:
        return Outcome(*ray.get(asked))
    except ray.exceptions.TaskCancelledError:
        return Outcome(STOPPED, "stopped")
    except Exception as error:
        return Outcome(1, f"given up by Ray: {_one_line(error)}")


def _do(words: Sequence[str], path: str, job: _Job) -> Outcome:
    """Do one run, in a worker of Ray on some node."""
    wrong = software_difference(job.software, installed_software())  # the node may have joined late
    if not wrong and not job.out.is_dir():
        wrong = f"'{job.out}' is not there; results must be on a path that all nodes share"
    if wrong:
        return Outcome(2, f"node {platform.node()}: {wrong}")
    os.environ.update(job.environment)
    if job.folder.is_dir():
        os.chdir(job.folder)
    stop, found = threading.Event(), list[Outcome]()
    thread = threading.Thread(target=lambda: found.append(attempt(work, words, Path(path), stop)))
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.2)
        except KeyboardInterrupt:  # so Ray says that the task is cancelled
            stop.set()
    return found[0]


def _one_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
