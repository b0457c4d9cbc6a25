"""Files of arrays: safetensors with a JSON note and a checksum."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pdml.core.errors import UserError
from pdml.core.files import Replacing, replaced

FORMAT = 3
"""Version of these files; 3 has a checksum."""


def write_arrays(
    path: Path, arrays: dict[str, np.ndarray], note: dict[str, Any], replacing: Replacing = replaced
) -> None:
    """Write arrays and a JSON note to one file, with a checksum of both."""
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    note = {"format": FORMAT, **note}
    text = json.dumps({"checksum": _checksum(contiguous, note), **note})
    with replacing(path) as partial:
        save_file(contiguous, partial, {"json": text})


def save_file(arrays: dict[str, np.ndarray], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file.

    The library's own writer uses a temporary file with a random name, which a killed process leaves behind.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that all are aligned
    head: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        dtype, start, end = arrays[name].dtype, end, end + arrays[name].nbytes
        kind = "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
        head[name] = {"dtype": kind, "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            if arrays[name].size:
                file.write(arrays[name].reshape(-1).view(np.uint8).data)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_arrays` wrote."""
    if not path.exists():
        raise UserError(f"'{path}' cannot be read: there is no such file")
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
