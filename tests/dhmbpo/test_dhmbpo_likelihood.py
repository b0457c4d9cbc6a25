"""The loss of DHMBPO's model and its gradient step, by hand."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import LAYOUT, MEMBERS, fit_config, linear_model, member_of, stack

from pdml.dhmbpo.fit import ADAM, StandardisedRows, likelihood_loss, member_gradients, standardised_model
from pdml.dhmbpo.model import StandardisedNetwork
from pdml.dhmbpo.networks import init_he


def test_the_loss_is_the_weighted_likelihood_by_hand():
    network = linear_model(noise=0.5).network
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal((4, 3)), jnp.float32) for _ in range(2))
    bootstrap = jnp.asarray(rng.exponential(size=(4, MEMBERS)), jnp.float32)
    rest = jax.random.key(0), x, y, jnp.zeros(()), ()
    mean = np.asarray(x) @ np.asarray(network.members[0].w[0]) + np.asarray(network.members[0].b[0])
    row = (0.5 * np.square(mean - y) / 0.25 + np.log(0.5)).sum(axis=1)
    for k in range(MEMBERS):
        found = likelihood_loss(jax.tree.map(lambda leaf, k=k: leaf[k], network), bootstrap[:, k], *rest)
        assert float(found) == pytest.approx((np.asarray(bootstrap)[:, k] * row).mean(), rel=1e-5)


@pytest.mark.slow
def test_noise_on_rewards_and_dropout_enter_the_loss():
    network, count = linear_model(noise=0.5).network, 20_000
    member, bootstrap, zeros = jax.tree.map(lambda leaf: leaf[0], network), jnp.ones(count), jnp.zeros((count, 3))
    plain, noisy = (
        float(likelihood_loss(member, bootstrap, jax.random.key(0), zeros, zeros, jnp.asarray(noise), ()))
        for noise in (0.0, 0.3)
    )
    assert noisy - plain == pytest.approx(0.5 * 0.3**2 / 0.25, rel=0.05)
    deep, rows = StandardisedNetwork(init_he(jax.random.key(0), (3, 8, 3)), member.log_std), zeros[:64]
    x = jax.random.normal(jax.random.key(1), (64, 3))
    one, other, without = (
        float(likelihood_loss(deep, bootstrap[:64], jax.random.key(seed), x, rows, jnp.zeros(()), (rate,)))
        for rate, seed in ((0.5, 0), (0.5, 1), (0.0, 0))
    )
    assert len({one, other, without}) == 3


def test_equal_members_differ_by_their_own_noise_alone():
    network = StandardisedNetwork(stack([init_he(jax.random.key(0), (3, 8, 3))] * MEMBERS), jnp.zeros((MEMBERS, 3)))
    batch = StandardisedRows(*(jax.random.normal(jax.random.key(k), (64, 3)) for k in (1, 2)), jnp.ones((64, MEMBERS)))
    for noise, rate, alike in ((0.0, 0.0, True), (0.3, 0.0, False), (0.0, 0.5, False)):
        found = member_gradients(network, batch, jnp.asarray(noise), (rate,), jax.random.key(3)).members[0].w
        assert np.array_equal(found[0], found[1]) == alike


@pytest.mark.slow
def test_a_step_of_the_model_is_adams_and_the_decay_of_each_layer():
    config = fit_config(dynamics__weight_decay=(0.1, 0.3), double__noise_decay=0.2, double__reward_noise=0.0)
    dynamics = standardised_model(config, LAYOUT)
    before = dynamics.init(jax.random.key(0)).network
    before = replace(before, log_std=before.log_std + 0.5)
    rng = np.random.default_rng(0)
    rows = StandardisedRows(*(jnp.asarray(rng.random((64, n)), jnp.float32) for n in (3, 3, 2)))
    chosen = np.tile(np.arange(64, dtype=np.int32), (3, 1))

    def total(network):
        parts = [jax.tree.map(lambda leaf, k=k: leaf[k], network) for k in range(MEMBERS)]
        rest = jax.random.key(1), rows.x, rows.y, jnp.zeros(()), (0.0,)
        return sum(likelihood_loss(part, rows.bootstrap[:, k], *rest) for k, part in enumerate(parts))

    grads = jax.grad(total)(before)
    zero, epoch_key = np.float32(0.0), jax.random.key(2)
    copies = jax.tree.map(jnp.array, before)
    after, _ = dynamics.compiled["train_epoch"](copies, ADAM.init(before), rows, chosen, np.int32(1), zero, epoch_key)
    rate = config.dynamics.learning_rate
    parts = [(0.1, before.members[0], after.members[0], grads.members[0])]
    parts += [(0.3, before.members[1], after.members[1], grads.members[1])]
    parts += [(0.2, before.log_std, after.log_std, grads.log_std)]
    for decay, *trees in parts:
        for old, new, grad in zip(*map(jax.tree.leaves, trees), strict=True):
            expected = old - rate * (grad / (jnp.abs(grad) + 1e-8) + decay * old)
            np.testing.assert_allclose(new, expected, atol=2e-6)


def test_less_noise_than_a_thousandth_does_not_raise_the_likelihood():
    """Below it the logarithm stands still, and the error alone pulls at the noise."""
    member = member_of(linear_model(noise=1e-4).network, 0)
    x, y = jnp.ones((1, 3)), jnp.zeros((1, 3))
    gap = np.asarray(member.members[0].w).sum(axis=0) + np.asarray(member.members[0].b)

    def loss(log_std):
        return likelihood_loss(
            replace(member, log_std=log_std), jnp.ones(1), jax.random.key(0), x, y, jnp.zeros(()), ()
        )

    value, slope = jax.value_and_grad(loss)(member.log_std)
    assert float(value) == pytest.approx((0.5 * gap**2 * 1e8 + np.log(1e-3)).sum(), rel=1e-4)
    np.testing.assert_allclose(slope, -(gap**2) * 1e8, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(loss)(jnp.full(3, np.log(0.01))), 1.0 - gap**2 * 1e4, rtol=1e-4)
