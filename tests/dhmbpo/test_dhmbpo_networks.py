"""The networks of DHMBPO are those published: layer norm, dropout, frozen layers, initial weights."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import member_of, small_config, stack

from pdml.core.nets import silu
from pdml.core.transition import Layout
from pdml.dhmbpo.fit import standardised_model
from pdml.dhmbpo.learner import double_horizon_agent
from pdml.dhmbpo.model import member_means
from pdml.dhmbpo.networks import (
    Dropout,
    dropout_silu,
    freeze,
    init_he,
    init_orthogonal,
    kept_units,
    layer_norm,
    norm_mlp,
)
from pdml.dhmbpo.rollouts import actor_head
from pdml.dhmbpo.updates import scaled_values


def test_layer_norm_and_its_gradient_are_those_of_the_formula():
    def plain(x, eps):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + eps)

    x, g = (jax.random.normal(jax.random.key(k), (2, 5, 16)) for k in (0, 1))
    for eps in (1.0, 0.01):
        (y, pull), (expected, pull_plain) = (jax.vjp(lambda x, f=f, eps=eps: f(x, eps), x) for f in (layer_norm, plain))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(pull(g)[0], pull_plain(g)[0], rtol=1e-4, atol=1e-5)
    same = layer_norm(jnp.full((1, 16), 300.0), 1e-5)  # rounding must not make a negative variance
    assert np.isfinite(same).all()


def test_dropout_leaves_its_share_out_and_passes_gradients_where_it_does_not():
    shape, rate, seed = (3, 200, 256), 0.05, jnp.uint32(7)
    kept = np.asarray(kept_units(shape, rate, seed))
    assert kept.mean() == pytest.approx(0.95, abs=0.003)
    assert abs(kept.mean(axis=(0, 1)) - 0.95).max() < 0.05  # no unit and no row is preferred
    assert abs(kept.mean(axis=2) - 0.95).max() < 0.09
    assert not np.array_equal(kept, kept_units(shape, rate, jnp.uint32(8)))
    rows = kept.reshape(600, 256) - 0.95
    assert abs(np.corrcoef(rows.T) - np.eye(256)).max() < 0.25
    x = jax.random.normal(jax.random.key(0), shape)
    y, pull = jax.vjp(lambda x: dropout_silu(x, rate, seed), x)
    factor = jnp.asarray(kept / 0.95, jnp.float32)
    expected, pull_plain = jax.vjp(lambda x: silu(x * factor), x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pull(jnp.ones(shape))[0], pull_plain(jnp.ones(shape))[0], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_networks_in_one_are_the_networks_one_by_one_frozen_or_not():
    keys = jax.random.split(jax.random.key(0), 3)
    networks, eps = [init_he(k, (4, 16, 16, 2), bias=0.5) for k in keys], (1.0, 0.1)
    x = jax.random.normal(jax.random.key(1), (3, 6, 4))
    alone = jnp.stack([norm_mlp(network, x[k], eps) for k, network in enumerate(networks)])
    for params in (stack(networks), freeze(stack(networks))):
        np.testing.assert_allclose(norm_mlp(params, x, eps), alone, rtol=1e-5, atol=1e-5)
    slopes = [jax.grad(lambda x, p=p: norm_mlp(p, x, eps).sum())(x) for p in (stack(networks), freeze(stack(networks)))]
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-5)
    dropped = norm_mlp(stack(networks), x, eps, Dropout((0.5, 0.5), jnp.uint32(1)))
    assert not np.allclose(dropped, alone)


def layers_by_hand(layers, x, eps=None):
    """Layers in numpy: SiLU, and before each layer but the first a norm of the row, with its eps."""
    for i, layer in enumerate(layers):
        if i and eps is not None:
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + eps[i - 1])
        x = x @ np.asarray(layer.w, np.float64) + np.asarray(layer.b, np.float64)
        x = x / (1.0 + np.exp(-x)) if i < len(layers) - 1 else x
    return x


@pytest.mark.slow
def test_networks_are_those_published():
    """The model's norms have eps 1, 0.1 and 0.01, the critics' 1e-5; the policy has none, and never less noise."""
    config, layout = small_config({}), Layout(11, 3)
    rng = np.random.default_rng(0)
    obs, action = rng.standard_normal((6, 11)), rng.uniform(-1, 1, (6, 3))
    x, inputs = np.concatenate([obs, action], axis=1), (jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32))
    model = jax.jit(standardised_model(config, layout).init)(jax.random.key(0))
    assert [layer.w.shape for layer in model.network.members] == [
        (8, 14, 256),
        (8, 256, 256),
        (8, 256, 256),
        (8, 256, 12),
    ]
    found = jax.jit(member_means)(model, *inputs)
    for k in range(8):
        expected = layers_by_hand(member_of(model.network.members, k), x, (1.0, 0.1, 0.01))
        np.testing.assert_allclose(found[k], expected, rtol=1e-3, atol=1e-4)
    state = jax.jit(double_horizon_agent(config, layout).init)(jax.random.key(0))
    mean, raw = np.split(layers_by_hand(state.actor.layers, obs), 2, axis=1)
    log_std = np.log(np.log1p(np.exp(raw)) + 1e-5)
    for got, expected in zip(actor_head(state.actor, inputs[0]), (mean, log_std), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    low = jax.tree.map(jnp.zeros_like, state.actor.layers[-1])
    silent = replace(state.actor, layers=(*state.actor.layers[:-1], low._replace(b=jnp.full(6, -100.0))))
    np.testing.assert_allclose(np.exp(actor_head(silent, inputs[0])[1]), 1e-5, rtol=1e-4)
    state = replace(state, bounds=jnp.asarray([-4.0, 10.0]))
    centre = np.full((5, 6), 3.0)
    np.testing.assert_allclose(scaled_values(state.critics, state, *inputs), centre, rtol=1e-6)
    keys = jax.random.split(jax.random.key(1), 5)
    critics = stack([init_he(k, (14, 256, 256, 256, 1)) for k in keys])
    found = scaled_values(critics, state, *inputs)
    for k in range(5):
        expected = 7.0 * layers_by_hand(member_of(critics, k), x, (1e-5,) * 3)[:, 0] + 3.0
        np.testing.assert_allclose(found[k], expected, rtol=1e-3, atol=1e-3)


def test_initial_weights_have_the_published_spread():
    layers = init_he(jax.random.key(0), (100, 400, 50), bias=0.5, last=0.0)
    assert float(layers[0].w.std()) == pytest.approx((2 / 100) ** 0.5, rel=0.03)
    assert float(layers[0].b.std()) == pytest.approx(0.5 / 100**0.5, rel=0.1)
    assert not layers[1].w.any()
    square = init_orthogonal(jax.random.key(0), (32, 32))[0].w
    np.testing.assert_allclose(square @ square.T, np.eye(32), atol=1e-5)
