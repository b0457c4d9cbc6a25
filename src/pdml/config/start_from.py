"""Another run that a new run starts from: which run it is, and which parts of it are taken over."""

from pathlib import Path
from typing import Any, NamedTuple

from pdml.config.files import read_metadata
from pdml.config.methods import METHODS
from pdml.config.parse import path_of
from pdml.core.errors import UserError, nearest

START_PARTS = ("agent", "model", "rows")
"""What can be taken over: the agent with its optimisers, the model, and the real transitions as prior block."""


class StartFrom(NamedTuple):
    """What a new run is to start from."""

    path: Path
    parts: tuple[str, ...]
    """Of `START_PARTS`."""


class StartRecord(NamedTuple):
    """What metadata.json records, under `start_from`, of the run that a run started from."""

    path: str
    """Absolute, once it is recorded."""
    step: int
    """Real steps that it had taken."""
    env: str
    method: str
    seed: int
    config: str
    """First digits of the SHA-256 of its settings."""
    parts: tuple[str, ...]
    rows: int
    """Real transitions taken over; those that were prior to that run are among them."""

    def absolute(self) -> "StartRecord":
        """Return it with the absolute path, which names the same run from every directory."""
        return self._replace(path=str(Path(self.path).resolve()))


def chosen_start(path: Any, parts: Any, method: str) -> StartFrom | None:
    """Read what a new run of a method is to start from, as a person gives it; None: from nothing.

    Args:
        parts: Words of `START_PARTS`, as a list or separated by commas; None: all that the method has.
    """
    if path is None:
        if parts is not None:
            raise UserError("start-with: needs start-from, the run to start from")
        return None
    has_model = METHODS[method].has_model
    if parts is None:
        return StartFrom(path_of("start-from", path), START_PARTS if has_model else ("agent", "rows"))
    words = [word.strip() for word in parts.split(",")] if isinstance(parts, str) else parts
    if not isinstance(words, list | tuple | set | frozenset):
        raise UserError(f"start-with = {parts!r}: must be a list of words; allowed: {', '.join(START_PARTS)}")
    found = [word for word in words if word != ""]
    for word in found:
        if word not in START_PARTS:
            raise UserError(
                f"start-with = '{word}': unknown{nearest(word, START_PARTS)}; allowed: {', '.join(START_PARTS)}"
            )
    if not found:
        raise UserError(f"start-with = '': at least one of {', '.join(START_PARTS)} is needed")
    if "model" in found and not has_model:
        raise UserError(f"start-with = 'model': method '{method}' has no model; allowed: agent, rows")
    return StartFrom(path_of("start-from", path), tuple(part for part in START_PARTS if part in found))


def recorded_start(path: Path) -> StartRecord | None:
    """Return what a run started from, as its metadata records it; None: from nothing."""
    found = read_metadata(path).get("start_from")
    if not isinstance(found, dict):
        return None
    kinds = {
        "path": str,
        "step": int,
        "env": str,
        "method": str,
        "seed": int,
        "config": str,
        "parts": list,
        "rows": int,
    }
    if found.keys() != kinds.keys() or not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        return None
    parts = tuple(part for part in START_PARTS if part in found["parts"])
    return StartRecord(**found)._replace(parts=parts)


def require_same_start(start: StartFrom | None, path: Path) -> None:
    """Raise unless a directory's run started from the same run with the same parts."""
    kept = recorded_start(path)
    if kept is None or start is None:
        if kept is not start:
            was, now = "none" if kept is None else f"'{kept.path}'", "none" if start is None else f"'{start.path}'"
            raise UserError(f"run-dir = '{path}': its run has start-from = {was}, not {now}")
        return
    if Path(kept.path) != start.path.resolve():
        raise UserError(f"run-dir = '{path}': its run has start-from = '{kept.path}', not '{start.path}'")
    if kept.parts != start.parts:
        was, now = ",".join(kept.parts), ",".join(start.parts)
        raise UserError(f"run-dir = '{path}': its run has start-with = {was}, not {now}")
