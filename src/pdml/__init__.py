"""PDML: learn continuous-control policies from few real steps, with a learned model that follows the policy."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pdml.core.errors import RunError, UserError

if TYPE_CHECKING:
    from pdml.api import Agent
    from pdml.envs.env_check import Finding, check_env
    from pdml.runs.policy import Policy
    from pdml.sweeps.sweep import Sweep, sweep
    from pdml.views import Callback, Evaluation, Model, Prediction

try:
    __version__ = version("pdml")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "Agent",
    "Callback",
    "Evaluation",
    "Finding",
    "Model",
    "Policy",
    "Prediction",
    "RunError",
    "Sweep",
    "UserError",
    "check_env",
    "sweep",
]

_MODULES = {
    "Agent": "api",
    "Callback": "views",
    "Evaluation": "views",
    "Finding": "envs.env_check",
    "Model": "views",
    "Policy": "runs.policy",
    "Prediction": "views",
    "Sweep": "sweeps.sweep",
    "check_env": "envs.env_check",
    "sweep": "sweeps.sweep",
}
"""Where public names live. They are imported when asked for: JAX takes a while, and a policy does not need it."""


def __dir__() -> list[str]:
    return [*__all__, "__version__", "data"]


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("pdml.data")
    if name not in _MODULES:
        raise AttributeError(f"module 'pdml' has no attribute '{name}'")
    if name != "Policy":
        import_module("pdml.runs.device").prepare()
    return getattr(import_module(f"pdml.{_MODULES[name]}"), name)
