import pytest


def pytest_collection_modifyitems(config, items):
    """Leave out what needs a cluster unless it is asked for: pytest -m ray."""
    if config.option.markexpr.strip() != "ray":
        left_out = [item for item in items if item.get_closest_marker("ray")]
        items[:] = [item for item in items if not item.get_closest_marker("ray")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def cluster():
    """Two nodes with one CPU slot each."""
    from two_nodes import TwoNodes

    with TwoNodes() as nodes:
        yield nodes
