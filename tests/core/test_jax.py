"""The two programs on which later CPU builds of JAX go wrong; the version range is not widened before they pass."""

import jax
import jax.numpy as jnp
import numpy as np


def test_vmapped_product_followed_by_a_sum_gets_every_row_right():
    rows = np.random.default_rng(0).standard_normal((32_769, 3)).astype(np.float32)
    found = jax.jit(jax.vmap(lambda row: ((jnp.eye(3) @ row) ** 2).sum()))(rows)
    np.testing.assert_allclose(np.asarray(found), (rows**2).sum(axis=1), rtol=1e-5)


def test_small_chained_products_are_right():
    drawn = np.random.default_rng(0)
    x, a, b = (drawn.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4, 7), (7, 2)))
    found = jax.jit(lambda x, a, b: jnp.tanh(x @ a) @ b)(x, a, b)
    np.testing.assert_allclose(np.asarray(found), np.tanh(x @ a) @ b, rtol=1e-4, atol=1e-5)
