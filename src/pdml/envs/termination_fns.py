"""What is known of an environment beforehand, for imagined steps: when an episode ends by itself, and its reward.

Time limits are not here: they end an episode in the real environment only, and are never stored as terminal.
"""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pdml.config.schema import Config
from pdml.config.validate import OBJECT
from pdml.core.errors import UserError
from pdml.envs.spaces import Spaces

Obs = Float[Array, "b obs"]
Ended = Bool[Array, " b"]


def _between(x: Array, low: float, high: float) -> Array:
    return (x > low) & (x < high)


def hopper(next_obs: Obs) -> Ended:
    """Fallen, tilted, or any coordinate beyond 100 on either side (reference codes check one side only)."""
    healthy = jnp.isfinite(next_obs).all(axis=-1) & (jnp.abs(next_obs[:, 1:]) < 100.0).all(axis=-1)
    return ~(healthy & (next_obs[:, 0] > 0.7) & (jnp.abs(next_obs[:, 1]) < 0.2))


def walker2d(next_obs: Obs) -> Ended:
    """Fallen or tilted."""
    return ~(_between(next_obs[:, 0], 0.8, 2.0) & _between(next_obs[:, 1], -1.0, 1.0))


def ant(next_obs: Obs) -> Ended:
    """Too low, too high or not finite; the limits themselves are healthy."""
    height = next_obs[:, 0]
    return ~(jnp.isfinite(next_obs).all(axis=-1) & (height >= 0.2) & (height <= 1.0))


def humanoid(next_obs: Obs) -> Ended:
    """Too low or too high."""
    return ~_between(next_obs[:, 0], 1.0, 2.0)


def inverted_pendulum(next_obs: Obs) -> Ended:
    """Pole beyond 0.2 rad, or not finite."""
    return ~(jnp.isfinite(next_obs).all(axis=-1) & (jnp.abs(next_obs[:, 1]) <= 0.2))


def never(next_obs: Obs) -> Ended:
    """No state ends the episode."""
    return jnp.zeros(next_obs.shape[0], bool)


RULES: dict[str, Callable[[Obs], Ended]] = {
    "Hopper": hopper,
    "Walker2d": walker2d,
    "HalfCheetah": never,
    "Ant": ant,
    "Humanoid": humanoid,
    "Pusher": never,
    "InvertedPendulum": inverted_pendulum,
}
"""The rule of each family in `pdml.config.tasks.TASKS`."""


StepFunction = Callable[[Obs, Float[Array, "b action"], Obs], Any]
"""From observations, actions and next observations, vectorised."""


class Known(NamedTuple):
    """What need not be learned; None: the model learns it."""

    terminated: StepFunction | None
    reward: StepFunction | None = None


@lru_cache
def by_rule(rule: Callable[[Obs], Ended]) -> Known:
    """Know when episodes end, from the next observation."""
    return Known(lambda obs, action, next_obs: rule(next_obs))


def known(config: Config, spaces: Spaces, functions: dict[str, Any]) -> Known:
    """Return what a configuration says is known.

    Args:
        functions: Python functions for `termination` and `reward`, by name, where these were handed over.
    """
    for name in ("termination", "reward"):
        word = getattr(config, name)
        if word == OBJECT and name not in functions:
            raise UserError(f"{name}: it was a Python function; go on with pdml.Agent.load(path, {name}=...)")
        if word != OBJECT and name in functions:
            raise UserError(f"{name}: the run has '{word}', not a function; leave it out")
    kind = config.termination
    if "termination" not in functions and kind in ("rule", "never", "learned"):
        rule = RULES[config.env.rpartition("-")[0]] if kind == "rule" else never
        ended = None if kind == "learned" else by_rule(rule).terminated
    else:
        ended = _of_user("termination", functions.get("termination") or kind, spaces)
    given = functions.get("reward") or (None if config.reward == "learned" else config.reward)
    return Known(ended, None if given is None else _of_user("reward", given, spaces))


def _of_user(name: str, given: Any, spaces: Spaces) -> StepFunction:
    """Take a function of the user, who counts actions as the environment does, and try it once."""
    call = _imported(name, given) if isinstance(given, str) else given

    def function(obs: Array, action: Array, next_obs: Array) -> Array:
        result = jnp.asarray(call(obs, spaces.outward(action), next_obs))
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
        raise UserError(f"{name}: returns shape {found.shape} for 5 steps; one number a step, (5,), is needed")
    _try_indices(name, call, spaces)
    return function


def _try_indices(name: str, call: Callable, spaces: Spaces) -> None:
    """Raise if a function reads an entry that there is not: JAX would take the last one, numpy finds it out."""
    obs, action = (np.zeros((5, size), np.float32) for size in spaces.layout)
    try:
        with np.errstate(all="ignore"):
            call(obs, action, obs)
    except IndexError as error:
        sizes = f"observations have {spaces.layout.obs_size} entries, actions {spaces.layout.action_size}"
        raise UserError(f"{name}: {error}; {sizes}") from None
    except Exception:
        return  # something that only arrays of JAX can do


def _imported(name: str, text: str) -> Callable:
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
