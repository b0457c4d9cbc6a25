"""Times in words."""

import pytest

from pdml.core.stopwatch import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (99.4, "99 s"),
        (100.0, "2 min"),
        (5960.0, "99 min"),
        (5970.0, "1 h 40 min"),
        (7200.0, "2 h 00 min"),
        (86_400 * 3.25, "3.2 days"),
    ],
)
def test_times_are_written_in_the_units_that_matter(seconds, text):
    assert duration(seconds) == text
