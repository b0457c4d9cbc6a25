"""Files that are complete or not there at all."""

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
