"""Fitting the ensemble to real transitions: weighted minibatches, early stopping, elites.

[Janner et al. 2019]; lines 7-8 of Algorithm 2.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray

from pdml.config.schema import Config, DynamicsConfig
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.nets import Mlp, init_truncated
from pdml.core.optim import descend
from pdml.core.pytree import copy
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout
from pdml.core.types import MeanPredictions, Metrics
from pdml.data.replay import RealRows
from pdml.models.ensemble import Bounds, ModelState, Network, Normaliser, Targets, apply_members, elite_means
from pdml.models.fit_data import EnsembleFitData, EnsembleRows, ensemble_fit_data
from pdml.models.losses import Loss

BATCHES_PER_CALL = 250
"""Minibatches between two checks whether the run was asked to stop."""


@runtime_checkable
class FitModel(Protocol):
    """Fits a model to weighted real transitions. The model is consumed; the agent is only read."""

    def __call__(
        self, model: Any, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int, /
    ) -> tuple[Any, Metrics]:
        """Return the fitted model and metrics."""
        ...


class DynamicsModel(NamedTuple):
    """The part: how a model is initialised, fitted and asked for its mean predictions."""

    init: Callable[[PRNGKeyArray], Any]
    fit: FitModel
    compiled: dict[str, Callable[..., Any]]
    """The compiled functions inside `fit`, for measurements."""
    means: MeanPredictions


def ensemble(config: Config, layout: Layout, loss: Loss) -> DynamicsModel:
    """The probabilistic ensemble of MBPO, fitted to weighted minibatches.

    Every network draws its own minibatches, with replacement, in proportion to the transitions' weights. Departs from
    MBPO's code, in which a network draws one bootstrap sample per fit: here it draws new rows for every minibatch.
    """
    options, seed = config.dynamics, config.seed
    adam = optax.adam(options.learning_rate)
    train_epoch = jax.jit(make_train_epoch(loss, adam), donate_argnums=(0, 1))
    holdout_error = jax.jit(make_holdout_error(options, loss))
    keep_best = jax.jit(take_improved, donate_argnums=0)

    def train(network: Network, opt: Any, data: EnsembleFitData, step: int, epoch: int) -> tuple[Network, Any]:
        """Train for one epoch."""
        chosen = data.minibatches(generator(seed, Purpose.MODEL_ROWS, step, epoch))
        for first in range(0, data.num_batches, BATCHES_PER_CALL):
            last = np.int32(min(first + BATCHES_PER_CALL, data.num_batches))
            network, opt = train_epoch(network, opt, data.rows, chosen, np.int32(first), last)
            signals.stop_if_asked()
        return network, opt

    def fit(
        model: ModelState, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int, /
    ) -> tuple[ModelState, Metrics]:
        """Train until no network has improved by 1 % for more than `patience` epochs (lines 7-8).

        The networks are warm-started, inputs are standardised again (and targets, if they are), each network's best
        weights are restored, and the elites are the networks with the least error on the holdout.
        """
        carried = loss.carry(real, agent, step)
        data, normaliser, targets = ensemble_fit_data(real, weights, carried, options, layout, seed, step)
        network, opt = model.network, model.opt
        best = copy(network.members)
        best_error = error = np.full(options.num_members, np.inf, np.float32)
        epoch, waited = 0, 0
        while epoch < options.max_epochs and waited <= options.patience:
            network, opt = train(network, opt, data, step, epoch)
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
        fitted = replace(model, network=Network(best, network.bounds), opt=opt, normaliser=normaliser, targets=targets)
        return replace(fitted, elites=jnp.asarray(elites)), metrics

    compiled = {"train_epoch": train_epoch, "holdout_error": holdout_error, "keep_best": keep_best}
    return DynamicsModel(jax.jit(make_init(options, layout, adam)), fit, compiled, elite_means)


def make_init(
    options: DynamicsConfig, layout: Layout, adam: optax.GradientTransformation
) -> Callable[[PRNGKeyArray], ModelState]:
    """Build the initialisation of the ensemble."""
    inputs, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    sizes = (inputs, *options.hidden_sizes, 2 * outputs)

    def init(key: PRNGKeyArray) -> ModelState:
        members = tuple(init_truncated(k, sizes) for k in jax.random.split(key, options.num_members))
        bounds = Bounds(jnp.full((outputs,), 0.5, jnp.float32), jnp.full((outputs,), -10.0, jnp.float32))
        network = Network(members, bounds)
        normaliser = Normaliser(jnp.zeros((inputs,)), jnp.ones((inputs,)))
        elites = jnp.arange(options.num_elites, dtype=jnp.int32)
        blank = Targets(jnp.zeros((outputs,)), jnp.ones((outputs,)), options.target_norm == "direct")
        targets = None if options.target_norm == "none" else blank
        return ModelState(network, adam.init(cast(Any, network)), normaliser, elites, (), targets=targets)

    return init


def make_train_epoch(loss: Loss, adam: optax.GradientTransformation) -> Callable[..., tuple[Network, Any]]:
    """Build one epoch of gradient descent."""

    def train_epoch(
        network: Network,
        opt: optax.OptState,
        rows: EnsembleRows,
        chosen: Int[Array, "batches members b"],
        first: Int[Array, ""],
        last: Int[Array, ""],
    ) -> tuple[Network, optax.OptState]:
        """Take one step on each minibatch from `first` to before `last`."""

        def step(i: Array, carry: tuple[Network, optax.OptState]) -> tuple[Network, optax.OptState]:
            network, opt = carry
            grads = jax.grad(loss.value)(network, *(column[chosen[i]] for column in rows))
            return descend(adam, grads, opt, network)

        return jax.lax.fori_loop(first, last, step, (network, opt))

    return train_epoch


def make_holdout_error(config: DynamicsConfig, loss: Loss) -> Callable[..., Float[Array, " members"]]:
    """Build the error that decides early stopping and elites."""
    chunk = config.batch_size

    def holdout_error(
        network: Network,
        rows: EnsembleRows,
        holdout: Int[Array, " most"],
        share: Float[Array, " most"],
        num_rows: Int[Array, ""],
    ) -> Float[Array, " members"]:
        """Return each network's mean error over the first `num_rows` of the holdout; `share` is 1 on average."""

        def add(i: Array, total: Array) -> Array:
            index = jax.lax.dynamic_slice_in_dim(holdout, i * chunk, chunk)
            weight = jax.lax.dynamic_slice_in_dim(share, i * chunk, chunk)
            valid = (i * chunk + jnp.arange(chunk)) < num_rows
            x, y, carried = (column[index] for column in rows)
            shared = jnp.broadcast_to(x[None], (config.num_members, *x.shape))
            errors: list[Array] = []
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
    """Return the best weights of each network: the new ones where it improved."""
    return tuple(
        jax.tree.map(lambda old, new, i=i: jnp.where(improved[i], new, old), best[i], members[i])
        for i in range(len(members))
    )
