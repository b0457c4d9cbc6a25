"""Learned termination: a classifier of terminal transitions, for environments whose rule is not known.

Real rules are mostly thresholds on single entries of the next state, and transitions on either side of a threshold are
close together, so networks alone blur it. Each fit therefore first searches for such thresholds exactly. A small
ensemble then sees a step (s, a, s') with the thresholds it exceeds, and learns what remains. Each network leaves out
its own fold of the data, and the probability is calibrated on what was left out [Platt 1999].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float32, Float64, Int, PRNGKeyArray

from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.errors import Diverged
from pdml.core.nets import Layer, Mlp, init_xavier, mlp
from pdml.core.optim import descend
from pdml.core.pytree import pytree
from pdml.core.rng import Purpose, generator
from pdml.core.transition import Layout
from pdml.core.types import Metrics
from pdml.data.replay import RealRows
from pdml.models.ensemble import Normaliser, normalise


@dataclass(frozen=True)
class TerminationConfig:
    """Settings of the classifier."""

    num_members: int = 5
    """Networks; each leaves out its own fold of the data."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    sparsity: float = 1.0
    """Group penalty on the weights of each input: removes inputs that do not matter."""
    half_batch: int = 64
    """Terminal transitions per minibatch, and as many others."""
    round_steps: int = 250
    """Gradient steps per round."""
    first_rounds: int = 8
    later_rounds: int = 1
    least_gain: int = 3
    """Least number of terminal minus other transitions beyond a threshold for it to be used."""


OPTIONS = TerminationConfig()


@pytree
class TerminationState:
    """All of the classifier that changes while it learns."""

    networks: tuple[Mlp, ...]
    opt: optax.OptState
    normaliser: Normaliser
    limits: Float[Array, " two_inputs"]
    """Thresholds of each input and of each input's negative; infinite where there is none."""
    slope: Float[Array, ""]
    log_odds: Float[Array, ""]
    """The calibrated log-odds are `slope` times the networks' mean (trained on balanced data) plus this.

    Infinite while all transitions are of one kind: then the probability is exactly 0 or 1.
    """


class LearnedTermination(NamedTuple):
    """The part: how the classifier is initialised, fitted to real transitions, and asked."""

    init: Callable[[PRNGKeyArray], TerminationState]
    fit: Callable[[TerminationState, RealRows, int], tuple[TerminationState, Metrics]]
    probability: Callable[
        [TerminationState, Float[Array, "b obs"], Float[Array, "b action"], Float[Array, "b obs"]], Float[Array, " b"]
    ]
    """That a step (obs, action, next_obs) terminated the episode; calibrated to the frequency in real data."""
    compiled: dict[str, Callable[..., Any]]
    """The compiled functions inside `fit`, for measurements."""


def learned_termination(config: Config, layout: Layout, options: TerminationConfig = OPTIONS) -> LearnedTermination:
    """Build the classifier."""
    seed, size = config.seed, 2 * layout.obs_size + layout.action_size
    sizes = (3 * size, *options.hidden_sizes, 1)
    adam = optax.adam(options.learning_rate)

    def init(key: PRNGKeyArray) -> TerminationState:
        networks = tuple(init_xavier(k, sizes) for k in jax.random.split(key, options.num_members))
        return TerminationState(
            networks,
            adam.init(cast(Any, networks)),
            Normaliser(jnp.zeros((size,)), jnp.ones((size,))),
            jnp.full((2 * size,), jnp.inf, jnp.float32),
            jnp.ones(()),
            jnp.full((), -jnp.inf, jnp.float32),
        )

    def probability(state: TerminationState, obs: Array, action: Array, next_obs: Array) -> Float[Array, " b"]:
        x = encode(jnp.concatenate([obs, action, next_obs], axis=-1), state.normaliser, state.limits)
        return jax.nn.sigmoid(state.slope * network_log_odds(state.networks, x).mean(axis=1) + state.log_odds)

    train = jax.jit(make_train(options, adam))
    balanced_log_odds = jax.jit(
        lambda networks, x, normaliser, limits: network_log_odds(networks, encode(x, normaliser, limits))
    )

    def fit(state: TerminationState, real: RealRows, step: int) -> tuple[TerminationState, Metrics]:
        """Search for thresholds, train on balanced minibatches from the last weights, and calibrate."""
        x, ended = step_inputs(real, layout), real.rows[:, -1] > 0.5
        terminal, others = np.flatnonzero(ended), np.flatnonzero(~ended)
        if len(terminal) == 0 or len(others) == 0:
            return _certain(state, len(terminal) > 0), _metrics(ended, np.full(len(ended), float(len(terminal) > 0)))
        fold = left_out_by(real, ended, options.num_members, seed)
        mean, scale = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
        scale = np.where(scale < 1e-12, 1.0, scale)
        normaliser = Normaliser(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))
        limits = jnp.asarray(find_limits(x[terminal], x[others], options.least_gain))
        networks, opt = state.networks, state.opt
        rng, shape = generator(seed, Purpose.ENDING_ROWS, step), (options.round_steps, options.half_batch)
        for _ in range(options.later_rounds if np.isfinite(state.log_odds) else options.first_rounds):
            halves = [half[rng.integers(len(half), size=shape)] for half in (terminal, others)]
            chosen = np.concatenate(halves, axis=1)
            networks, opt = train(networks, opt, x[chosen], fold[chosen], normaliser, limits)
        logits = in_chunks(lambda rows, _: balanced_log_odds(networks, rows, normaliser, limits), x).astype(np.float64)
        if not np.isfinite(logits).all():
            raise Diverged("a logit is not finite: the learned termination has diverged")
        slope, log_odds = 1.0, float(np.log(len(terminal) / len(others)))
        unseen = np.where(fold < 0, logits.mean(axis=1), logits[np.arange(len(x)), fold])
        if fold[0] >= 0:
            slope, log_odds = calibrate(unseen, ended)
        calibration = jnp.asarray(slope, jnp.float32), jnp.asarray(log_odds, jnp.float32)
        found = TerminationState(networks, opt, normaliser, limits, *calibration)
        from scipy.special import expit  # slow to import, and not every run learns its termination

        return found, _metrics(ended, expit(slope * unseen + log_odds))

    return LearnedTermination(jax.jit(init), fit, probability, {"train": train, "balanced_log_odds": balanced_log_odds})


def step_inputs(real: RealRows, layout: Layout) -> Float32[np.ndarray, "n inputs"]:
    """Return [obs, action, next_obs], a fresh array."""
    reward = layout.obs_size + layout.action_size
    return np.delete(real.rows[:, :-1], reward, axis=1)


def encode(
    x: Float[Array, "b inputs"], normaliser: Normaliser, limits: Float[Array, " two_inputs"]
) -> Float[Array, "b encoded"]:
    """Return what the networks see: standardised inputs, and which limits they are beyond."""
    beyond = jnp.concatenate([x, -x], axis=1) > limits[None]
    return jnp.concatenate([normalise(normaliser, x), beyond.astype(jnp.float32)], axis=1)


def network_log_odds(networks: tuple[Mlp, ...], x: Float[Array, "b encoded"]) -> Float[Array, "b members"]:
    """Return each network's log-odds that a step was terminal, as if half of all steps were."""
    return jnp.concatenate([mlp(network, x) for network in networks], axis=1)


def make_train(options: TerminationConfig, adam: optax.GradientTransformation) -> Callable[..., Any]:
    """Build one round of training."""
    shrinkage = options.learning_rate * options.sparsity
    target = jnp.repeat(jnp.asarray([1.0, 0.0]), options.half_batch)

    def loss(networks: tuple[Mlp, ...], x: Array, fold: Array) -> Float[Array, ""]:
        logits = network_log_odds(networks, x)
        entropy = jax.nn.softplus(logits) - target[:, None] * logits
        learns = fold[:, None] != jnp.arange(len(networks), dtype=jnp.int32)[None]
        return jnp.where(learns, entropy, 0.0).mean(axis=0).sum()

    def thinned(network: Mlp) -> Mlp:
        """Shrink the weights of every input by the same length; those of useless inputs become zero."""
        first, *rest = network
        length = jnp.sqrt(jnp.square(first.w).sum(axis=1, keepdims=True))
        return (Layer(first.w * jnp.maximum(0.0, 1.0 - shrinkage / jnp.maximum(length, 1e-12)), first.b), *rest)

    def train(
        networks: tuple[Mlp, ...],
        opt: optax.OptState,
        x: Float[Array, "steps b inputs"],
        fold: Int[Array, "steps b"],
        normaliser: Normaliser,
        limits: Float[Array, " two_inputs"],
    ) -> tuple[tuple[Mlp, ...], optax.OptState]:
        """Take one step on each minibatch, the first half of which is terminal."""

        def step(carry: tuple[tuple[Mlp, ...], Any], batch: tuple[Array, Array]):
            networks, opt = carry
            grads = jax.grad(loss)(networks, encode(batch[0], normaliser, limits), batch[1])
            networks, opt = descend(adam, grads, opt, networks)
            return (tuple(thinned(network) for network in networks), opt), None

        return jax.lax.scan(step, (networks, opt), (x, fold))[0]

    return train


def left_out_by(real: RealRows, ended: Bool[np.ndarray, " n"], members: int, seed: int) -> Int[np.ndarray, " n"]:
    """Return the network that never learns from each row, the same at every fit; -1 if one would see one kind only."""
    fold = generator(seed, Purpose.ENDING_ROWS, 0, part=1).integers(members, size=int(real.number[-1]) + 1)
    fold = fold[real.number].astype(np.int32)
    if any(len(np.unique(fold[ended == kind])) < 2 for kind in (True, False)):
        return np.full(len(fold), -1, np.int32)
    return fold


def find_limits(
    terminal: Float32[np.ndarray, "t inputs"], others: Float32[np.ndarray, "o inputs"], least_gain: int
) -> Float32[np.ndarray, " two_inputs"]:
    """Return thresholds of inputs, and of inputs' negatives, beyond which most rows are terminal.

    Greedy: the next threshold is the one beyond which terminal rows that no earlier threshold covers outnumber the
    others most; ties go to the one with most terminal rows in all. A threshold lies halfway between the last row that
    it covers and the next one.
    """
    count, size = terminal.shape
    most = min(len(others), count + 1)  # a limit with more other rows beyond it is never taken
    both = np.concatenate([terminal, -terminal], axis=1).T
    order = np.argsort(-both, axis=1, kind="stable")
    value = np.take_along_axis(both, order, axis=1)
    nearest = np.empty((2 * size, most), np.float32)  # the outermost other rows, in ascending order
    for i, column in enumerate(np.ascontiguousarray(others.T)):
        nearest[i] = np.sort(np.partition(column, len(column) - most)[len(column) - most :])
        nearest[size + i] = -np.sort(np.partition(column, most - 1)[:most])[::-1]
    inside = np.stack([np.searchsorted(a, v) for a, v in zip(nearest, value, strict=True)])
    possible = (inside > 0) & (value > np.pad(value, ((0, 0), (0, 1)), constant_values=-np.inf)[:, 1:])
    others_beyond = most - inside
    equals = (np.arange(1, count + 1)[None] - others_beyond) / (2 * count + 2)  # less than 1: decides among equals only
    limits = np.full(2 * size, np.inf, np.float32)
    uncovered = np.ones(count, bool)
    for _ in range(2 * size):
        gain = np.where(possible, np.cumsum(uncovered[order], axis=1) - others_beyond, 0)
        i, last = np.unravel_index(np.argmax(gain + equals), gain.shape)
        if gain[i, last] < least_gain:
            break
        inner = nearest[i, inside[i, last] - 1]
        if last + 1 < count:
            inner = max(inner, value[i, last + 1])
        middle = np.float32(0.5 * (float(inner) + float(value[i, last])))
        limits[i] = middle if middle < value[i, last] else inner
        uncovered &= both[i] <= limits[i]
        possible[i] = False
    return limits


def calibrate(logits: Float64[np.ndarray, " n"], ended: Bool[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the slope, at most 1, and the shift that turn log-odds of balanced data into those of all data.

    The shift corrects the prior, the slope overconfidence. The targets are those of [Platt 1999], so that both stay
    finite where the two kinds are separable.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    count = int(ended.sum())
    target = np.where(ended, (count + 1) / (count + 2), 1 / (len(ended) - count + 2))

    def entropy(found: np.ndarray) -> tuple[float, np.ndarray]:
        odds = found[0] * logits + found[1]
        excess = (expit(odds) - target) / len(odds)
        value = (np.logaddexp(0.0, odds) - target * odds).mean()
        return float(value), np.array([excess @ logits, excess.sum()])

    start = np.array([1.0, np.log(count / (len(ended) - count))])
    best = minimize(entropy, start, jac=True, method="L-BFGS-B", bounds=[(0.0, 1.0), (None, None)])
    return float(best.x[0]), float(best.x[1])


def _certain(state: TerminationState, ended: bool) -> TerminationState:
    """Return a classifier with a single answer; its networks stay as they are."""
    log_odds = jnp.asarray(np.inf if ended else -np.inf, jnp.float32)
    return TerminationState(state.networks, state.opt, state.normaliser, state.limits, jnp.ones(()), log_odds)


def _metrics(ended: Bool[np.ndarray, " n"], probability: Float64[np.ndarray, " n"]) -> Metrics:
    """Return counts, and precision and recall at 0.5 by networks that have not learned from the rows."""
    hits = float((ended & (probability > 0.5)).sum())
    return {
        "ending/terminal_rows": float(ended.sum()),
        "ending/precision": hits / max(1.0, float((probability > 0.5).sum())),
        "ending/recall": hits / max(1.0, float(ended.sum())),
        "ending/rate": float(probability.mean()),
    }
