"""Files that are complete or not there at all."""

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

Replacing = Callable[[Path], AbstractContextManager[Path]]
"""Where to write a file that gets its name when it is complete: `replaced`, or that of a `pdml.runs.lease.Lease`."""


@contextmanager
def replaced(path: Path, partial: Path | None = None) -> Generator[Path, None, None]:
    """Yield where to write a file.

    It is complete on disk before it gets its name, so nobody ever reads half of it, not even after a power cut.

    Args:
        partial: Where; by default beside the file.
    """
    partial = partial or path.with_name(path.name + ".partial")
    try:
        yield partial
        to_disk(partial)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()  # on a full disk it would block other writes
        raise
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Wait until a file, or the entries of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
