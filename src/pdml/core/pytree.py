"""Records that are JAX pytrees, and their flat form for files."""

from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that is also a JAX pytree."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


def flatten(tree: Any, prefix: str) -> dict[str, np.ndarray]:
    """Copy every leaf to the host, named by its path in the tree."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): np.array(leaf) for path, leaf in found}


def unflatten(template: Any, arrays: dict[str, np.ndarray], prefix: str) -> Any:
    """Rebuild a tree of the template's structure, shapes and types from what `flatten` returned."""
    found, structure = jax.tree_util.tree_flatten_with_path(template)
    leaves = []
    for path, leaf in found:
        name = prefix + jax.tree_util.keystr(path)
        if name not in arrays:
            raise ValueError(f"the saved state has no entry {name}")
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(f"{name} is {array.dtype}{array.shape}, expected {leaf.dtype}{leaf.shape}")
        leaves.append(jax.numpy.array(array, copy=True))
    return jax.tree_util.tree_unflatten(structure, leaves)


def copy(tree: T) -> T:
    """Copy every leaf, so that the original may be donated."""
    return jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), tree)
