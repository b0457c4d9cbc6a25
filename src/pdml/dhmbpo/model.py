r"""The dynamics model of double-horizon learning, and its fit.

[Kubo et al. 2025]. An ensemble that predicts [reward, change of state], each entry by its own scale, with one noise a
member and entry. Members see the same minibatches; what makes them differ is how they began and how much each row
counts for each of them, drawn once for good.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray
from scipy.special import ndtr, stdtr

from pdml.config.schema import Config
from pdml.core import signals
from pdml.core.errors import Diverged
from pdml.core.nets import Mlp
from pdml.core.pytree import copy, pytree
from pdml.core.rng import Purpose, generator, key
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.dhmbpo.networks import Dropout, Frozen, init_he, smooth_mlp
from pdml.models.ensemble import Normaliser, normalise
from pdml.models.fit import LEAST_SCALE, Dynamics, capacity_of, moments, padded, split_rows

LEAST_LOG_STD = math.log(1e-3)
"""Below it the likelihood no longer pays for less noise."""

ADAM = optax.scale_by_adam()

JUDGED_ROWS = 1024
"""Held-out rows a call."""


@pytree
class SmoothNetwork:
    """What gradient descent changes, of all members or of one."""

    members: Mlp | tuple[Frozen, ...]
    """All in one, with an axis for them in front."""
    log_std: Float[Array, "*members outputs"]
    """Of each member's noise, in units of the targets' scale."""


@pytree
class SmoothModel:
    """All of the model that changes while it learns; there is no optimiser, since each fit begins a new one."""

    network: SmoothNetwork
    normaliser: Normaliser
    """Of observations, over all real rows."""
    targets: Normaliser
    """Of [reward, change of state]."""
    ending: Any = ()
    """What `pdml.models.learned_termination` keeps where the end of episodes is learned; empty where it is known."""


def norms(layers: int) -> tuple[float, ...]:
    """Return the eps of the layer norm before each layer but the first: less and less, so the first ones hardly act."""
    return tuple(10.0**-i for i in range(layers - 1))


def inputs(model: SmoothModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"]) -> Float[Array, "b inputs"]:
    """Return what the networks see."""
    return jnp.concatenate([normalise(model.normaliser, obs), action], axis=-1)


def member_outputs(network: SmoothNetwork, x: Float[Array, "b inputs"]) -> Float[Array, "members b outputs"]:
    """Return what every member says of the same inputs."""
    each = jnp.broadcast_to(x[None], (len(network.log_std), *x.shape))
    return smooth_mlp(network.members, each, norms(len(network.members)))


def member_means(
    model: SmoothModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"]
) -> Float[Array, "members b outputs"]:
    """Return the mean of every member: reward and change of state, in their own units."""
    return (
        member_outputs(model.network, inputs(model, obs, action)) * model.targets.scale[None, None]
        + model.targets.mean[None, None]
    )


class Draws(NamedTuple):
    """What is random in an imagined step."""

    order: Int[Array, " members"]
    """Which group of rows each member steps."""
    noise: Float[Array, "b obs"]


def imagined_step(
    model: SmoothModel, obs: Float[Array, "b obs"], action: Float[Array, "b a"], draws: Draws
) -> tuple[Float[Array, " b"], Float[Array, "b obs"]]:
    """Return the mean reward and a sample of the next state.

    Rows stand in as many equal groups as there are members; which member steps which group is drawn anew at every
    step, so a row costs one network. The noise is that of the member whose mean it is added to.
    """
    members, targets = model.network.members, model.targets
    x = inputs(model, obs, action).reshape(len(draws.order), -1, obs.shape[1] + action.shape[1])[draws.order]
    mean = smooth_mlp(members, x, norms(len(members)))
    noise = jnp.exp(model.network.log_std)[:, None, 1:] * draws.noise.reshape(*mean.shape[:2], -1)
    back = jnp.argsort(draws.order)
    reward = mean[:, :, 0][back].reshape(-1) * targets.scale[0] + targets.mean[0]
    change = (mean[:, :, 1:] + noise)[back].reshape(obs.shape) * targets.scale[None, 1:] + targets.mean[None, 1:]
    return reward, obs + change


class FitRows(NamedTuple):
    """Columns of the rows of a fit, standardised; `counted` is how much a row counts for each member."""

    x: Float[Array, "capacity inputs"]
    y: Float[Array, "capacity outputs"]
    counted: Float[Array, "capacity members"]


def standardised(config: Config, layout: Layout) -> Dynamics:
    """Build the model and its fit."""
    options, double, seed = config.dynamics, config.double, config.seed
    outputs = layout.obs_size + 1
    sizes = (layout.obs_size + layout.action_size, *options.hidden_sizes, outputs)

    def init(key: PRNGKeyArray) -> SmoothModel:
        members = jax.vmap(lambda key: init_he(key, sizes, bias=0.5))(jax.random.split(key, options.num_members))
        network = SmoothNetwork(members, jnp.zeros((options.num_members, outputs)))
        blank = [Normaliser(jnp.zeros((n,)), jnp.ones((n,))) for n in (layout.obs_size, outputs)]
        return SmoothModel(network, *blank)

    train_epoch, judged = jax.jit(make_train(config), donate_argnums=(0, 1)), jax.jit(judge)

    def fit(
        state: SmoothModel, real: RealRows, weights: Float64[np.ndarray, " n"], agent: Any, step: int
    ) -> tuple[SmoothModel, dict[str, float]]:
        """Train until held-out rows are no longer predicted better; keep what is better beyond doubt.

        After every few epochs a paired test compares the scores of held-out rows with the best so far. If no network
        of this fit was significantly better than the one that it began with, that one stays.
        """
        data = prepare(real, weights, config, layout, step)
        network, opt, best = copy(state.network), ADAM.init(cast(Any, state.network)), copy(state.network)
        reward_noise = np.float32(double.reward_noise / data.targets.scale[0])
        best_scores, factor = _scores(judged, network, data), double.first_factor if step <= config.warmup_steps else 1
        epoch, waited, kept = 0, 0, 0
        while epoch < factor * options.max_epochs and waited <= factor * options.patience:
            draw = jax.random.fold_in(key(seed, Purpose.MODEL_ROWS, step), epoch)
            chosen = next(data.minibatches)
            network, opt = train_epoch(network, opt, data.rows, chosen, data.num_batches, reward_noise, draw)
            signals.check()
            epoch += 1
            if epoch % double.judge_every and epoch < factor * options.max_epochs:
                continue
            scores = _scores(judged, network, data)
            doubt = chance(best_scores, scores)
            waited = 0 if doubt < 0.5 else waited + double.judge_every
            if doubt < double.significance:
                best, best_scores, kept = copy(network), scores, epoch
        metrics = {
            "model/holdout_error": float(best_scores.mean()),
            "model/epochs": float(epoch),
            "model/batches": float(epoch * data.num_batches),
            "model/capped": float(waited <= factor * options.patience),
            "model/best_epoch": float(kept),
            "model/noise": float(np.exp(np.asarray(best.log_std)).mean()),
        }
        return replace(state, network=best, normaliser=data.normaliser, targets=data.targets), metrics

    return Dynamics(jax.jit(init), fit, {"train_epoch": train_epoch, "judge": judged}, member_means)


def likelihood_loss(
    member: SmoothNetwork,
    counted: Float[Array, " b"],
    draw: PRNGKeyArray,
    x: Float[Array, "b inputs"],
    y: Float[Array, "b outputs"],
    reward_noise: Float[Array, ""],
    dropout: tuple[float, ...],
) -> Float[Array, ""]:
    r"""$\overline{e \sum_d \frac12 (\mu_d - y_d)^2 e^{-2\lambda_d} + \max(\lambda_d, \lambda_0)}$ of one member.

    Args:
        counted: $e$, how much each row counts for the member.
        reward_noise: Standard deviation of what is added to reward targets, in units of their scale.
    """
    reward_key, drop_key = jax.random.split(draw)
    jitter = reward_noise * jax.random.normal(reward_key, counted.shape)
    drop = Dropout(dropout, jax.random.bits(drop_key, (), jnp.uint32))
    mean = smooth_mlp(member.members, x, norms(len(member.members)), drop)
    gap = (mean - y).at[:, 0].add(-jitter)
    log_std = member.log_std[None]
    error = 0.5 * jnp.square(gap) * jnp.exp(-2.0 * log_std) + jnp.maximum(log_std, LEAST_LOG_STD)
    return (counted * error.sum(axis=1)).mean()


def slopes(
    network: SmoothNetwork,
    batch: FitRows,
    reward_noise: Float[Array, ""],
    dropout: tuple[float, ...],
    draw: PRNGKeyArray,
) -> SmoothNetwork:
    """Return the gradient of the sum of all members' losses.

    One member after the other: what lies between the passes of one stays in a core's cache, that of all would not.
    """

    def slope(each: tuple[SmoothNetwork, Array, PRNGKeyArray]) -> SmoothNetwork:
        return jax.grad(likelihood_loss)(*each, batch.x, batch.y, reward_noise, dropout)

    return jax.lax.map(slope, (network, batch.counted.T, jax.random.split(draw, len(network.log_std))))


def make_train(config: Config) -> Callable[..., tuple[SmoothNetwork, Any]]:
    """Build an epoch of descent with decoupled weight decay."""
    options, double = config.dynamics, config.double

    def moved(network: Any, move: Any, decay: float) -> Any:
        return jax.tree.map(lambda x, dx: x - options.learning_rate * (dx + decay * x), network, move)

    def train(
        network: SmoothNetwork,
        opt: Any,
        rows: FitRows,
        chosen: Int[Array, "most b"],
        count: Int[Array, ""],
        reward_noise: Float[Array, ""],
        draw: PRNGKeyArray,
    ) -> tuple[SmoothNetwork, Any]:
        """Descend once on each of the first `count` minibatches."""

        def step(i: Array, carry: tuple[SmoothNetwork, Any]) -> tuple[SmoothNetwork, Any]:
            network, opt = carry
            batch = FitRows(*(column[chosen[i]] for column in rows))
            grads = slopes(network, batch, reward_noise, double.dropout, jax.random.fold_in(draw, i))
            with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
                moves, opt = cast(Any, ADAM.update(cast(Any, grads), opt))
            pairs = zip(network.members, moves.members, options.weight_decay, strict=True)
            log_std = moved(network.log_std, moves.log_std, double.noise_decay)
            return SmoothNetwork(tuple(moved(*layer) for layer in pairs), log_std), opt

        return jax.lax.fori_loop(0, count, step, (network, opt))

    return train


def judge(network: SmoothNetwork, x: Float[Array, "b inputs"], y: Float[Array, "b outputs"]) -> Float[Array, " b"]:
    r"""$\sum_d \frac12 (y_d - \bar\mu_d)^2 / v_d + \frac12 \ln v_d$, $v$ being the members' spread and their noise."""
    means = member_outputs(network, x)
    spread = means.var(axis=0, ddof=1) if len(means) > 1 else jnp.zeros_like(y)
    variance = spread + jnp.exp(2.0 * network.log_std.mean(axis=0))[None]
    return (0.5 * jnp.square(y - means.mean(axis=0)) / variance + 0.5 * jnp.log(variance)).sum(axis=1)


class FitData(NamedTuple):
    """What one fit needs, padded so that shapes change only when the data have doubled."""

    rows: FitRows
    minibatches: Iterator[Int[np.ndarray, "most b"]]
    """The row numbers of one epoch after the other."""
    num_batches: np.int32
    holdout: Int[np.ndarray, " held"]
    normaliser: Normaliser
    targets: Normaliser


def prepare(real: RealRows, weights: Float64[np.ndarray, " n"], config: Config, layout: Layout, step: int) -> FitData:
    """Standardise by all real rows alike, label rows once and for all, and set up the minibatches.

    The change of state is that of each row's own step, so no jump to a new episode is among them.
    """
    options, double, seed = config.dynamics, config.double, config.seed
    training, holdout = split_rows(real, replace(options, holdout="fixed"), seed, step)
    last = int(real.number[-1]) + 1
    counted = generator(seed, Purpose.BOOTSTRAP).standard_exponential((last, options.num_members), np.float32)
    obs, y = real.rows[:, : layout.obs_size], layout.targets(real.rows)
    action = real.rows[:, layout.obs_size : layout.obs_size + layout.action_size]
    (mean, scale), (target_mean, target_scale) = (moments(columns) for columns in (obs, y))
    scale, target_scale = (np.maximum(found, LEAST_SCALE) for found in (scale, target_scale))
    capacity = capacity_of(len(y))
    x = np.concatenate([(obs - mean) / scale, action], axis=1)
    columns = (x, (y - target_mean) / target_scale, counted[real.number])
    most = double.epoch_batches
    count = max(1, min(most, len(training) // options.batch_size))
    shape = (count, options.batch_size)
    return FitData(
        rows=FitRows(*(jnp.asarray(padded(column, capacity)) for column in columns)),
        minibatches=(padded(rows, most) for rows in _minibatches(training, weights[training], shape, seed, step)),
        num_batches=np.int32(count),
        holdout=holdout,
        normaliser=Normaliser(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32)),
        targets=Normaliser(jnp.asarray(target_mean, jnp.float32), jnp.asarray(target_scale, jnp.float32)),
    )


def _minibatches(
    training: np.ndarray, weights: np.ndarray, shape: tuple[int, int], seed: int, step: int
) -> Iterator[Int[np.ndarray, "batches b"]]:
    """Yield the row numbers of one epoch after the other.

    Rows come in passes, each in a random order of its own and as long as there are rows: one that should come c times
    comes as often as c rounded down or up. Rows that weigh alike come once.
    """
    limits = np.cumsum(weights if weights.sum() > 0 else np.ones(len(weights)))
    rest, number, needed = np.zeros(0, np.int64), 0, math.prod(shape)
    while True:
        while len(rest) < needed:
            drawn = generator(seed, Purpose.MODEL_ROWS, step, number)
            marks = (np.arange(len(training)) + drawn.random()) / len(training) * limits[-1]
            chosen = np.minimum(np.searchsorted(limits, marks, side="right"), len(training) - 1)
            rest, number = np.concatenate([rest, training[drawn.permutation(chosen)]]), number + 1
        yield rest[:needed].reshape(shape).astype(np.int32)
        rest = rest[needed:]


def _scores(judged: Callable[..., Array], network: SmoothNetwork, data: FitData) -> Float64[np.ndarray, " held"]:
    """Return the score of each held-out row; lower is better."""
    found = []
    for first in range(0, len(data.holdout), JUDGED_ROWS):
        part = data.holdout[first : first + JUDGED_ROWS]
        index = padded(part, JUDGED_ROWS)
        found.append(np.asarray(judged(network, data.rows.x[index], data.rows.y[index]))[: len(part)])
    scores = np.concatenate(found).astype(np.float64)
    if not np.isfinite(scores).all():
        raise Diverged("model/holdout_error is not finite: the model has diverged")
    return scores


def chance(best: Float64[np.ndarray, " n"], found: Float64[np.ndarray, " n"]) -> float:
    """Return how likely scores so much lower than the best ones would be if nothing had been gained.

    A paired one-sided test: Student's for fewer than 1000 rows, else the normal one.
    """
    gain = best - found
    spread = gain.std(ddof=1) if len(gain) > 1 else 0.0
    if spread == 0.0:
        return 0.0 if gain.mean() > 0 else 1.0
    ratio = gain.mean() * math.sqrt(len(gain)) / spread
    return float(stdtr(len(gain) - 1, -ratio) if len(gain) < 1000 else ndtr(-ratio))
