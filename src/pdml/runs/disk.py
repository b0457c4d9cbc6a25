"""Files that are whole or not there, whatever happens meanwhile."""

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file; a reader sees the old or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    to_disk(partial)
    partial.replace(path)
    to_disk(path.parent)
