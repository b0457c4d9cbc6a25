"""PDML: learn control policies from few real steps with a learned model that follows the policy."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pdml.core.errors import RunError, UserError

if TYPE_CHECKING:
    from pdml.api import Agent, Callback, Evaluation, Model, Prediction
    from pdml.runs.policy import Policy

try:
    __version__ = version("pdml")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = ["Agent", "Callback", "Evaluation", "Model", "Policy", "Prediction", "RunError", "UserError"]

_LATER = {"Policy": "runs.policy"} | dict.fromkeys(("Agent", "Callback", "Evaluation", "Model", "Prediction"), "api")
"""Names and their modules, imported when they are asked for: JAX takes a while, and a policy does not need it."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'pdml' has no attribute '{name}'")
    if _LATER[name] == "api":
        import_module("pdml.runs.device").prepare()
    return getattr(import_module(f"pdml.{_LATER[name]}"), name)
