r"""The dynamics model of DHMBPO, and its predictions.

[Kubo et al. 2025]. An ensemble that predicts [reward, change of state], standardised entry by entry. Each network has
one noise level per entry, which does not depend on the input. `pdml.dhmbpo.fit` trains the model.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.config.schema import DynamicsConfig
from pdml.core.nets import Mlp
from pdml.core.pytree import pytree
from pdml.core.transition import Layout
from pdml.dhmbpo.networks import FrozenMlp, init_he, norm_mlp
from pdml.models.ensemble import Normaliser, normalise


@pytree
class StandardisedNetwork:
    """What gradient descent changes, of the whole ensemble or of one network."""

    members: Mlp | FrozenMlp
    """All networks in one `Mlp`, with a leading axis for them."""
    log_std: Float[Array, "*members outputs"]
    """Of each network's noise, in units of the targets' scale."""


@pytree
class StandardisedModel:
    """All of the model that changes while it learns; it has no optimiser, since each fit starts a new one."""

    network: StandardisedNetwork
    normaliser: Normaliser
    """Of observations, over all real transitions."""
    targets: Normaliser
    """Of [reward, change of state], over all real transitions."""
    ending: Any = ()
    """The learned termination; empty where termination is known."""


def init_standardised(options: DynamicsConfig, layout: Layout, key: PRNGKeyArray) -> StandardisedModel:
    """Initialise the model; inputs and targets are not scaled before the first fit."""
    outputs = layout.obs_size + 1
    sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, outputs)

    def init_member(key: PRNGKeyArray) -> Mlp:
        return init_he(key, sizes, bias=0.5)

    members = jax.vmap(init_member)(jax.random.split(key, options.num_members))
    network = StandardisedNetwork(members, jnp.zeros((options.num_members, outputs)))
    normaliser, targets = (Normaliser(jnp.zeros((n,)), jnp.ones((n,))) for n in (layout.obs_size, outputs))
    return StandardisedModel(network, normaliser, targets)


def norm_eps(num_layers: int) -> tuple[float, ...]:
    """Return the eps of the layer norm before each layer but the first: 1, 0.1, 0.01, ...; a large one hardly acts."""
    return tuple(10.0**-i for i in range(num_layers - 1))


def network_inputs(
    model: StandardisedModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"]
) -> Float[Array, "b inputs"]:
    """Return what the networks see: standardised observations, and actions as they are."""
    return jnp.concatenate([normalise(model.normaliser, obs), action], axis=-1)


def member_outputs(network: StandardisedNetwork, x: Float[Array, "b inputs"]) -> Float[Array, "members b outputs"]:
    """Return the mean of every network for the same inputs, in units of the targets' scale."""
    shared = jnp.broadcast_to(x[None], (len(network.log_std), *x.shape))
    return norm_mlp(network.members, shared, norm_eps(len(network.members)))


def member_means(
    model: StandardisedModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"], /
) -> Float[Array, "members b outputs"]:
    """Return the mean of every network: reward and change of state, in their own units."""
    return (
        member_outputs(model.network, network_inputs(model, obs, action)) * model.targets.scale[None, None]
        + model.targets.mean[None, None]
    )


class ModelNoise(NamedTuple):
    """The randomness of one imagined step."""

    order: Int[Array, " members"]
    """The group of rows that each network steps."""
    state: Float[Array, "b obs"]
    """Standard normal noise of the next state."""


def imagined_step(
    model: StandardisedModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"], noise: ModelNoise
) -> tuple[Float[Array, " b"], Float[Array, "b obs"]]:
    """Return the mean reward and a sample of the next state.

    The rows form one equal group per network. The assignment of networks to groups is drawn again at every step, so a
    row costs one network. The noise level is that of the network that predicts the mean.
    """
    members, targets = model.network.members, model.targets
    x = network_inputs(model, obs, action).reshape(len(noise.order), -1, obs.shape[1] + action.shape[1])[noise.order]
    mean = norm_mlp(members, x, norm_eps(len(members)))
    deviation = jnp.exp(model.network.log_std)[:, None, 1:] * noise.state.reshape(*mean.shape[:2], -1)
    back = jnp.argsort(noise.order)
    reward = mean[:, :, 0][back].reshape(-1) * targets.scale[0] + targets.mean[0]
    change = (mean[:, :, 1:] + deviation)[back].reshape(obs.shape) * targets.scale[None, 1:] + targets.mean[None, 1:]
    return reward, obs + change
