"""The run directory: what a person reads, append-only, and where a run is kept."""

import csv
import io
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pdml.config import Config
from pdml.errors import UserError
from pdml.settings import FORMAT, to_json

RECORDED_VERSIONS = ("pdml", "jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco", "safetensors")


class Table:
    """An append-only csv file whose columns are fixed by its first row; what a later row lacks is not a number."""

    def __init__(self, path: Path):
        self._path = path
        self._columns: list[str] | None = None

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows in one go; numbers are written so that they read back exactly."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in rows:
            if self._columns is None:
                self._columns = list(row)
                writer.writerow(self._columns)
            if not set(row) <= set(self._columns):
                raise ValueError(f"{self._path.name}: columns {list(row)} instead of {self._columns}")
            values = [row.get(name, float("nan")) for name in self._columns]
            writer.writerow([repr(value) if isinstance(value, float) else value for value in values])
        with self._path.open("a", newline="") as file:
            file.write(text.getvalue())


def default_path(config: Config) -> Path:
    """Return a new directory for a run: runs/<env>/<method>/seed<k>__<time>."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return Path("runs") / config.env / config.method / f"seed{config.seed}__{now}"


def create(path: Path, config: Config, threads: int, command: str) -> None:
    """Create a run's directory and write what was run, and with what."""
    check_free(path)
    try:
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(to_json(config))
    except OSError as error:
        raise UserError(f"run-dir = '{path}': cannot be written ({error.strerror})") from None
    (path / "metadata.json").write_text(json.dumps(metadata(threads, command), indent=2) + "\n")


def check_free(path: Path) -> None:
    """Raise unless a run could be kept here; writes nothing."""
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
        "machine": {"system": platform.platform(), "cpu": _cpu(), "threads": threads},
    }


def require(path: Path) -> Path:
    """Return the path if it holds a run."""
    if not (path / "config.json").is_file():
        raise UserError(f"run = '{path}': no run there (it has no config.json)")
    return path


def package_version(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*words: str) -> str | None:
    """Ask git about the checkout this package runs from; None where it does not run from one."""
    here = Path(__file__).resolve().parent
    if here.parent.name != "src":
        return None
    try:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or sys.platform
