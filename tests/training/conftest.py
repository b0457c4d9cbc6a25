"""One run per method, shared by all tests of the loop that only read it."""

import functools

import pytest
from quick_start import speed_measured_once  # noqa: F401
from tiny import record_run, tiny_of

from pdml.config.fields import change


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """Return a tiny run of a method; the first call trains it."""

    @functools.cache
    def recorded(method, target_norm="none"):
        settings = change(tiny_of(method), {"dynamics.target_norm": target_norm})
        return record_run(settings, tmp_path_factory.mktemp(method))

    return recorded
