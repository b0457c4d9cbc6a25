"""A linear-Gaussian system that a model must recover."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.schema import Config, DynamicsConfig
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.models.ensemble import apply_members, normalise, split_output
from pdml.models.fit import ensemble
from pdml.models.losses import nll

LAYOUT = Layout(2, 1)
SMALL = DynamicsConfig(
    num_members=3,
    num_elites=2,
    hidden_sizes=(32, 32),
    weight_decay=(1e-6, 1e-6, 1e-6),
    batch_size=64,
    max_epochs=60,
)
A = np.array([[0.9, 0.1], [-0.2, 0.8]])
B = np.array([0.3, -0.5])
NOISE = np.array([0.2, 0.02, 0.1])  # of reward and of both states


def real_rows(rows, blocks=1):
    n = len(rows)
    block = (np.arange(n) * blocks // n).astype(np.int32)
    return RealRows(rows.astype(np.float32), block, np.arange(n), np.bincount(block, minlength=blocks))


def linear_system(n, seed=0, noise=NOISE):
    rng = np.random.default_rng(seed)
    obs, action = rng.standard_normal((n, 2)), rng.uniform(-1, 1, (n, 1))
    noise = noise * rng.standard_normal((n, 3))
    next_obs = obs @ A.T + action * B + noise[:, 1:]
    reward = 2.0 * obs[:, 0] - action[:, 0] + noise[:, 0]
    return real_rows(np.column_stack([obs, action, reward, next_obs, np.zeros(n)]))


def predict(model, rows):
    x = normalise(model.normaliser, jnp.asarray(LAYOUT.inputs(rows)))
    x = jnp.broadcast_to(x[None], (len(model.network.members), *x.shape))
    outputs = [split_output(out, model.network.bounds) for out in apply_members(model.network.members, x)]
    return [(np.asarray(mean), np.asarray(log_var)) for mean, log_var in outputs]


def uniform(real):
    return np.full(len(real.rows), 1 / len(real.rows))


@cache
def likelihood_model(config):
    """Return the ensemble trained by likelihood; tests with the same settings share what is compiled."""
    return ensemble(config, LAYOUT, nll(config))


def fitted(dynamics, real, weights=None, seed=0, step=0):
    """Fit a new ensemble with these settings; return it and its metrics."""
    model = likelihood_model(Config(dynamics=dynamics, seed=seed))
    weights = uniform(real) if weights is None else weights
    return model.fit(model.init(jax.random.key(seed)), real, weights, None, step)
