"""A fixture for tests that start many runs."""

import pytest

from pdml.runs import resources


@pytest.fixture(autouse=True, scope="session")
def speed_measured_once():
    """Measure the machine's speed once, before any test: before every run it would take as long as the run."""
    speed = resources.matmul_peak(size=512, repeats=4, of_cpu=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "matmul_peak", lambda **_: speed)
        yield
