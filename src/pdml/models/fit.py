"""Fitting the dynamics model to real rows: the split, weighted minibatches, early stopping, elites.

[Janner et al. 2019]; lines 7-8 of Algorithm 2.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float32, Float64, Int, PRNGKeyArray

from pdml.config.schema import Config, DynamicsConfig
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.nets import Mlp, init_truncated
from pdml.core.optim import descend
from pdml.core.pytree import copy
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.data.sampling import Sampler
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser, Targets, apply_members, elite_means
from pdml.models.losses import Loss
from pdml.training.diagnostics import Means

BATCHES_A_CALL = 250
"""Minibatches between two looks at whether the run was asked to stop."""

LEAST_SCALE = 1e-4
"""Of what is standardised: what never changes must not be divided by zero."""


class Dynamics(NamedTuple):
    """The part: how a model begins, and how it is fitted to real rows."""

    init: Callable[[PRNGKeyArray], Any]
    fit: Callable[..., tuple[Any, dict[str, float]]]
    jitted: dict[str, Callable[..., Any]]
    """The compiled functions inside `fit`, for measurements."""
    means: Means
    """From model, states and actions: reward and change of state by the mean of each network that imagines."""


def ensemble(config: Config, layout: Layout, loss: Loss) -> Dynamics:
    """The probabilistic ensemble of MBPO, fitted to weighted minibatches.

    Every member draws each of its minibatches by itself, with replacement, in proportion to the rows' weights. With
    uniform weights this is MBPO's bootstrap.
    """
    options, seed = config.dynamics, config.seed
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    sizes = (inputs, *options.hidden_sizes, 2 * outputs)
    adam = optax.adam(options.learning_rate)

    def init(key: PRNGKeyArray) -> ModelState:
        members = tuple(init_truncated(k, sizes) for k in jax.random.split(key, options.num_members))
        bounds = Bounds(jnp.full((outputs,), 0.5, jnp.float32), jnp.full((outputs,), -10.0, jnp.float32))
        network = Network(members, bounds)
        normaliser = Normaliser(jnp.zeros((inputs,)), jnp.ones((inputs,)))
        elites = jnp.arange(options.num_elites, dtype=jnp.int32)
        blank = Targets(jnp.zeros((outputs,)), jnp.ones((outputs,)), options.target_norm == "direct")
        targets = None if options.target_norm == "none" else blank
        return ModelState(network, adam.init(cast(Any, network)), normaliser, elites, (), targets=targets)

    train_epoch = jax.jit(make_train_epoch(loss, adam), donate_argnums=(0, 1))
    holdout_error = jax.jit(make_holdout_error(options, loss))
    keep_best = jax.jit(take_improved, donate_argnums=0)

    def fit(
        state: ModelState, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int
    ) -> tuple[ModelState, dict[str, float]]:
        """Train until no member has improved by 1 % for more than `patience` epochs (lines 7-8).

        The network is warm-started, the inputs' normaliser (and the targets', if any) is refitted, each member's best
        weights are restored and the elites are those with the least error on the holdout. `state` is consumed; the
        agent is only looked at.
        """
        data, normaliser, targets = prepare(real, weights, loss.carry(real, agent, step), options, layout, seed, step)
        network, opt = state.network, state.opt
        best = copy(network.members)
        best_error = error = np.full(options.num_members, np.inf, np.float32)
        epoch, waited = 0, 0
        while epoch < options.max_epochs and waited <= options.patience:
            chosen = data.minibatches(generator(seed, Purpose.MODEL_ROWS, step, epoch))
            for first in range(0, data.num_batches, BATCHES_A_CALL):
                last = np.int32(min(first + BATCHES_A_CALL, data.num_batches))
                network, opt = train_epoch(network, opt, data.rows, chosen, np.int32(first), last)
                signals.check()
            error = np.asarray(holdout_error(network, data.rows, data.holdout, data.share, np.int32(data.num_holdout)))
            improved = error < (1.0 - options.improvement) * best_error
            best = keep_best(best, network.members, improved)
            best_error = np.where(improved, error, best_error)
            waited = 0 if improved.any() else waited + 1
            epoch += 1
        if not np.isfinite(error).all():
            raise Diverged("model/holdout_error is not finite: the model has diverged")
        if not options.restore_best:
            best, best_error = network.members, error
        elites = np.argsort(best_error, kind="stable")[: options.num_elites].astype(np.int32)
        metrics = {
            "model/holdout_error": float(best_error[elites].mean()),
            "model/epochs": float(epoch),
            "model/batches": float(epoch * data.num_batches),
            "model/capped": float(waited <= options.patience),
        }
        fitted = replace(state, network=Network(best, network.bounds), opt=opt, normaliser=normaliser, targets=targets)
        return replace(fitted, elites=jnp.asarray(elites)), metrics

    jitted = {"train_epoch": train_epoch, "holdout_error": holdout_error, "keep_best": keep_best}
    return Dynamics(jax.jit(init), fit, jitted, elite_means)


class FitRows(NamedTuple):
    """Columns of the rows of a fit: standardised inputs, targets, and what the loss lets each row carry.

    The targets too are standardised, unless `target_norm` is none.
    """

    x: Float[Array, "capacity inputs"]
    y: Float[Array, "capacity outputs"]
    carried: Float[Array, "capacity carried"]


def make_train_epoch(loss: Loss, adam: optax.GradientTransformation) -> Callable[..., Any]:
    """Build one epoch of descent."""

    def train_epoch(
        network: Network,
        opt: optax.OptState,
        rows: FitRows,
        chosen: Int[Array, "batches members b"],
        first: Int[Array, ""],
        last: Int[Array, ""],
    ) -> tuple[Network, optax.OptState]:
        """Descend once on each minibatch from `first` to before `last`."""

        def step(i: Array, carry: tuple[Network, optax.OptState]):
            network, opt = carry
            grads = jax.grad(loss.value)(network, *(column[chosen[i]] for column in rows))
            return descend(adam, grads, opt, network)

        return jax.lax.fori_loop(first, last, step, (network, opt))

    return train_epoch


def make_holdout_error(config: DynamicsConfig, loss: Loss) -> Callable[..., Any]:
    """Build the error that decides early stopping and elites."""
    chunk = config.batch_size

    def holdout_error(
        network: Network,
        rows: FitRows,
        holdout: Int[Array, " most"],
        share: Float[Array, " most"],
        num_rows: Int[Array, ""],
    ) -> Float[Array, " members"]:
        """Return each member's mean error over the first `num_rows` of the holdout; `share` is 1 on average."""

        def add(i: Array, total: Array) -> Array:
            index = jax.lax.dynamic_slice_in_dim(holdout, i * chunk, chunk)
            weight = jax.lax.dynamic_slice_in_dim(share, i * chunk, chunk)
            valid = (i * chunk + jnp.arange(chunk)) < num_rows
            x, y, carried = (column[index] for column in rows)
            shared = jnp.broadcast_to(x[None], (config.num_members, *x.shape))
            errors = []
            for output in apply_members(network.members, shared):
                error = loss.error(output[:, : y.shape[1]], y, carried)
                errors.append(jnp.where(valid, weight * error, 0.0).sum())
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
    """What one fit needs, on the device, padded so that shapes change only when the data have doubled."""

    rows: FitRows
    holdout: Int[Array, " most"]
    share: Float[Array, " most"]
    """How much each held-out row counts, 1 on average."""
    num_holdout: int
    num_batches: int
    minibatches: Callable[[np.random.Generator], Int[np.ndarray, "batches members b"]]
    """Draw the row numbers of an epoch."""


def capacity_of(rows: int) -> int:
    """Return the length to which rows are padded, so that shapes change only when the data have doubled."""
    return max(4096, 1 << (rows - 1).bit_length())


def prepare(
    real: RealRows,
    weights: Float64[np.ndarray, " n"],
    carried: Float[np.ndarray, "n carried"],
    config: DynamicsConfig,
    layout: Layout,
    seed: int,
    step: int,
) -> tuple[FitData, Normaliser, Targets | None]:
    """Split the rows, standardise by the training rows, all alike, and set up the weighted sampler over these."""
    training, holdout = split_rows(real, config, seed, step)
    x = layout.inputs(real.rows)
    y, targets = standardised_targets(real.rows, training, config, layout)
    mean, scale = moments(x[training])
    scale = np.where(scale < 1e-12, 1.0, scale)
    capacity = capacity_of(len(x))
    num_batches = math.ceil(len(training) / config.batch_size)
    most_batches = math.ceil(capacity / config.batch_size)
    most_holdout = math.ceil(min(config.holdout_max, capacity) / config.batch_size) * config.batch_size
    trained = weights[training]
    if trained.sum() == 0:  # few rows have weight, and all of them are held out
        trained = np.ones(len(training))
    sampler = Sampler(training, trained)

    def minibatches(drawn: np.random.Generator) -> np.ndarray:
        rows = sampler.draw((num_batches, config.num_members, config.batch_size), drawn)
        return padded(rows.astype(np.int32), most_batches)

    data = FitData(
        rows=FitRows(*(jnp.asarray(padded(column, capacity)) for column in ((x - mean) / scale, y, carried))),
        holdout=jnp.asarray(padded(holdout.astype(np.int32), most_holdout)),
        share=jnp.asarray(padded(_shares(weights[holdout], config), most_holdout)),
        num_holdout=len(holdout),
        num_batches=num_batches,
        minibatches=minibatches,
    )
    return data, Normaliser(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32)), targets


def standardised_targets(
    rows: Float32[np.ndarray, "n width"], training: Int[np.ndarray, " training"], config: DynamicsConfig, layout: Layout
) -> tuple[Float[np.ndarray, "n outputs"], Targets | None]:
    """Return what the networks are to predict of each row, and how `ensemble.raw` brings it back to its own units."""
    if config.target_norm == "none":
        return layout.targets(rows), None
    direct = config.target_norm == "direct"
    y = layout.targets(rows, direct)
    mean, scale = moments(y[training])
    scale = np.maximum(scale, LEAST_SCALE)
    return (y - mean) / scale, Targets(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32), direct)


def moments(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each column."""
    return columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)


def _shares(weights: np.ndarray, config: DynamicsConfig) -> np.ndarray:
    """Return how much each held-out row counts, 1 on average; alike where none of them has any weight."""
    if config.holdout_weights == "uniform" or weights.sum() == 0:
        return np.ones(len(weights))
    return weights * (len(weights) / weights.sum())


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


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """Return a fresh array of a fixed length, the rest zero; floats become float32."""
    dtype = np.float32 if np.issubdtype(array.dtype, np.floating) else array.dtype
    result = np.zeros((length, *array.shape[1:]), dtype)
    result[: len(array)] = array
    return result
