"""Predictions of DHMBPO's model: one network per row, its own noise, and the units of reward and state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import constant_networks, linear_model, noise_for

from pdml.dhmbpo.model import ModelNoise, imagined_step, member_means
from pdml.models.ensemble import Normaliser


def at(noise, t):
    return jax.tree.map(lambda leaf: leaf[t], noise)


def test_each_network_steps_as_many_rows_as_the_others_at_every_step():
    model = constant_networks([[k, 0.0, 0.0] for k in range(8)], np.full((8, 3), -40.0))
    noise, seen = noise_for(6, rows=256, members=8), set()
    for t in range(6):
        reward, _ = imagined_step(model, jnp.zeros((256, 2)), jnp.zeros((256, 1)), at(noise.model, t))
        assert np.bincount(np.asarray(reward).astype(int), minlength=8).tolist() == [32] * 8
        seen.add(np.asarray(reward).tobytes())
    assert len(seen) == 6  # drawn again


def test_noise_is_that_of_the_network_whose_mean_it_is_added_to():
    stds = (1.0, 0.1, 0.01, 0.001)
    model = constant_networks([[k, 0.0, 0.0] for k in range(4)], np.log([[std] * 3 for std in stds]))
    noise = noise_for(1, rows=4000, members=4)
    reward, next_obs = imagined_step(model, jnp.zeros((4000, 2)), jnp.zeros((4000, 1)), at(noise.model, 0))
    for k, std in enumerate(stds):
        assert np.asarray(next_obs)[np.asarray(reward) == k].std() == pytest.approx(std, rel=0.1)


def test_means_are_in_the_units_of_reward_and_state():
    targets = Normaliser(jnp.asarray([5.0, 1.0, -1.0]), jnp.asarray([10.0, 0.1, 0.2]))
    normaliser = Normaliser(jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0]))
    model = linear_model(targets=targets, normaliser=normaliser)
    obs, action = np.array([[0.7, -0.4]] * 2), np.array([[0.25]] * 2)
    (layer,) = model.network.members
    x = np.concatenate([(obs - [1.0, 2.0]) / [3.0, 4.0], action], axis=1)
    expected = np.asarray(targets.mean) + np.asarray(targets.scale) * (
        x @ np.asarray(layer.w[0]) + np.asarray(layer.b[0])
    )
    given = jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32)
    np.testing.assert_allclose(member_means(model, *given), np.stack([expected] * 2), rtol=1e-5)
    reward, next_obs = imagined_step(model, *given, ModelNoise(jnp.asarray([1, 0]), jnp.zeros((2, 2))))
    np.testing.assert_allclose(reward, expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(next_obs, obs + expected[:, 1:], rtol=1e-5)
