"""Small rings of imagined rows, and a model that says the same of every step."""

import jax
import jax.numpy as jnp
import numpy as np

from pdml.core.nets import Layer
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser
from pdml.models.rollouts import Imagined, append, resize

PHYSICAL = 24
write = jax.jit(append)
change_capacity = jax.jit(resize)


def ring_of(capacity):
    zero = jnp.asarray(0, jnp.int32)
    return Imagined(jnp.zeros((PHYSICAL, 1)), jnp.asarray(capacity, jnp.int32), zero, zero)


def newest(ring):
    """Rows of a ring, oldest first."""
    capacity, position, size = int(ring.capacity), int(ring.position), int(ring.size)
    slots = (position - size + np.arange(size)) % capacity
    return np.asarray(ring.rows)[slots, 0].tolist()


def constant_model(changes, elites, reward=0.0):
    """A model whose member i adds changes[i] to the state, without noise."""
    members = tuple((Layer(jnp.zeros((2, 4)), jnp.array([reward, c, -50.0, -50.0])),) for c in changes)
    bounds = Bounds(jnp.full((2,), 0.5), jnp.full((2,), -40.0))
    network = Network(members, bounds)
    return ModelState(network, (), Normaliser(jnp.zeros((2,)), jnp.ones((2,))), jnp.asarray(elites, jnp.int32), ())
