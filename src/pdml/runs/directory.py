"""The run directory: append-only csv files, and what was run and on what."""

import csv
import io
import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from pdml.config.files import FORMAT, read_metadata, to_json
from pdml.config.schema import Config, Settings
from pdml.config.start_from import StartRecord
from pdml.core.errors import BusyError, UserError
from pdml.core.version import package_version
from pdml.runs.device import cpu_model
from pdml.runs.lease import Lease

RECORDED_VERSIONS = ("pdml", "jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco", "safetensors")


class Table:
    """An append-only csv file whose columns are fixed by its first row; what a later row lacks is NaN.

    A file that an earlier version of this package began keeps its columns.
    """

    def __init__(self, lease: Lease, name: str):
        self._lease, self._path = lease, lease.run / name
        self._begun_here = False

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows in one write; numbers read back exactly."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self._columns()
        for row in rows:
            if not columns:
                columns, self._begun_here = list(row), True
                writer.writerow(columns)
            if self._begun_here and not set(row) <= set(columns):
                raise ValueError(f"{self._path.name}: columns {list(row)} instead of {columns}")
            values = [row.get(name, float("nan")) for name in columns]
            writer.writerow([repr(value) if isinstance(value, float) else value for value in values])
        self._lease.append(self._path, text.getvalue().encode())

    def _columns(self) -> list[str]:
        """Read the header, which a resumed run may have removed."""
        if not self._path.exists():
            return []
        with self._path.open() as file:
            return [name for name in file.readline().rstrip("\n").split(",") if name]


TABLES = ("progress.csv", "evaluations.csv", "timing.csv", "diagnostics.csv")
"""The append-only files of a run."""


def offsets(path: Path) -> dict[str, int]:
    """Return how long each append-only file is. A checkpoint keeps this, so that resuming duplicates no row."""
    return {name: (path / name).stat().st_size for name in TABLES if (path / name).exists()}


def renew_files(lease: Lease) -> None:
    """Replace every append-only file by a copy: an earlier owner of the run may still have the old one open."""
    found = [lease.run / name for name in TABLES if (lease.run / name).exists()]
    for file in (*found, *lease.run.glob("events.out.tfevents.*")):
        _keep(lease, file, file.stat().st_size)


def truncate_files(lease: Lease, lengths: dict[str, int], step: int) -> None:
    """Truncate the files of a run to what they were at a checkpoint."""
    path = lease.run
    for name in TABLES:
        file = path / name
        if name not in lengths:
            lease.remove(file)
        elif not file.exists() or file.stat().st_size < lengths[name]:
            raise UserError(f"run = '{path}': {name} is shorter than at its checkpoint; restore it or start a new run")
        elif file.stat().st_size > lengths[name]:
            _keep(lease, file, lengths[name])
    for file in path.rglob("*.partial"):  # of an earlier version of this package
        lease.remove(file)
    for folder in ("blocks", "archive", "checkpoints"):
        for file in (path / folder).glob("step_*.safetensors"):
            number = file.stem.removeprefix("step_")
            if number.isdecimal() and int(number) > step:
                lease.remove(file)
    for name in ("error.txt", "DONE"):
        lease.remove(path / name)


def _keep(lease: Lease, file: Path, length: int) -> None:
    """Replace a file by a copy of its first bytes."""
    with lease.replaced(file) as partial:
        shutil.copyfile(file, partial)
        os.truncate(partial, length)


def copy_files(source: Path, lease: Lease) -> None:
    """Copy what a run has written beside its policies and checkpoints."""
    for name in (*TABLES, "blocks", "archive"):
        if (source / name).exists():
            with lease.replaced(lease.run / name) as partial:
                (shutil.copytree if (source / name).is_dir() else shutil.copyfile)(source / name, partial)


def default_path(config: Config) -> Path:
    """Return a new directory for a run: runs/<env>/<method>/seed<k>__<time>."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    env = config.env.replace("/", "_").replace(":", "_")
    path = Path("runs") / env / config.method / f"seed{config.seed}__{now}"
    again = (path.with_name(f"{path.name}_{i}") for i in count(2))
    return path if not path.exists() else next(other for other in again if not other.exists())


def create(path: Path, settings: Settings, threads: int, command: str, environment: dict[str, Any]) -> Lease:
    """Create a run's directory, take its lease, and write what is run, on what and with what.

    Whoever calls this has seen `check_free` agree: if there is a run by now, another process has been faster.

    Args:
        environment: What metadata.json records of the environment; see `pdml.envs.env_spec.EnvSpec.recorded`.
    """
    about = {**metadata(threads, command), **environment}
    _refuse_begun(path)
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        lease = Lease(path)
        try:
            _refuse_begun(path)
            lease.write_text("metadata.json", json.dumps(about, indent=2) + "\n")
            lease.write_text("config.json", to_json(settings))
        except BaseException:
            lease.free()
            raise
    except OSError as error:
        raise UserError(f"run-dir = '{path}': cannot be written ({error.strerror})") from None
    return lease


def _refuse_begun(path: Path) -> None:
    if (path / "config.json").exists():
        raise BusyError(f"run-dir = '{path}': another process or agent has begun a run there meanwhile")


def check_free(path: Path) -> None:
    """Raise unless a new run can be written here; writes nothing."""
    try:
        taken = (path / "config.json").exists()
    except OSError as error:
        raise UserError(f"run-dir = '{path}': cannot be used ({error.strerror})") from None
    if taken:
        raise UserError(f"run-dir = '{path}': already holds a run; choose another directory")
    for parent in (path, *path.parents):
        if parent.exists():
            if not parent.is_dir():
                raise UserError(f"run-dir = '{path}': '{parent}' is a file, a directory is needed")
            if not os.access(parent, os.W_OK):
                raise UserError(f"run-dir = '{path}': '{parent}' cannot be written")
            return


def metadata(threads: int, command: str) -> dict[str, Any]:
    """Describe versions, commit, machine and command."""
    return {
        "format": FORMAT,
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in RECORDED_VERSIONS},
        "machine": {
            "system": platform.platform(),
            "cpu": cpu_model(),
            "threads": threads,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        },
    }


def note_resumed(lease: Lease, threads: int, command: str, step: int, start: StartRecord | None = None) -> list[str]:
    """Add to a run's metadata that it is resumed; return a line for each thing that may change its last bits.

    Args:
        start: The run that it started from. It may have gone on since this run's directory was made.
    """
    known, now = read_metadata(lease.run), metadata(threads, command)
    lines = []
    for name, was in {**known.get("versions", {}), "python": known.get("python")}.items():
        is_now = now["python"] if name == "python" else now["versions"].get(name)
        if was != is_now:
            lines.append(f"{name} is {is_now}, was {was}: the last bits may differ from an unbroken run")
    for name, was in known.get("machine", {}).items():
        is_now = now["machine"].get(name)
        if was != is_now:
            lines.append(f"{name} is '{is_now}', was '{was}': the last bits may differ from an unbroken run")
    if start is not None:
        known["start_from"] = start._asdict()
    known.setdefault("resumed", []).append({"step": step, **now})
    lease.write_text("metadata.json", json.dumps(known, indent=2) + "\n")
    return lines


def recorded_threads(path: Path) -> int | None:
    """Return how many threads a run was started with, if it says so."""
    try:
        return int(read_metadata(path)["machine"]["threads"])
    except (ValueError, KeyError, TypeError):
        return None


def recorded_spaces(path: Path) -> dict[str, Any]:
    """Return the spaces of a run's environment, as it recorded them."""
    try:
        return read_metadata(path)["spaces"]
    except KeyError:
        raise UserError(f"run = '{path}': its metadata.json does not record the environment's spaces") from None


def require_run(path: Path) -> Path:
    """Return the path if it holds a run."""
    if not (path / "config.json").is_file():
        raise UserError(f"run = '{path}': no run there (it has no config.json)")
    return path


def _git(*words: str) -> str | None:
    """Ask git about the checkout this package runs from; None where it does not run from one."""
    here = Path(__file__).resolve().parents[1]
    if here.parent.name != "src":
        return None
    try:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
