"""The dynamics model: an ensemble of probabilistic networks that predict [reward, change of state].

[Chua et al. 2018; Janner et al. 2019]. Members are separate trees and every product is written out once a member:
XLA's batched product is slower on a CPU. `apply_members` is the one place that knows.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray

from pdml.config import DynamicsConfig
from pdml.descent import descend
from pdml.nets import Mlp, init_truncated, mlp, silu
from pdml.randomness import Purpose, generator
from pdml.replay import RealRows
from pdml.sampling import Sampler
from pdml.transition import Layout
from pdml.tree import copy, pytree

BOUND_PENALTY = 0.01


@pytree
class Bounds:
    """Trainable soft bounds of the log-variance, shared by the members."""

    upper: Float[Array, " outputs"]
    lower: Float[Array, " outputs"]


@pytree
class Network:
    """What gradient descent changes."""

    members: tuple[Mlp, ...]
    bounds: Bounds


@pytree
class Normaliser:
    """Mean and scale of the inputs over the training rows of the last fit."""

    mean: Float[Array, " inputs"]
    scale: Float[Array, " inputs"]


@pytree
class ModelState:
    """All of the model that changes while it learns."""

    network: Network
    opt: optax.OptState
    normaliser: Normaliser
    elites: Int[Array, " elites"]


class Dynamics(NamedTuple):
    """The part: how a model begins, and how it is fitted to real rows."""

    init: Callable[[PRNGKeyArray], ModelState]
    fit: Callable[..., tuple[ModelState, dict[str, float]]]
    jitted: dict[str, Callable[..., Any]]
    """The compiled functions inside `fit`, for measurements."""


def apply_members(
    members: tuple[Mlp, ...], x: Float[Array, "members b inputs"]
) -> tuple[Float[Array, "b outputs"], ...]:
    """Apply each member to its own rows."""
    return tuple(mlp(member, x[i], silu) for i, member in enumerate(members))


def split_output(
    output: Float[Array, "b two_outputs"], bounds: Bounds
) -> tuple[Float[Array, "b outputs"], Float[Array, "b outputs"]]:
    """Return mean and softly bounded log-variance."""
    mean, log_var = jnp.split(output, 2, axis=-1)
    upper, lower = bounds.upper[None], bounds.lower[None]
    log_var = upper - jax.nn.softplus(upper - log_var)
    return mean, lower + jax.nn.softplus(log_var - lower)


def negative_log_likelihood(
    network: Network,
    x: Float[Array, "members b inputs"],
    y: Float[Array, "members b outputs"],
    weight_decay: tuple[float, ...],
) -> Float[Array, ""]:
    r"""$\sum_b \overline{(\mu-y)^2 e^{-\ell} + \ell}$ + decay of each layer's weights + pull on the bounds.

    Departs from the paper's Eq. (7), which predicts the next state alone: the target is [reward, change of state],
    and the mean is taken over rows and outputs, as in the code that it builds on.
    """
    loss = BOUND_PENALTY * (network.bounds.upper.sum() - network.bounds.lower.sum())
    for i, output in enumerate(apply_members(network.members, x)):
        mean, log_var = split_output(output, network.bounds)
        loss += (jnp.square(mean - y[i]) * jnp.exp(-log_var) + log_var).mean()
    for member in network.members:
        for rate, layer in zip(weight_decay, member, strict=True):
            loss += 0.5 * rate * jnp.square(layer.w).sum()
    return loss


def normalise(normaliser: Normaliser, x: Float[Array, "b inputs"]) -> Float[Array, "b inputs"]:
    """Standardise inputs."""
    return (x - normaliser.mean[None]) / normaliser.scale[None]


def ensemble(config: DynamicsConfig, layout: Layout, seed: int) -> Dynamics:
    """The probabilistic ensemble of MBPO, fitted to weighted minibatches.

    Every member draws each of its minibatches by itself, with replacement, in proportion to the rows' weights. With
    uniform weights this is MBPO's bootstrap.
    """
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    sizes = (inputs, *config.hidden_sizes, 2 * outputs)
    adam = optax.adam(config.learning_rate)

    def init(key: PRNGKeyArray) -> ModelState:
        members = tuple(init_truncated(k, sizes) for k in jax.random.split(key, config.num_members))
        bounds = Bounds(jnp.full((outputs,), 0.5, jnp.float32), jnp.full((outputs,), -10.0, jnp.float32))
        network = Network(members, bounds)
        normaliser = Normaliser(jnp.zeros((inputs,)), jnp.ones((inputs,)))
        elites = jnp.arange(config.num_elites, dtype=jnp.int32)
        return ModelState(network, adam.init(cast(Any, network)), normaliser, elites)

    train_epoch = jax.jit(make_train_epoch(config, adam), donate_argnums=(0, 1))
    holdout_error = jax.jit(make_holdout_error(config))
    keep_best = jax.jit(take_improved, donate_argnums=0)

    def fit(
        state: ModelState, real: RealRows, weights: Float64[np.ndarray, " n"], step: int
    ) -> tuple[ModelState, dict[str, float]]:
        """Train until no member has improved by 1 % for more than `patience` epochs (lines 7-8).

        The network is warm-started, the inputs' normaliser is refitted, each member's best weights are restored and
        the elites are those with the least error on the holdout. `state` is consumed.
        """
        data, normaliser = prepare(real, weights, config, layout, seed, step)
        network, opt = state.network, state.opt
        best = copy(network.members)
        best_error = np.full(config.num_members, np.inf, np.float32)
        epoch, waited = 0, 0
        while epoch < config.max_epochs and waited <= config.patience:
            chosen = data.minibatches(generator(seed, Purpose.MODEL_ROWS, step, epoch))
            network, opt = train_epoch(network, opt, data.x, data.y, chosen, np.int32(data.num_batches))
            error = np.asarray(holdout_error(network, data.x, data.y, data.holdout, np.int32(data.num_holdout)))
            improved = error < (1.0 - config.improvement) * best_error
            best = keep_best(best, network.members, improved)
            best_error = np.where(improved, error, best_error)
            waited = 0 if improved.any() else waited + 1
            epoch += 1
        elites = np.argsort(best_error, kind="stable")[: config.num_elites].astype(np.int32)
        metrics = {
            "model/holdout_error": float(best_error[elites].mean()),
            "model/epochs": float(epoch),
            "model/capped": float(waited <= config.patience),
        }
        return ModelState(Network(best, network.bounds), opt, normaliser, jnp.asarray(elites)), metrics

    jitted = {"train_epoch": train_epoch, "holdout_error": holdout_error, "keep_best": keep_best}
    return Dynamics(jax.jit(init), fit, jitted)


def make_train_epoch(config: DynamicsConfig, adam: optax.GradientTransformation) -> Callable[..., Any]:
    """Build one epoch of descent."""

    def train_epoch(
        network: Network,
        opt: optax.OptState,
        x: Float[Array, "capacity inputs"],
        y: Float[Array, "capacity outputs"],
        chosen: Int[Array, "batches members b"],
        num_batches: Int[Array, ""],
    ) -> tuple[Network, optax.OptState]:
        """Descend once on each of the first `num_batches` minibatches."""

        def step(i: Array, carry: tuple[Network, optax.OptState]):
            network, opt = carry
            grads = jax.grad(negative_log_likelihood)(network, x[chosen[i]], y[chosen[i]], config.weight_decay)
            return descend(adam, grads, opt, network)

        return jax.lax.fori_loop(0, num_batches, step, (network, opt))

    return train_epoch


def make_holdout_error(config: DynamicsConfig) -> Callable[..., Any]:
    """Build the error that decides early stopping and elites: squared, of the means, without the variance."""
    chunk = config.batch_size

    def holdout_error(
        network: Network,
        x: Float[Array, "capacity inputs"],
        y: Float[Array, "capacity outputs"],
        rows: Int[Array, " most"],
        num_rows: Int[Array, ""],
    ) -> Float[Array, " members"]:
        """Return each member's mean squared error over the first `num_rows` of the holdout."""

        def add(i: Array, total: Array) -> Array:
            index = jax.lax.dynamic_slice_in_dim(rows, i * chunk, chunk)
            valid = (i * chunk + jnp.arange(chunk)) < num_rows
            shared = jnp.broadcast_to(x[index][None], (config.num_members, chunk, x.shape[1]))
            errors = []
            for output in apply_members(network.members, shared):
                squared = jnp.square(output[:, : y.shape[1]] - y[index]).mean(axis=1)
                errors.append(jnp.where(valid, squared, 0.0).sum())
            return total + jnp.stack(errors)

        chunks = (num_rows + chunk - 1) // chunk
        total = jax.lax.fori_loop(0, chunks, add, jnp.zeros((config.num_members,), jnp.float32))
        return total / num_rows.astype(jnp.float32)

    return holdout_error


def take_improved(
    best: tuple[Mlp, ...], members: tuple[Mlp, ...], improved: Bool[Array, " members"]
) -> tuple[Mlp, ...]:
    """Return the best weights of each member, taking over those that improved."""
    return tuple(
        jax.tree.map(lambda old, new, i=i: jnp.where(improved[i], new, old), best[i], members[i])
        for i in range(len(members))
    )


class FitData(NamedTuple):
    """The rows of one fit on the device, padded so that shapes change only when the data have doubled."""

    x: Float[Array, "capacity inputs"]
    y: Float[Array, "capacity outputs"]
    holdout: Int[Array, " most"]
    num_holdout: int
    num_batches: int
    minibatches: Callable[[np.random.Generator], Int[np.ndarray, "batches members b"]]
    """Draw the row numbers of an epoch."""


def prepare(
    real: RealRows, weights: Float64[np.ndarray, " n"], config: DynamicsConfig, layout: Layout, seed: int, step: int
) -> tuple[FitData, Normaliser]:
    """Split the rows, standardise the inputs by the training rows, and set up the weighted sampler over these."""
    training, holdout = split_rows(real, config, seed, step)
    x, y = layout.inputs(real.rows), layout.targets(real.rows)
    mean, scale = x[training].mean(axis=0, dtype=np.float64), x[training].std(axis=0, dtype=np.float64)
    scale = np.where(scale < 1e-12, 1.0, scale)
    capacity = max(4096, 1 << (len(x) - 1).bit_length())
    num_batches = math.ceil(len(training) / config.batch_size)
    most_batches = math.ceil(capacity / config.batch_size)
    most_holdout = math.ceil(min(config.holdout_max, capacity) / config.batch_size) * config.batch_size
    sampler = Sampler(training, weights[training])

    def minibatches(drawn: np.random.Generator) -> np.ndarray:
        rows = sampler.draw((num_batches, config.num_members, config.batch_size), drawn)
        return _padded(rows.astype(np.int32), most_batches)

    data = FitData(
        x=jnp.asarray(_padded((x - mean) / scale, capacity)),
        y=jnp.asarray(_padded(y, capacity)),
        holdout=jnp.asarray(_padded(holdout.astype(np.int32), most_holdout)),
        num_holdout=len(holdout),
        num_batches=num_batches,
        minibatches=minibatches,
    )
    return data, Normaliser(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))


def split_rows(
    real: RealRows, config: DynamicsConfig, seed: int, step: int
) -> tuple[Int[np.ndarray, " training"], Int[np.ndarray, " holdout"]]:
    """Return which rows train and which are held out; a held-out row is never drawn in the same fit.

    `fresh` splits anew at each fit, as MBPO. `fixed` labels a row for good by its number of collection, and lets at
    most `holdout_max` labelled rows, newly chosen, stand for the rest.
    """
    size = len(real.rows)
    order = generator(seed, Purpose.HOLDOUT, step).permutation(size)
    if config.holdout == "fresh":
        held = np.zeros(size, bool)
        held[order[: min(max(1, int(config.holdout_ratio * size)), config.holdout_max)]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)
    labels = generator(seed, Purpose.HOLDOUT, 0, part=1).random(int(real.number[-1]) + 1) < config.holdout_ratio
    held = labels[real.number]
    if held.all() or not held.any():  # a handful of rows: leave none of the two sides empty
        held[0] = not held[0]
    chosen = order[held[order]][: config.holdout_max]
    return np.flatnonzero(~held), np.sort(chosen)


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    """Return a fresh array of a fixed length, the rest zero; floats become float32."""
    dtype = np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype
    result = np.zeros((length, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result
