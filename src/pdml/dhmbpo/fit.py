r"""Fitting the model of DHMBPO: bootstrapped likelihood, minibatches, and early stopping by a paired test.

[Kubo et al. 2025]. All networks see the same minibatches. They differ by their initial weights, and by how much each
transition counts for each network, which is drawn once and kept (a Bayesian bootstrap).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.batching import capacity_of, padded
from pdml.core.errors import Diverged
from pdml.core.pytree import copy
from pdml.core.rng import Purpose, generator, key
from pdml.core.transition import Layout
from pdml.core.types import Metrics
from pdml.data.replay import RealRows
from pdml.dhmbpo.model import (
    StandardisedModel,
    StandardisedNetwork,
    init_standardised,
    member_means,
    member_outputs,
    norm_eps,
)
from pdml.dhmbpo.networks import Dropout, norm_mlp
from pdml.models.ensemble import Normaliser
from pdml.models.fit import DynamicsModel, FitModel
from pdml.models.fit_data import LEAST_SCALE, moments, split_rows

LEAST_LOG_STD = math.log(1e-3)
"""Below it, less noise no longer raises the likelihood."""

ADAM = optax.scale_by_adam()

SCORED_ROWS = 1024
"""Held-out transitions per call."""


class StandardisedRows(NamedTuple):
    """Columns of a fit's transitions: standardised inputs and targets, and the weights of the bootstrap."""

    x: Float[Array, "capacity inputs"]
    y: Float[Array, "capacity outputs"]
    bootstrap: Float[Array, "capacity members"]
    """How much a transition counts for each network, 1 on average."""


class StandardisedFitData(NamedTuple):
    """What one fit needs, padded so that shapes change only when the data have doubled."""

    rows: StandardisedRows
    minibatches: Iterator[Int[np.ndarray, "most b"]]
    """The row numbers of one epoch after the other."""
    num_batches: np.int32
    """Minibatches per epoch."""
    holdout: Int[np.ndarray, " held"]
    normaliser: Normaliser
    targets: Normaliser


@runtime_checkable
class TrainEpoch(Protocol):
    """Trains the networks for one epoch. Networks and optimiser are consumed."""

    def __call__(
        self,
        network: StandardisedNetwork,
        opt: optax.OptState,
        rows: StandardisedRows,
        chosen: Int[Array, "most b"],
        num_batches: Int[Array, ""],
        reward_noise: Float[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[StandardisedNetwork, optax.OptState]:
        """Take one step on each of the first `num_batches` minibatches."""
        ...


@runtime_checkable
class ScoreRows(Protocol):
    """Scores how well the networks predict transitions; lower is better."""

    def __call__(
        self, network: StandardisedNetwork, x: Float[Array, "b inputs"], y: Float[Array, "b outputs"], /
    ) -> Float[Array, " b"]:
        """Return one score per transition."""
        ...


def standardised_model(config: Config, layout: Layout) -> DynamicsModel:
    """Build the model and its fit."""
    init = jax.jit(partial(init_standardised, config.dynamics, layout))
    train_epoch = jax.jit(make_standardised_epoch(config), donate_argnums=(0, 1))
    score_rows = jax.jit(likelihood_scores)
    fit = make_standardised_fit(config, layout, train_epoch, score_rows)
    return DynamicsModel(init, fit, {"train_epoch": train_epoch, "score_rows": score_rows}, member_means)


def make_standardised_fit(config: Config, layout: Layout, train_epoch: TrainEpoch, score_rows: ScoreRows) -> FitModel:
    """Build the fit from its compiled functions."""
    options, double, seed = config.dynamics, config.double, config.seed

    def fit(
        model: StandardisedModel, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int, /
    ) -> tuple[StandardisedModel, Metrics]:
        """Train until the predictions of held-out transitions no longer improve; keep the last significant gain.

        After every few epochs, a paired test compares the scores of held-out transitions with the best so far. If no
        networks of this fit were significantly better than those it started with, the old networks stay.
        """
        data = standardised_fit_data(real, weights, config, layout, step)
        network, opt, best = copy(model.network), ADAM.init(cast(Any, model.network)), copy(model.network)
        reward_noise, num_batches = double.reward_noise / data.targets.scale[0], jnp.asarray(data.num_batches)
        best_scores = holdout_scores(score_rows, network, data)
        factor = double.first_factor if step <= config.warmup_steps else 1
        max_epochs, patience = factor * options.max_epochs, factor * options.patience
        fit_key = key(seed, Purpose.MODEL_ROWS, step)
        epoch, waited, best_epoch = 0, 0, 0
        while epoch < max_epochs and waited <= patience:
            # train
            chosen, epoch_key = jnp.asarray(next(data.minibatches)), jax.random.fold_in(fit_key, epoch)
            network, opt = train_epoch(network, opt, data.rows, chosen, num_batches, reward_noise, epoch_key)
            signals.stop_if_asked()
            epoch += 1
            if epoch % double.judge_every and epoch < max_epochs:
                continue

            # compare with the best
            scores = holdout_scores(score_rows, network, data)
            p_value = paired_p_value(best_scores, scores)
            waited = 0 if p_value < 0.5 else waited + double.judge_every
            if p_value < double.significance:
                best, best_scores, best_epoch = copy(network), scores, epoch
        metrics = {
            "model/holdout_error": float(best_scores.mean()),
            "model/epochs": float(epoch),
            "model/batches": float(epoch * data.num_batches),
            "model/capped": float(waited <= patience),
            "model/best_epoch": float(best_epoch),
            "model/noise": float(np.exp(np.asarray(best.log_std)).mean()),
        }
        return replace(model, network=best, normaliser=data.normaliser, targets=data.targets), metrics

    return fit


def likelihood_loss(
    member: StandardisedNetwork,
    bootstrap: Float[Array, " b"],
    key: PRNGKeyArray,
    x: Float[Array, "b inputs"],
    y: Float[Array, "b outputs"],
    reward_noise: Float[Array, ""],
    dropout: tuple[float, ...],
) -> Float[Array, ""]:
    r"""$\overline{e \sum_d \frac12 (\mu_d - y_d)^2 e^{-2\lambda_d} + \max(\lambda_d, \lambda_0)}$ of one network.

    Args:
        bootstrap: $e$, how much each transition counts for the network.
        reward_noise: Standard deviation of the noise added to reward targets, in units of their scale.
        dropout: The dropout rate of each hidden layer.
    """
    reward_key, dropout_key = jax.random.split(key)
    jitter = reward_noise * jax.random.normal(reward_key, bootstrap.shape)
    seeded = Dropout(dropout, jax.random.bits(dropout_key, (), jnp.uint32))
    mean = norm_mlp(member.members, x, norm_eps(len(member.members)), seeded)
    gap = (mean - y).at[:, 0].add(-jitter)
    log_std = member.log_std[None]
    error = 0.5 * jnp.square(gap) * jnp.exp(-2.0 * log_std) + jnp.maximum(log_std, LEAST_LOG_STD)
    return (bootstrap * error.sum(axis=1)).mean()


def member_gradients(
    network: StandardisedNetwork,
    batch: StandardisedRows,
    reward_noise: Float[Array, ""],
    dropout: tuple[float, ...],
    key: PRNGKeyArray,
) -> StandardisedNetwork:
    """Return the gradient of the sum of all networks' losses.

    One network after the other: what one network keeps between its passes fits in a core's cache, that of all does not.
    """

    def gradient(each: tuple[StandardisedNetwork, Array, PRNGKeyArray]) -> StandardisedNetwork:
        member, bootstrap, member_key = each
        return jax.grad(likelihood_loss)(member, bootstrap, member_key, batch.x, batch.y, reward_noise, dropout)

    return jax.lax.map(gradient, (network, batch.bootstrap.T, jax.random.split(key, len(network.log_std))))


def make_standardised_epoch(config: Config) -> TrainEpoch:
    """Build one epoch of gradient descent with decoupled weight decay."""
    options, double = config.dynamics, config.double

    def moved(params: Any, steps: Any, decay: float) -> Any:
        def move(x: Array, dx: Array) -> Array:
            return x - options.learning_rate * (dx + decay * x)

        return jax.tree.map(move, params, steps)

    def train_epoch(
        network: StandardisedNetwork,
        opt: optax.OptState,
        rows: StandardisedRows,
        chosen: Int[Array, "most b"],
        num_batches: Int[Array, ""],
        reward_noise: Float[Array, ""],
        key: PRNGKeyArray,
        /,
    ) -> tuple[StandardisedNetwork, optax.OptState]:
        def step(i: Array, carry: tuple[StandardisedNetwork, Any]) -> tuple[StandardisedNetwork, Any]:
            network, opt = carry
            batch = StandardisedRows(*(column[chosen[i]] for column in rows))
            grads = member_gradients(network, batch, reward_noise, double.dropout, jax.random.fold_in(key, i))
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
                steps, opt = cast(Any, ADAM.update(cast(Any, grads), opt))
            layers = zip(network.members, steps.members, options.weight_decay, strict=True)
            log_std = moved(network.log_std, steps.log_std, double.noise_decay)
            return StandardisedNetwork(tuple(moved(*layer) for layer in layers), log_std), opt

        return jax.lax.fori_loop(0, num_batches, step, (network, opt))

    return train_epoch


def likelihood_scores(
    network: StandardisedNetwork, x: Float[Array, "b inputs"], y: Float[Array, "b outputs"], /
) -> Float[Array, " b"]:
    r"""$\sum_d \frac12 (y_d - \bar\mu_d)^2 / v_d + \frac12 \ln v_d$; $v$ is the variance of the means plus noise."""
    means = member_outputs(network, x)
    spread = means.var(axis=0, ddof=1) if len(means) > 1 else jnp.zeros_like(y)
    variance = spread + jnp.exp(2.0 * network.log_std.mean(axis=0))[None]
    return (0.5 * jnp.square(y - means.mean(axis=0)) / variance + 0.5 * jnp.log(variance)).sum(axis=1)


def standardised_fit_data(
    real: RealRows, weights: Float64[np.ndarray, " n"], config: Config, layout: Layout, step: int
) -> StandardisedFitData:
    """Split the data, standardise by all real transitions (uniformly weighted), and set up the minibatches.

    Whether a transition is held out, and its weights of the bootstrap, are drawn once and kept.

    Departs from the published code: the change of state is that of each transition's own step, so jumps to a new
    episode do not enter its scale.
    """
    options, double, seed = config.dynamics, config.double, config.seed
    training, holdout = split_rows(real, replace(options, holdout="fixed"), seed, step)
    collected = int(real.number[-1]) + 1
    bootstrap = generator(seed, Purpose.BOOTSTRAP).standard_exponential((collected, options.num_members), np.float32)
    obs, action = np.split(layout.inputs(real.rows), [layout.obs_size], axis=1)
    x, normaliser = _standardise(obs)
    y, targets = _standardise(layout.targets(real.rows))
    columns = (np.concatenate([x, action], axis=1), y, bootstrap[real.number])
    capacity, most = capacity_of(len(y)), double.epoch_batches
    count = max(1, min(most, len(training) // options.batch_size))
    epochs = _epochs(training, weights[training], (count, options.batch_size), seed, step)
    return StandardisedFitData(
        rows=StandardisedRows(*(jnp.asarray(padded(column, capacity)) for column in columns)),
        minibatches=(padded(rows, most) for rows in epochs),
        num_batches=np.int32(count),
        holdout=holdout,
        normaliser=normaliser,
        targets=targets,
    )


def _standardise(columns: Float[np.ndarray, "n columns"]) -> tuple[Float64[np.ndarray, "n columns"], Normaliser]:
    mean, scale = moments(columns)
    scale = np.maximum(scale, LEAST_SCALE)
    return (columns - mean) / scale, Normaliser(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))


def _epochs(
    training: Int[np.ndarray, " n"], weights: Float64[np.ndarray, " n"], shape: tuple[int, int], seed: int, step: int
) -> Iterator[Int[np.ndarray, "batches b"]]:
    """Yield the row numbers of one epoch after the other.

    Rows come in passes. A pass is as long as there are rows, and has a random order of its own. A row that should come
    c times per pass comes as often as c rounded down or up; with uniform weights, every row comes once.
    """
    limits = np.cumsum(weights if weights.sum() > 0 else np.ones(len(weights)))
    rest, number, needed = np.zeros(0, np.int64), 0, math.prod(shape)
    while True:
        while len(rest) < needed:
            rng = generator(seed, Purpose.MODEL_ROWS, step, number)
            marks = (np.arange(len(training)) + rng.random()) / len(training) * limits[-1]
            chosen = np.minimum(np.searchsorted(limits, marks, side="right"), len(training) - 1)
            rest, number = np.concatenate([rest, training[rng.permutation(chosen)]]), number + 1
        yield rest[:needed].reshape(shape).astype(np.int32)
        rest = rest[needed:]


def holdout_scores(
    score_rows: ScoreRows, network: StandardisedNetwork, data: StandardisedFitData
) -> Float64[np.ndarray, " held"]:
    """Return the score of each held-out transition; lower is better."""
    found: list[np.ndarray] = []
    for first in range(0, len(data.holdout), SCORED_ROWS):
        part = data.holdout[first : first + SCORED_ROWS]
        index = padded(part, SCORED_ROWS)
        found.append(np.asarray(score_rows(network, data.rows.x[index], data.rows.y[index]))[: len(part)])
    scores = np.concatenate(found).astype(np.float64)
    if not np.isfinite(scores).all():
        raise Diverged("model/holdout_error is not finite: the model has diverged")
    return scores


def paired_p_value(best: Float64[np.ndarray, " n"], found: Float64[np.ndarray, " n"]) -> float:
    """Return how likely scores so much lower than the best ones would be if nothing had been gained.

    A paired one-sided test: Student's t-test for fewer than 1000 rows, else a z-test.
    """
    from scipy.special import ndtr, stdtr  # slow to import, and only double-horizon runs need it

    gain = best - found
    spread = gain.std(ddof=1) if len(gain) > 1 else 0.0
    if spread == 0.0:
        return 0.0 if gain.mean() > 0 else 1.0
    ratio = gain.mean() * math.sqrt(len(gain)) / spread
    return float(stdtr(len(gain) - 1, -ratio) if len(gain) < 1000 else ndtr(-ratio))
