"""Versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version


def package_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
