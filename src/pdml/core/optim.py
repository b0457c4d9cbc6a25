"""One step of gradient descent, typed for any tree of parameters."""

from typing import Any, TypeVar, cast

import jax
import optax

T = TypeVar("T")


def descend(optimiser: optax.GradientTransformation, grads: Any, opt: optax.OptState, params: T) -> tuple[T, Any]:
    """Return the parameters after one step, and the optimiser's state."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
        steps, opt = optimiser.update(grads, opt)
    return cast(T, optax.apply_updates(cast(Any, params), steps)), opt
