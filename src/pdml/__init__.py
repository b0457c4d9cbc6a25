"""PDML: learn control policies from few real steps with a learned model that follows the policy."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pdml")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"
