"""What a fit of the model needs: the holdout split, standardised inputs and targets, and the minibatch sampler."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Float64, Int

from pdml.config.schema import DynamicsConfig
from pdml.core.batching import capacity_of, padded
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.data.sampling import Sampler
from pdml.models.ensemble import Normaliser, Targets

LEAST_SCALE = 1e-4
"""Least scale of standardised columns: a constant column must not be divided by zero."""


class EnsembleRows(NamedTuple):
    """Columns of a fit's transitions: standardised inputs, targets, and what the loss attaches to each.

    The targets are standardised too, unless `target_norm` is none.
    """

    x: Float[Array, "capacity inputs"]
    y: Float[Array, "capacity outputs"]
    carried: Float[Array, "capacity carried"]


class EnsembleFitData(NamedTuple):
    """What one fit needs, on the device, padded so that shapes change only when the data have doubled."""

    rows: EnsembleRows
    holdout: Int[Array, " most"]
    share: Float[Array, " most"]
    """How much each held-out transition counts, 1 on average."""
    num_holdout: int
    num_batches: int
    minibatches: Callable[[np.random.Generator], Int[np.ndarray, "batches members b"]]
    """Draw the row numbers of an epoch."""


def ensemble_fit_data(
    real: RealRows,
    weights: Float64[np.ndarray, " n"],
    carried: Float[np.ndarray, "n carried"],
    config: DynamicsConfig,
    layout: Layout,
    seed: int,
    step: int,
) -> tuple[EnsembleFitData, Normaliser, Targets | None]:
    """Split the data, standardise by the training rows (uniformly weighted), and set up the weighted sampler."""
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

    def minibatches(rng: np.random.Generator) -> Int[np.ndarray, "batches members b"]:
        rows = sampler.draw((num_batches, config.num_members, config.batch_size), rng)
        return padded(rows.astype(np.int32), most_batches)

    columns = ((x - mean) / scale, y, carried)
    data = EnsembleFitData(
        rows=EnsembleRows(*(jnp.asarray(padded(column, capacity)) for column in columns)),
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
    """Return what the networks predict for each row, and the scale by which `ensemble.raw` undoes it."""
    if config.target_norm == "none":
        return layout.targets(rows), None
    direct = config.target_norm == "direct"
    y = layout.targets(rows, direct)
    mean, scale = moments(y[training])
    scale = np.maximum(scale, LEAST_SCALE)
    return (y - mean) / scale, Targets(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32), direct)


def moments(
    columns: Float[np.ndarray, "n columns"],
) -> tuple[Float64[np.ndarray, " columns"], Float64[np.ndarray, " columns"]]:
    """Return mean and standard deviation of each column."""
    return columns.mean(axis=0, dtype=np.float64), columns.std(axis=0, dtype=np.float64)


def _shares(weights: Float64[np.ndarray, " n"], config: DynamicsConfig) -> Float64[np.ndarray, " n"]:
    """Return how much each held-out row counts, 1 on average; uniform where none of them has any weight."""
    if config.holdout_weights == "uniform" or weights.sum() == 0:
        return np.ones(len(weights))
    return weights * (len(weights) / weights.sum())


def split_rows(
    real: RealRows, config: DynamicsConfig, seed: int, step: int
) -> tuple[Int[np.ndarray, " training"], Int[np.ndarray, " holdout"]]:
    """Return which rows train and which are held out; a held-out row is never drawn in the same fit.

    `fresh` splits again at each fit, as MBPO. `fixed` labels a row for good by its number of collection, and evaluates
    on at most `holdout_max` labelled rows, drawn at each fit.
    """
    size = len(real.rows)
    order = generator(seed, Purpose.HOLDOUT, step).permutation(size)
    if config.holdout == "fresh":
        held = np.zeros(size, bool)
        held[order[: min(max(1, int(config.holdout_ratio * size)), config.holdout_max)]] = True
        return np.flatnonzero(~held), np.flatnonzero(held)
    labels = generator(seed, Purpose.HOLDOUT, 0, part=1).random(int(real.number[-1]) + 1) < config.holdout_ratio
    held = labels[real.number]
    if held.all() or not held.any():  # a handful of rows: leave neither side empty
        held[0] = not held[0]
    chosen = order[held[order]][: config.holdout_max]
    return np.flatnonzero(~held), np.sort(chosen)
