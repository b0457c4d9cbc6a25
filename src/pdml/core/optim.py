"""Small steps on trees of parameters: gradient descent and Polyak averaging."""

from typing import Any, TypeVar, cast

import jax
import optax

T = TypeVar("T")


def descend(optimiser: optax.GradientTransformation, grads: Any, opt: optax.OptState, params: T) -> tuple[T, Any]:
    """Return the parameters after one step of the optimiser, and the optimiser's state."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
        steps, opt = optimiser.update(grads, opt)
    return cast(T, optax.apply_updates(cast(Any, params), steps)), opt


def polyak(targets: T, params: T, rate: float) -> T:
    """Move target parameters towards the parameters by a rate."""
    return jax.tree.map(lambda target, param: target + rate * (param - target), targets, params)
