"""The two programs on which some CPU builds of JAX go wrong: run as a script, it fails where a row is wrong."""

import sys

import jax
import jax.numpy as jnp
import numpy as np


def wrong_rows():
    """Return how many rows of each program are wrong."""
    return vmapped_product_and_sum(), small_chained_products()


def vmapped_product_and_sum():
    rows = np.random.default_rng(0).standard_normal((32_769, 3)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda row: ((jnp.eye(3) @ row) ** 2).sum()))(rows)
    return int((~np.isclose(np.asarray(found), (rows**2).sum(axis=1), rtol=1e-5, atol=0.0)).sum())


def small_chained_products():
    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4, 7), (7, 2)))
    found = jax.jit(lambda x, a, b: jnp.tanh(x @ a) @ b)(x, a, b)
    return int((~np.isclose(np.asarray(found), np.tanh(x @ a) @ b, rtol=1e-4, atol=1e-5)).any(axis=1).sum())


if __name__ == "__main__":
    found = wrong_rows()
    sys.exit(f"wrong rows: {found}" if any(found) else 0)
