"""A fixture for tests that start many runs."""

from functools import cache

import pytest

from pdml.runs import resources


@pytest.fixture(autouse=True, scope="session")
def speed_measured_once():
    """Measure the machine's speed once: before every run it would take as long as the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "matmul_peak", cache(resources.matmul_peak))
        yield
