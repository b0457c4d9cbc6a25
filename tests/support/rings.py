"""Small model buffers, and a model that predicts the same for every step."""

import jax
import jax.numpy as jnp
import numpy as np

from pdml.core.nets import Layer
from pdml.data.model_buffer import ModelBuffer, append, resize
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser

PHYSICAL = 24
write = jax.jit(append)
change_capacity = jax.jit(resize)


def ring_of(capacity):
    zero = jnp.asarray(0, jnp.int32)
    return ModelBuffer(jnp.zeros((PHYSICAL, 1)), jnp.asarray(capacity, jnp.int32), zero, zero)


def newest(ring):
    """Rows of a model buffer, oldest first."""
    capacity, position, size = int(ring.capacity), int(ring.position), int(ring.size)
    slots = (position - size + np.arange(size)) % capacity
    return np.asarray(ring.rows)[slots, 0].tolist()


def constant_model(changes, elites, reward=0.0):
    """A model whose member i adds changes[i] to the state, without noise."""
    members = tuple((Layer(jnp.zeros((2, 4)), jnp.array([reward, c, -50.0, -50.0])),) for c in changes)
    bounds = Bounds(jnp.full((2,), 0.5), jnp.full((2,), -40.0))
    network = Network(members, bounds)
    return ModelState(network, (), Normaliser(jnp.zeros((2,)), jnp.ones((2,))), jnp.asarray(elites, jnp.int32), ())
