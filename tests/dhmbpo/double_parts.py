"""Small models, agents and real transitions of double-horizon learning, whose results can be computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.core.nets import Layer
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.dhmbpo.model import StandardisedModel, StandardisedNetwork
from pdml.dhmbpo.networks import init_he, init_orthogonal
from pdml.dhmbpo.rollouts import NormalisedActor, StepRules, sample_noise, training_rollout
from pdml.dhmbpo.updates import DoubleState, Optimisers
from pdml.models.ensemble import Normaliser

LAYOUT = Layout(2, 1)
NEVER = StepRules(lambda model, obs, action, next_obs: jnp.zeros(len(obs)))
GAMMA = 0.9
STEPS, ROWS, MEMBERS = 5, 8, 2


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def member_of(networks, k):
    return jax.tree.map(lambda leaf: leaf[k], networks)


def linear_model(members=MEMBERS, noise=0.0, **changes):
    """A model without hidden layers: reward and change of state are linear in state and action."""
    w = jnp.asarray([[0.3, -0.1, 0.2], [0.5, 0.2, -0.3], [0.1, 0.4, 0.6]])
    layer = Layer(w, jnp.asarray([0.2, 0.05, -0.1]))
    log_std = jnp.full((members, 3), jnp.log(noise) if noise else -40.0)
    plain = {
        "network": StandardisedNetwork(stack([(layer,)] * members), log_std),
        "normaliser": Normaliser(jnp.zeros(2), jnp.ones(2)),
        "targets": Normaliser(jnp.zeros(3), jnp.ones(3)),
    }
    return StandardisedModel(**(plain | changes))


def constant_networks(outputs, log_std):
    """A model whose networks each predict one thing always."""
    members = stack([(Layer(jnp.zeros((3, 3)), jnp.asarray(output, jnp.float32)),) for output in outputs])
    return linear_model(network=StandardisedNetwork(members, jnp.asarray(log_std, jnp.float32)))


def agent_state(alpha=0.0, critics=3, seed=0):
    keys = jax.random.split(jax.random.key(seed), critics + 1)
    networks = stack([init_he(k, (3, 16, 1)) for k in keys[1:]])
    normaliser = Normaliser(jnp.asarray([0.1, -0.2]), jnp.asarray([2.0, 0.5]))
    return DoubleState(
        actor=NormalisedActor(init_orthogonal(keys[0], (2, 16, 2)), normaliser),
        critics=networks,
        target_critics=networks,
        log_alpha=jnp.log(jnp.asarray(alpha or 1e-30)),
        bounds=jnp.asarray([-5.0, 9.0]),
        bounded=jnp.ones(()),
    )


def optimisers_of(state, learning_rate):
    adam = optax.adam(learning_rate)
    return Optimisers(*(adam.init(part) for part in (state.actor.layers, state.critics, state.log_alpha)))


def small_config(changes):
    """DHMBPO on Hopper with the given changes."""
    return change(defaults("Hopper-v5", "dhmbpo"), changes).learning


def noise_for(steps, rows=ROWS, members=MEMBERS, seed=3):
    config = small_config({"batch_size": rows, "dynamics.num_members": members})
    return sample_noise(config, LAYOUT, steps, jax.random.key(seed))


@jax.jit
def endless_rollout(actor, model, obs, noise):
    """A training rollout where nothing terminates, compiled once for all tests: op by op it takes far longer."""
    return training_rollout(actor, model, NEVER, obs, noise)


def rows_of(count, seed=0, noise=0.01, number=None):
    """Steps of a linear system in episodes of ten steps, each beginning far away."""
    rng = np.random.default_rng(seed)
    obs = np.zeros((count, 2), np.float32)
    action = rng.uniform(-1, 1, (count, 1)).astype(np.float32)
    change_ = np.concatenate([action, 0.1 * action], axis=1) + noise * rng.standard_normal((count, 2))
    state = np.zeros(2)
    next_obs = np.zeros_like(obs)
    for t in range(count):
        state = 50.0 * rng.standard_normal(2) if t % 10 == 0 else state
        obs[t] = state
        next_obs[t] = state = (state + change_[t]).astype(np.float32)
    reward = 3.0 + 2.0 * action
    rows = np.concatenate([obs, action, reward, next_obs, np.zeros((count, 1))], axis=1).astype(np.float32)
    return RealRows(rows, np.zeros(count, np.int32), np.arange(count) if number is None else number, np.array([count]))


def fit_config(**more):
    sizes = {
        "dynamics.num_members": 2,
        "dynamics.hidden_sizes": (16,),
        "dynamics.weight_decay": (0.0, 0.0),
        "dynamics.batch_size": 64,
        "dynamics.max_epochs": 30,
        "dynamics.patience": 10,
        "double.dropout": (0.0,),
        "double.first_factor": 1,
        "double.epoch_batches": 3,
    }
    return small_config(sizes | {name.replace("__", "."): value for name, value in more.items()})
