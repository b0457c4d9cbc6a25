"""The dynamics model: an ensemble of probabilistic networks that predict [reward, change of state].

[Chua et al. 2018; Janner et al. 2019]. Networks are separate trees, and every matrix product is written out once per
network: XLA's batched product is slower on a CPU. Only `apply_members` knows. `pdml.models.fit` trains the ensemble.
"""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.core.nets import Mlp, choose, mlp, silu
from pdml.core.pytree import pytree


@pytree
class Bounds:
    """Trainable soft bounds of the log-variance, shared by all networks."""

    upper: Float[Array, " outputs"]
    lower: Float[Array, " outputs"]


@pytree
class Network:
    """What gradient descent changes."""

    members: tuple[Mlp, ...]
    bounds: Bounds


@pytree
class Normaliser:
    """Mean and scale of the inputs over the training data of the last fit."""

    mean: Float[Array, " inputs"]
    scale: Float[Array, " inputs"]


@pytree
class Targets:
    """Mean and scale of what the networks predict, over the training data of the last fit."""

    mean: Float[Array, " outputs"]
    scale: Float[Array, " outputs"]
    direct: bool = field(metadata={"static": True})
    """Whether they predict the next state instead of its change."""


@pytree
class ModelState:
    """All of the model that changes while it learns."""

    network: Network
    opt: optax.OptState
    normaliser: Normaliser
    elites: Int[Array, " elites"]
    adaptation: Any
    """What AMPO keeps from block to block; empty for other methods."""
    ending: Any = ()
    """The learned termination; empty where termination is known."""
    targets: Targets | None = None
    """None: the networks predict [reward, change of state] as it is."""


def apply_members(
    members: tuple[Mlp, ...], x: Float[Array, "members b inputs"]
) -> tuple[Float[Array, "b outputs"], ...]:
    """Apply each network to its own rows."""
    return tuple(mlp(member, x[i], silu) for i, member in enumerate(members))


def split_output(
    output: Float[Array, "b two_outputs"], bounds: Bounds
) -> tuple[Float[Array, "b outputs"], Float[Array, "b outputs"]]:
    """Return mean and softly bounded log-variance."""
    mean, log_var = jnp.split(output, 2, axis=-1)
    upper, lower = bounds.upper[None], bounds.lower[None]
    log_var = upper - jax.nn.softplus(upper - log_var)
    return mean, lower + jax.nn.softplus(log_var - lower)


def normalise(normaliser: Normaliser, x: Float[Array, "b inputs"]) -> Float[Array, "b inputs"]:
    """Standardise inputs."""
    return (x - normaliser.mean[None]) / normaliser.scale[None]


def raw(model: ModelState, obs: Float[Array, "b obs"], outputs: Float[Array, "b outputs"]) -> Float[Array, "b outputs"]:
    """Return [reward, change of state] in their own units, from what a network predicts in these states."""
    targets = model.targets
    if targets is None:
        return outputs
    outputs = targets.mean[None] + targets.scale[None] * outputs
    return outputs - jnp.pad(obs, ((0, 0), (1, 0))) if targets.direct else outputs


def deal(
    elites: tuple[Mlp, ...], x: Float[Array, "b inputs"], key: PRNGKeyArray
) -> tuple[Float[Array, "b outputs"], Int[Array, " b"]]:
    """Apply one elite to each row. Rows are dealt in equal random groups, so a row costs one network.

    Returns:
        The outputs in the order in which rows were dealt, and the index that restores their order.
    """
    order = jax.random.permutation(key, len(x))
    dealt = x[order]
    outputs = [mlp(elite, rows, silu) for elite, rows in zip(elites, jnp.split(dealt, len(elites)), strict=True)]
    return jnp.concatenate(outputs), jnp.argsort(order)


def predict(
    model: ModelState,
    elites: tuple[Mlp, ...],
    obs: Float[Array, "b obs"],
    action: Float[Array, "b a"],
    key: PRNGKeyArray,
    deterministic: bool = False,
) -> tuple[Float[Array, " b"], Float[Array, "b obs"]]:
    """Return a sample (or the mean) of reward and next state, each row by one randomly chosen elite."""
    order_key, noise_key = jax.random.split(key)
    x = normalise(model.normaliser, jnp.concatenate([obs, action], axis=-1))
    output, back = deal(elites, x, order_key)
    mean, log_var = split_output(output, model.network.bounds)
    target = mean[back]
    if not deterministic:
        target = target + jnp.exp(0.5 * log_var[back]) * jax.random.normal(noise_key, mean.shape)
    target = raw(model, obs, target)
    return target[:, 0], obs + target[:, 1:]


def elite_means(
    model: ModelState, obs: Float[Array, "b obs"], action: Float[Array, "b a"]
) -> Float[Array, "elites b outputs"]:
    """Return the mean of each elite: reward and change of state, in their own units."""
    x = normalise(model.normaliser, jnp.concatenate([obs, action], axis=-1))
    elites = choose(model.network.members, model.elites)
    shared = jnp.broadcast_to(x[None], (len(elites), *x.shape))
    return jnp.stack([raw(model, obs, output[:, : obs.shape[1] + 1]) for output in apply_members(elites, shared)])


def reward_variance(model: ModelState, obs: Float[Array, "b obs"], action: Float[Array, "b a"]) -> Float[Array, " b"]:
    """Return the variance over all networks of their mean reward."""
    x = normalise(model.normaliser, jnp.concatenate([obs, action], axis=-1))
    shared = jnp.broadcast_to(x[None], (len(model.network.members), *x.shape))
    outputs = apply_members(model.network.members, shared)
    return jnp.stack([raw(model, obs, output[:, : obs.shape[1] + 1])[:, 0] for output in outputs]).var(axis=0)
