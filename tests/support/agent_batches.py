"""Four transitions of one number each, and a network by hand, for tests of agents."""

import jax.numpy as jnp
import numpy as np

from pdml.core.transition import Layout, Transition

LAYOUT = Layout(1, 1)


def batch(obs, action, reward, next_obs, terminated):
    columns = (obs, action, reward, next_obs, terminated)
    o, a, r, n, d = (jnp.asarray(np.broadcast_to(np.asarray(c, np.float32), (4,))) for c in columns)
    return Transition(o[:, None], a[:, None], r, n[:, None], d)


def forward(layers, x):
    for layer in layers[:-1]:
        x = np.maximum(x @ np.asarray(layer.w) + np.asarray(layer.b), 0.0)
    return x @ np.asarray(layers[-1].w) + np.asarray(layers[-1].b)
