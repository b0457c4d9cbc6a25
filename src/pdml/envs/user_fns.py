"""Termination and reward functions: the user's, imported and checked, or the environment's own rule."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from pdml.config.schema import Config
from pdml.config.validate import OBJECT
from pdml.core.errors import UserError
from pdml.core.types import KnownParts, StepFunction
from pdml.envs.spaces import Spaces
from pdml.envs.termination_fns import RULES, by_rule, never


def known_parts(config: Config, spaces: Spaces, functions: dict[str, Any]) -> KnownParts:
    """Return the parts of an environment that are known according to its settings.

    Args:
        functions: Python functions for `termination` and `reward`, by name, where these were passed as objects.
    """
    for name in ("termination", "reward"):
        word = getattr(config, name)
        if word == OBJECT and name not in functions:
            raise UserError(f"{name}: it was a Python function; resume with pdml.Agent.load(path, {name}=...)")
        if word != OBJECT and name in functions:
            raise UserError(f"{name}: the run has '{word}', not a function; leave it out")
    kind = config.termination
    if "termination" not in functions and kind in ("rule", "never", "learned"):
        rule = RULES[config.env.rpartition("-")[0]] if kind == "rule" else never
        terminated = None if kind == "learned" else by_rule(rule).terminated
    else:
        terminated = _user_fn("termination", functions.get("termination") or kind, spaces)
    given = functions.get("reward") or (None if config.reward == "learned" else config.reward)
    return KnownParts(terminated, None if given is None else _user_fn("reward", given, spaces))


def _user_fn(name: str, given: Any, spaces: Spaces) -> StepFunction:
    """Return a user's function as one of actions in [-1, 1], traced once; theirs takes the environment's own range."""
    call = _imported(name, given) if isinstance(given, str) else given

    def function(obs: Array, action: Array, next_obs: Array) -> Array:
        result = jnp.asarray(call(obs, spaces.to_env(action), next_obs))
        return result.astype(bool) if name == "termination" else result.astype(jnp.float32)

    obs, action = (jax.ShapeDtypeStruct((5, size), jnp.float32) for size in spaces.layout)
    try:
        found = jax.eval_shape(function, obs, action, obs)
    except jax.errors.TracerArrayConversionError:
        raise UserError(f"{name}: it runs compiled, on JAX arrays; write it with jax.numpy instead of numpy") from None
    except jax.errors.ConcretizationTypeError:
        raise UserError(
            f"{name}: it runs compiled, on whole batches; write conditions with & | ~ and jax.numpy.where, not if"
        ) from None
    except Exception as error:
        said = " ".join(str(error).split())
        raise UserError(f"{name}: fails on batches of observations ({type(error).__name__}: {said})") from error
    if found.shape != (5,):
        raise UserError(f"{name}: returns shape {found.shape} for 5 steps; one number per step, (5,), is needed")
    _check_indices(name, call, spaces)
    return function


def _check_indices(name: str, call: Callable[..., Any], spaces: Spaces) -> None:
    """Raise if a function reads an entry that does not exist: JAX would clamp the index, numpy raises an error."""
    obs, action = (np.zeros((5, size), np.float32) for size in spaces.layout)
    try:
        with np.errstate(all="ignore"):
            call(obs, action, obs)
    except IndexError as error:
        sizes = f"observations have {spaces.layout.obs_size} entries, actions {spaces.layout.action_size}"
        raise UserError(f"{name}: {error}; {sizes}") from None
    except Exception:
        return  # it needs JAX arrays, so numpy cannot check it


def _imported(name: str, text: str) -> Callable[..., Any]:
    """Import `module:function`."""
    module, _, function = text.partition(":")
    try:
        home = import_module(module)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name} = '{text}': cannot import '{module}' ({said})") from error
    if not hasattr(home, function):
        raise UserError(f"{name} = '{text}': module '{module}' has no '{function}'")
    found = getattr(home, function)
    if not callable(found):
        raise UserError(f"{name} = '{text}': is not a function")
    return found
