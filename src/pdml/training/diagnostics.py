"""The model's error on fresh steps of the current policy, which are counted separately and never learned from.

[Wang et al. 2023, Sec. 3 and 5.4]: current error, overall error and compounding error. The paper does not define its L2
error. Here it is the mean Euclidean distance between the real next state and the mean of the elites' means, without the
reward; the mean squared error is reported beside it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, PRNGKeyArray

from pdml.core.batching import in_chunks
from pdml.core.reservoir import reservoir_slots
from pdml.core.rng import Purpose, env_seed, generator, key
from pdml.core.transition import Layout
from pdml.core.types import MeanPredictions
from pdml.models.ensemble import elite_means

WINDOWS = 20
"""Windows of fresh steps along which the compounding error is measured."""

DEPTH = 20
"""Steps per window."""

KEPT_ROWS = 20_000
"""Fresh steps of past policies that are kept, uniformly over all, to measure the overall error."""


SampleOne = Callable[[np.ndarray, PRNGKeyArray], Array]
"""From one observation and a key: an action."""


class FreshSteps(NamedTuple):
    """Fresh steps of one policy, in the order in which they were taken."""

    rows: Float32[np.ndarray, "n width"]
    episode: Int[np.ndarray, " n"]


class StateErrors(NamedTuple):
    """Mean error of predicted next states."""

    l2: float
    mse: float


class FreshReservoir:
    """A uniform reservoir over the fresh steps of all policies so far."""

    def __init__(self, width: int, capacity: int = KEPT_ROWS):
        self.rows = np.zeros((0, width), np.float32)
        self.count = 0
        """Steps ever offered: the real steps that diagnoses took."""
        self._capacity = capacity

    def add(self, rows: Float32[np.ndarray, "n width"], seed: int, step: int) -> None:
        """Offer fresh steps."""
        draws = generator(seed, Purpose.PROBE_RESERVOIR, step).random(len(rows))
        slot = reservoir_slots(self.count, draws, self._capacity)
        self.count += len(rows)
        grown = np.zeros((min(self.count, self._capacity), rows.shape[1]), np.float32)
        grown[: len(self.rows)] = self.rows
        taken = slot < self._capacity
        grown[slot[taken]] = rows[taken]
        self.rows = grown

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that `restore` needs."""
        return {"rows": self.rows.copy(), "count": np.array([self.count])}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take over what `arrays` returned."""
        self.rows, self.count = arrays["rows"].copy(), int(arrays["count"][0])


class Diagnosis(NamedTuple):
    """A part: takes fresh steps and measures the model on them."""

    collect: Callable[[gymnasium.Env, SampleOne, int, int, int], FreshSteps]
    """From environment, policy (obs, key) -> action, seed, step and the number of steps."""
    errors: Callable[[Any, Float32[np.ndarray, "n width"]], StateErrors]
    compounding: Callable[[Any, FreshSteps], Float[np.ndarray, " depth"]]


def diagnosis(layout: Layout, means: MeanPredictions = elite_means) -> Diagnosis:
    """Build the measurements; each is compiled once."""

    def expected(model: Any, obs: Float[Array, "b obs"], action: Float[Array, "b a"]) -> Float[Array, "b obs"]:
        """Return the next state by the mean of the networks' means."""
        return obs + means(model, obs, action)[:, :, 1:].mean(axis=0)

    def differences(model: Any, rows: Float[Array, "b width"]) -> Float[Array, "b obs"]:
        batch = layout.unpack(rows)
        return expected(model, batch.obs, batch.action) - batch.next_obs

    def along(
        model: Any, obs: Float[Array, "w obs"], actions: Float[Array, "depth w a"]
    ) -> Float[Array, "depth w obs"]:
        """Follow given actions in the model."""

        def step(state: Array, action: Array) -> tuple[Array, Array]:
            state = expected(model, state, action)
            return state, state

        return jax.lax.scan(step, obs, actions)[1]

    measured, followed = jax.jit(differences), jax.jit(along)

    def errors(model: Any, rows: Float32[np.ndarray, "n width"]) -> StateErrors:
        difference = in_chunks(lambda part, i: measured(model, part), rows, 1024).astype(np.float64)
        return StateErrors(float(np.linalg.norm(difference, axis=1).mean()), float(np.square(difference).mean()))

    def compounding(model: Any, probe: FreshSteps) -> Float[np.ndarray, " depth"]:
        """Return the mean distance after 1, 2, ... steps of the same actions from the same state.

        Averaged at each depth over windows whose episode is at least that long; NaN where there is none.
        """
        starts, lengths = windows(probe.episode)
        places = np.minimum(starts[None] + np.arange(DEPTH)[:, None], len(probe.rows) - 1)
        batch = layout.unpack(jnp.asarray(probe.rows[places]))
        states = np.asarray(followed(model, batch.obs[0], batch.action))
        distance = np.linalg.norm((states - np.asarray(batch.next_obs)).astype(np.float64), axis=-1)
        inside = np.arange(DEPTH)[:, None] < lengths[None]
        total = np.where(inside, distance, 0.0).sum(axis=1)
        return np.where(inside.any(axis=1), total, np.nan) / np.maximum(inside.sum(axis=1), 1)

    return Diagnosis(
        lambda env, act, seed, step, count: collect_fresh_steps(layout, env, act, seed, step, count),
        errors,
        compounding,
    )


def windows(episode: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " windows"], Int[np.ndarray, " windows"]]:
    """Return evenly spaced starts, and how many steps from each belong to its episode, at most `DEPTH`."""
    starts = np.linspace(0, len(episode) - 1, WINDOWS).round().astype(int)
    ends = np.searchsorted(episode, episode[starts], side="right")
    return starts, np.minimum(ends - starts, DEPTH)


def collect_fresh_steps(
    layout: Layout, env: gymnasium.Env, act: SampleOne, seed: int, step: int, count: int
) -> FreshSteps:
    """Take fresh steps, starting with a new episode; every draw depends on seed and step only."""
    rows = np.zeros((count, layout.width), np.float32)
    episode = np.zeros(count, int)
    number, obs, ended = -1, np.zeros(layout.obs_size, np.float32), True
    keys = jax.random.split(key(seed, Purpose.PROBE_ACT, step), count)
    for i in range(count):
        if ended:
            number += 1
            start, _ = env.reset(seed=env_seed(seed, Purpose.PROBE_EPISODE, step, number))
            obs = np.asarray(start, np.float32)
        action = np.array(act(obs, keys[i]))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        next_obs = np.asarray(next_obs, np.float32)
        rows[i] = np.concatenate([obs, action, [float(reward)], next_obs, [float(terminated)]])
        episode[i] = number
        obs, ended = next_obs, terminated or truncated
    return FreshSteps(rows, episode)
