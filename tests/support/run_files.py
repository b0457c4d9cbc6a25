"""The files of a run, to compare."""

from pathlib import Path

from pdml.runs.tensor_file import read_arrays


def contents(path: Path, stopped: bool = False) -> dict:
    """Return all of a run that must not depend on how often it was interrupted.

    Args:
        stopped: It was asked to stop, which saves a checkpoint at any step: only the last one counts.
    """
    found = {}
    earlier = sorted((path / "checkpoints").glob("*.safetensors"))[:-1] if stopped else []
    for file in sorted(p for p in path.rglob("*") if p.is_file() and p not in earlier):
        name = str(file.relative_to(path))
        if name.startswith(("events.", "lease/")) or name in ("metadata.json", "output.txt", "sweep_note.txt"):
            continue
        if name == "timing.csv":
            found[name] = [line.split(",")[0] for line in file.read_text().splitlines()]
        elif name.startswith("checkpoints"):
            arrays, note = read_arrays(file)
            lengths = {k: v for k, v in note.pop("files")["lengths"].items() if k != "timing.csv"}
            found |= {f"{name}:{key}": (a.dtype, a.shape, a.tobytes()) for key, a in arrays.items()}
            found[name] = repr((note, lengths))
        else:
            found[name] = file.read_bytes()
    return found


def assert_same_files(one: Path, other: Path, stopped: bool = False) -> None:
    """Two runs are the same, bit for bit."""
    ours, theirs = contents(one, stopped), contents(other, stopped)
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []
