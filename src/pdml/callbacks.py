"""Callbacks that are named on the command line, as `module:Class` or `module:Class(name=value, ...)`."""

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pdml.api import Agent
from pdml.core import signals
from pdml.core.errors import LostRunError, RunError, UserError, nearest
from pdml.runs.recorder import StepRecord
from pdml.runs.session import Session
from pdml.views import Callback, call_back

FORM = "must be module:Class or module:Class(name=value, ...)"


class CallbackFault(RunError):  # noqa: N818 (it is a RunError)
    """A callback raised an error."""


def read_callback(text: str) -> Callback:
    """Make the callback that a text names; its arguments are literals, and nothing is evaluated."""
    module, colon, call = text.partition(":")
    name, args, kwargs = _read_call(text, call)
    if not colon or not module or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"callback = '{text}': {FORM}")
    kind = _find_class(text, module, name)
    try:
        inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        unknown = [name for name in kwargs if name not in inspect.signature(kind).parameters]
        near = nearest(unknown[0], inspect.signature(kind).parameters) if unknown else ""
        raise UserError(f"callback = '{text}': {error}{near}") from None
    try:
        return kind(*args, **kwargs)
    except Exception as error:
        raise UserError(f"callback = '{text}': cannot be made ({_said(error)})") from error


def heard_by(callbacks: Sequence[Callback]) -> Callable[[Session], Callable[[StepRecord], bool]]:
    """Return what calls callbacks after every step of a session, and says whether to continue."""

    def heard(session: Session) -> Callable[[StepRecord], bool]:
        agent = Agent.attached(session)

        def after(record: StepRecord) -> bool:
            return all([_called(callback, agent, record) for callback in callbacks])

        return after

    return heard


def _called(callback: Callback, agent: Agent, record: StepRecord) -> bool:
    """Call a callback; name it if it fails."""
    try:
        return call_back(callback, agent, record)
    except (signals.Stopped, LostRunError):
        raise
    except Exception as error:
        name = type(callback).__name__
        raise CallbackFault(f"the callback {name}, at step {agent.steps}, raised {_said(error)}") from error


def _read_call(text: str, call: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name and the arguments of a call that is written as in Python."""
    try:
        tree = ast.parse(call, mode="eval").body
    except (SyntaxError, ValueError):
        raise UserError(f"callback = '{text}': {FORM}") from None
    if isinstance(tree, ast.Name):
        return tree.id, [], {}
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise UserError(f"callback = '{text}': {FORM}")
    named = {keyword.arg: keyword.value for keyword in tree.keywords if keyword.arg is not None}
    if len(named) != len(tree.keywords):
        raise UserError(f"callback = '{text}': {FORM}")
    args = [_literal(text, f"argument {i}", node) for i, node in enumerate(tree.args, start=1)]
    return tree.func.id, args, {name: _literal(text, name, node) for name, node in named.items()}


def _literal(text: str, name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        allowed = "a number, a text in quotes, True, False, None, or a list or dict of these"
        raise UserError(f"callback = '{text}': {name} = {ast.unparse(node)} must be {allowed}") from None


def _find_class(text: str, module: str, name: str) -> type[Callback]:
    """Import the class of a callback."""
    try:
        if module not in sys.modules and find_spec(module) is None:
            raise UserError(f"callback = '{text}': there is no module '{module}' to import")
        home = import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"callback = '{text}': cannot import '{module}' ({error})") from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"callback = '{text}': cannot import '{module}' ({_said(error)})") from error
    if not hasattr(home, name):
        known = [key for key, value in vars(home).items() if isinstance(value, type) and issubclass(value, Callback)]
        raise UserError(f"callback = '{text}': module '{module}' has no '{name}'{nearest(name, known)}")
    found = getattr(home, name)
    if not isinstance(found, type) or not issubclass(found, Callback):
        raise UserError(f"callback = '{text}': '{name}' is not a class that is derived from pdml.Callback")
    return found


def _said(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
