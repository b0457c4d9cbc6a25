"""Networks: densities, initial weights and products by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from pdml.core.nets import gaussian, init_truncated, init_xavier, mlp, silu, squash


def test_silu_and_its_derivative_are_those_of_jax():
    x = jnp.linspace(-30.0, 30.0, 301)
    np.testing.assert_allclose(np.asarray(silu(x)), np.asarray(jax.nn.silu(x)), atol=1e-5)
    slope, expected = jax.vmap(jax.grad(silu))(x), jax.vmap(jax.grad(jax.nn.silu))(x)
    np.testing.assert_allclose(np.asarray(slope), np.asarray(expected), atol=1e-5)


def test_density_of_the_squashed_gaussian_integrates_to_one():
    u = np.linspace(-12.0, 12.0, 200_001)
    mean, log_std = 0.3, -0.4
    noise = jnp.asarray((u - mean) / np.exp(log_std), jnp.float32)[:, None]
    action, log_prob = squash(jnp.full_like(noise, mean), jnp.full_like(noise, log_std), noise)
    # Integrate over the action: da = (1 - tanh(u)^2) du, written so that it stays exact where tanh saturates.
    slope = 1.0 / np.cosh(u) ** 2
    total = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)) * slope, u)
    assert abs(total - 1.0) < 1e-3
    assert np.all(np.abs(np.asarray(action)) <= 1.0)


def test_log_prob_stays_finite_where_the_tanh_saturates():
    wide = jnp.full((1, 1), 40.0)
    _, log_prob = squash(wide, jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    assert np.isfinite(np.asarray(log_prob)).all()


def test_log_std_is_clipped_to_its_range():
    params = init_xavier(jax.random.key(0), (2, 4, 2))
    large = jax.tree.map(lambda leaf: leaf + 100.0, params)
    _, log_std = gaussian(large, jnp.ones((3, 2)))
    assert float(log_std.max()) == 2.0


def test_initial_weights_have_the_stated_distributions():
    layer = init_truncated(jax.random.key(1), (400, 300))[0]
    sigma = 1.0 / (2.0 * 400**0.5)
    assert float(jnp.abs(layer.w).max()) <= 2.0 * sigma
    assert abs(float(layer.w.std()) / (0.8796 * sigma) - 1.0) < 0.02  # std of a normal cut at two sigma
    limit = (6.0 / 700.0) ** 0.5
    xavier = init_xavier(jax.random.key(1), (400, 300))[0]
    assert float(jnp.abs(xavier.w).max()) <= limit
    assert abs(float(xavier.w.std()) / (limit / 3**0.5) - 1.0) < 0.02
    assert not np.asarray(xavier.b).any()


def test_mlp_is_the_product_of_its_layers():
    params = init_xavier(jax.random.key(2), (3, 5, 2))
    x = np.ones((4, 3), np.float32)
    hidden = np.maximum(x @ np.asarray(params[0].w), 0.0)
    np.testing.assert_allclose(np.asarray(mlp(params, jnp.asarray(x))), hidden @ np.asarray(params[1].w), atol=1e-6)
