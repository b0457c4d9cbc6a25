"""Files of arrays: safetensors with a note and a checksum, written so that a reader never meets half a file."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pdml.errors import UserError

FORMAT = 3
"""Version of files of arrays; 3 has a checksum."""


def write_arrays(path: Path, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> None:
    """Write arrays and a JSON note to one file, with a checksum of both.

    A reader never sees half of it, and neither does who comes back after a power cut: the file is whole on the disk
    before it takes its name.
    """
    partial = path.with_name(path.name + ".partial")
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    note = {"format": FORMAT, **note}
    text = json.dumps({"checksum": _checksum(contiguous, note), **note})
    save_file(contiguous, partial, {"json": text})  # one entry: safetensors writes several in any order
    _to_disk(partial)
    partial.replace(path)
    _to_disk(path.parent)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_arrays` wrote."""
    try:
        with safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {})["json"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError, KeyError, ValueError):
        raise UserError(f"'{path}' cannot be read as a file of this package") from None
    if not isinstance(note, dict) or note.get("format") != FORMAT:
        found = note.get("format") if isinstance(note, dict) else None
        raise UserError(f"'{path}': format {found}, this version reads format {FORMAT}")
    if note.pop("checksum", None) != _checksum(arrays, note):
        raise UserError(f"'{path}' is damaged: its checksum does not fit")
    return arrays, note


def _checksum(arrays: dict[str, np.ndarray], note: dict[str, Any]) -> str:
    """Return a digest of names, types, shapes, numbers and the note."""
    digest = hashlib.sha256(json.dumps(note).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
