"""Keep finished runs as results: what tables and figures need of them, small enough for a repository."""

import json
import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pdml.config.files import read_metadata
from pdml.config.schema import FIRST_TUNING_SEED
from pdml.core.errors import UserError
from pdml.core.files import replaced
from pdml.reporting.read import Run, find, read

KEPT = ("config.json", "metadata.json", "evaluations.csv", "progress.csv", "diagnostics.csv", "timing.csv")
"""The files of a run that are kept; the csv files in its folder `analysis` are kept too."""

THINNED = ("progress.csv", "diagnostics.csv")
"""Files of which large ones keep only some rows."""

LARGE, EVERY = 200_000, 5
"""Above so many bytes a file keeps at most one row in so many, its last row among them."""


class Collected(NamedTuple):
    """What became of one run."""

    source: Path
    target: Path
    outcome: str
    """collected, extended, replaced, unchanged; skipped if it is no result; refused if a person must decide."""
    reason: str = ""
    """Why it was skipped or refused; otherwise what was done."""


def collect_runs(out: Path, into: Path, replace: bool = False, tuning: bool = False) -> Iterator[Collected]:
    """Copy what is kept of every finished run at or below a directory, one after another.

    A run keeps its path below `out`; where `out` is itself a run, it keeps its name.

    Args:
        into: Where to; runs that are already below it are left alone.
        replace: Overwrite runs of other content. Without it they are refused.
        tuning: Keep also runs that settings were tuned on. Without it they are skipped.
    """
    if into.exists() and not into.is_dir():
        raise UserError(f"into = '{into}': is a file, a directory is needed")
    if out.resolve().is_relative_to(into.resolve()):
        raise UserError(f"into = '{into}': '{out}' is already in it; collect from another directory")
    sources = [path for path in find([out]) if not path.resolve().is_relative_to(into.resolve())]
    if not sources:
        raise UserError(f"run = '{out}': all its runs are already in '{into}'")
    for source in sources:
        place = Path(out.resolve().name) if source == out else source.relative_to(out)
        yield _collect(source, into / place, replace, tuning)


def _collect(source: Path, target: Path, replace: bool, tuning: bool) -> Collected:
    try:
        run = read(source)
        if run.config.seed >= FIRST_TUNING_SEED and not tuning:
            reason = (
                f"seeds from {FIRST_TUNING_SEED} on are for tuning, and its seed is {run.config.seed}; see --tuning"
            )
            return Collected(source, target, "skipped", reason)
        if not (source / "DONE").exists():
            return Collected(source, target, "skipped", _why_unfinished(run))
        if run.problems:
            return Collected(source, target, "refused", run.problems[0])
        contents, thinned = kept_files(source, target.resolve())
        if not (source / "DONE").exists():
            return Collected(source, target, "skipped", "it was resumed just now")
    except UserError as error:
        return Collected(source, target, "refused", str(error))
    except OSError as error:
        return Collected(source, target, "refused", f"cannot be read ({error.strerror}: {error.filename})")
    try:
        return Collected(source, target, *_write(contents, thinned, target, replace))
    except OSError as error:
        raise UserError(f"into = '{target}': cannot be written ({error.strerror})") from None


def _why_unfinished(run: Run) -> str:
    """Say how far a run without DONE has come."""
    reached = int(run.progress["step"][-1]) if len(run.progress.get("step", ())) else 0
    if run.status == "failed":
        return f"it failed at step {reached} ({run.message})"
    return f"it is not finished (step {reached} of {run.options.steps})"


def kept_files(path: Path, target: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return what is kept of a run, by the names of its files, and say which of them were thinned.

    Args:
        target: Where they will be, as an absolute path; see `_shorter_word`.
    """
    contents = {name: (path / name).read_bytes() for name in KEPT if (path / name).exists()}
    found = sorted((path / "analysis").glob("*.csv"))
    contents |= {file.relative_to(path).as_posix(): file.read_bytes() for file in found}
    notes: dict[str, str] = {}
    for name in THINNED:
        size = len(contents.get(name, b""))
        if size > LARGE:
            every = max(EVERY, -(-size // LARGE))
            contents[name] = _rows(contents[name], every)
            notes[name] = f"one row in {every}"
    about = read_metadata(path)
    shorter = _without_machine_paths(about, target) | ({"collected": notes} if notes else {})
    if shorter != about:
        contents["metadata.json"] = (json.dumps(shorter, indent=2) + "\n").encode()
    return contents, [f"{name}: {note}" for name, note in notes.items()]


def _rows(table: bytes, every: int) -> bytes:
    """Return the header of a csv file and one row in `every`, counted back from the last."""
    head, *rows = table.splitlines(keepends=True)
    return b"".join([head, *rows[::-1][::every][::-1]])


def _without_machine_paths(about: dict[str, Any], target: Path) -> dict[str, Any]:
    """Shorten the absolute paths in a record of a start, and in those of the resumes that it lists."""
    result = dict(about)
    if isinstance(about.get("command"), str):
        result["command"] = _shorter(about["command"], target)
    start = about.get("start_from")
    if isinstance(start, dict) and isinstance(start.get("path"), str):
        result["start_from"] = start | {"path": _shorter_word(start["path"], target)}
    machine = about.get("machine")
    if isinstance(machine, dict) and isinstance(machine.get("xla_flags"), str):
        result["machine"] = machine | {"xla_flags": _shorter(machine["xla_flags"], target)}
    if isinstance(about.get("resumed"), list):
        result["resumed"] = [
            _without_machine_paths(one, target) if isinstance(one, dict) else one for one in about["resumed"]
        ]
    return result


def _shorter(command: str, target: Path) -> str:
    """Shorten the absolute paths among the words of a command."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    if not any(word.startswith("/") or "=/" in word for word in words):
        return command
    return shlex.join(_shorter_word(word, target) for word in words)


def _shorter_word(word: str, target: Path) -> str:
    """Shorten an absolute path to the last parts that it has in common with the target, else to its last part."""
    start = 0 if word.startswith("/") else word.find("=/") + 1
    if not word[start:].startswith("/"):
        return word
    parts = PurePosixPath(word[start:]).parts[1:]
    pairs = zip(reversed(parts), reversed(target.parts[1:]), strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return word[:start] + "/".join(parts[-max(same, 1) :])


def _write(contents: dict[str, bytes], thinned: list[str], target: Path, replace: bool) -> tuple[str, str]:
    """Write the files of a run, unless others are there; return the outcome and what to say about it.

    config.json comes last: where it is found, the run is whole.
    """
    there = {name for name in {*KEPT, *contents} if (target / name).exists()}
    changed = [name for name in contents if name in there and (target / name).read_bytes() != contents[name]]
    grown = [name for name in changed if name not in KEPT and _only_grew((target / name).read_bytes(), contents[name])]
    new = [name for name in contents if name not in there] + grown
    other = [name for name in changed if name not in grown]
    gone = sorted(there - set(contents))
    if (other or gone) and not replace:
        return "refused", f"other content is there ({', '.join([*other, *gone])}); --replace overwrites it"
    if not new and not other and not gone:
        return "unchanged", ""
    if other or gone:  # analyses of what was there go with it
        gone += sorted({file.relative_to(target).as_posix() for file in target.glob("analysis/*.csv")} - set(contents))
    for name in gone:
        (target / name).unlink()
    for name in sorted([*new, *other], key=lambda name: name == "config.json"):
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced(file) as partial:
            partial.write_bytes(contents[name])
    if not there:
        return "collected", ", ".join(thinned)
    if other or gone:
        return "replaced", ", ".join([*other, *gone, *new])
    return "extended", ", ".join(new)


def _only_grew(kept: bytes, now: bytes) -> bool:
    """Whether an analysis still has its header and every row that was kept: `--at` adds rows for other steps."""
    (head, *rows), (head_now, *rows_now) = kept.splitlines() or [b""], now.splitlines() or [b""]
    return head == head_now and set(rows) < set(rows_now)
