"""Files that are complete or not there at all."""

import os
from pathlib import Path

import pytest

from pdml.core.files import replaced
from pdml.reporting.rows import write_rows


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    with replaced(path) as partial:
        partial.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_disk_before_it_gets_its_name_and_its_name_after(tmp_path, monkeypatch):
    """Else a power cut could leave a name without content."""
    events, path, (sync, rename) = [], tmp_path / "a.txt", (os.fsync, Path.replace)

    def synced(handle):
        events.append(("sync", Path(f"/proc/self/fd/{handle}").resolve().name))
        sync(handle)

    def renamed(file, target):
        events.append(("rename", target.name))
        return rename(file, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    with replaced(path) as partial:
        partial.write_text("one")
    assert events == [("sync", partial.name), ("rename", "a.txt"), ("sync", tmp_path.name)]


class Unwritable:
    def __str__(self):
        raise OSError("the disk is full")

    __repr__ = __format__ = __str__


def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(tmp_path):
    path = tmp_path / "rows.csv"
    write_rows(path, [{"a": 1.0}])
    before = path.read_text()
    with pytest.raises(OSError, match="the disk is full"):
        write_rows(path, [{"a": 2.0}, {"a": Unwritable()}])
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
