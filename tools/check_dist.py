"""Check the package that `make dist` built: what it contains, and what it does where nothing else is installed.

Run: python tools/check_dist.py dist
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRAIN = (
    "train --steps 120 --warmup-steps 60 --model-every 20 --batch-size 32 --eval-every 60 --eval-episodes 1"
    " --agent.hidden-sizes 16 --dynamics.hidden-sizes 16 --dynamics.weight-decay 1e-5,1e-5 --dynamics.num-members 2"
    " --dynamics.num-elites 2 --dynamics.max-epochs 2 --rollouts.batch 40 --run-dir run"
)

WORKS = (
    "--help",
    "list envs",
    "list studies",
    TRAIN,
    "report run --out report.html",
    "figure curves run --out figures",
)
"""Commands that need no extra."""

NEEDS = {
    "video run": "video",
    "analyse tsne run": "analysis",
    "export run --to onnx": "onnx",
    "train --env dm_control/cartpole-balance-v0 --run-dir other": "dmc",
    "tune comparison --envs Hopper-v5 --methods sac --field agent.learning_rate=1e-4..1e-3 --trials 1": "tune",
    "sweep rate --on ray --seeds 0 --out swept": "ray",
}
"""Commands that name the extra that they miss."""


def main() -> None:
    """Check both archives, then the wheel in an environment of its own."""
    folder = Path(sys.argv[1])
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    check_wheel(wheel)
    check_source(source)
    with tempfile.TemporaryDirectory() as clean:
        try_wheel(wheel.resolve(), Path(clean))
    print(f"{wheel.name} and {source.name} are complete, and work without extras")


def check_wheel(wheel: Path) -> None:
    """Require every file of the package, data and types too, and a description without paths of the repository."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if name.startswith("pdml/")}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    expected = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "pdml").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    require(found == expected, f"the wheel differs from src: {sorted(found ^ expected)}")
    for name in ("pdml/py.typed", "pdml/sweeps/studies/comparison.toml", "pdml/reporting/page/page.js"):
        require(name in found, f"the wheel has no {name}")
    links = re.findall(r"\]\((?!https?:|#)([^)]*)\)", metadata)
    require(not links, f"the description leads nowhere on an index: {links}")


def check_source(source: Path) -> None:
    """Require what building needs, and nothing of the results."""
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("pyproject.toml", "README.md", "LICENSE", "tools/index_readme.py", "src/pdml/py.typed"):
        require(name in names, f"the source archive has no {name}")
    require(not any(name.startswith(("results", "tests", "docs")) for name in names), "it has results, tests or docs")


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel without extras and run commands with it."""
    print("installing the wheel into a clean environment", flush=True)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel]
    subprocess.run(pip, check=True, cwd=folder)
    for words in WORKS:
        done = run(python, words, folder)
        require(done.returncode == 0, f"pdml {words}: {done.stderr}")
    for words, extra in NEEDS.items():
        done = run(python, words, folder)
        named = done.returncode == 2 and done.stderr.count("\n") == 1 and f"pip install 'pdml[{extra}]'" in done.stderr
        require(named, f"pdml {words}: does not name the extra {extra}: {done.returncode} {done.stderr}")
    require((folder / "report.html").stat().st_size > 10_000, "the report is empty")
    require({path.suffix for path in (folder / "figures").iterdir()} >= {".png", ".pdf", ".csv"}, "a figure is missing")


def run(python: Path, words: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command in the folder; what it uses is what is installed there."""
    print(f"pdml {words}", flush=True)
    command = [str(python), "-m", "pdml", *words.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def require(holds: bool, otherwise: str) -> None:
    """End with one line if something does not hold."""
    if not holds:
        sys.exit(f"check_dist: {otherwise}")


if __name__ == "__main__":
    main()
