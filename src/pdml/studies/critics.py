"""Critics against Monte-Carlo returns: what an archived agent expects, and what its policy then gets.

The return is the soft one that defines the critics' value: rewards, and from the second action on the entropy bonus.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, PRNGKeyArray

from pdml.agents.base import critic_values
from pdml.config.methods import METHODS, Feature
from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.errors import UserError
from pdml.core.nets import squash
from pdml.core.rng import Purpose, env_seed, key
from pdml.dhmbpo.measures import negligible_after
from pdml.dhmbpo.updates import scaled_values
from pdml.runs.tensor_file import read_arrays
from pdml.studies.open_run import OpenRun, opened, restored_tree

CHUNK = 1024
"""States whose values are computed at once."""


class FreshEpisode(NamedTuple):
    """One episode of a policy."""

    inputs: Float32[np.ndarray, "n inputs"]
    """Observations and actions."""
    reward: Float64[np.ndarray, " n"]
    log_prob: Float64[np.ndarray, " n"]
    terminated: bool
    """Whether nothing comes after its last step; false: it was truncated."""


class Critics(NamedTuple):
    """A part: how an agent acts, and what its critics expect."""

    act: Callable[[Any, Any, PRNGKeyArray], tuple[Array, Array]]
    """From the state of the agent, one observation and a key: a sampled action and its log-probability."""
    values: Callable[[Any, Any, Any], Array]
    """From the state of the agent, observations and actions: the value of each critic."""


def critic_bias(path: Path, steps: Sequence[int] = (), episodes: int = 10) -> list[dict[str, Any]]:
    """Compare the critics of archived agents with the returns of fresh episodes of their policies.

    Args:
        steps: Archived steps, after warm-up; by default all.
        episodes: Of each policy, with sampled actions.
    """
    with opened(path) as run:
        parts = compiled_critics(run)
        rows = [compare(run, parts, file, step, episodes) for step, file in run.chosen_archives(steps).items()]
        if not any(row["states"] for row in rows):
            tail = negligible_after(run.config.agent.gamma)
            raise UserError(f"run = '{path}': its episodes are truncated before their discount is small ({tail} steps)")
    return rows


def compiled_critics(run: OpenRun) -> Critics:
    """Build the agent's policy and critics."""
    head, is_double = run.parts.recipe.agent.head, METHODS[run.config.method].is_double_horizon
    log_scale = 0.0 if is_double else run.config.log_action_scale

    def act(state: Any, obs: Float[Array, " obs"], key: PRNGKeyArray) -> tuple[Float[Array, " a"], Float[Array, ""]]:
        mean, log_std = head(state.trained_actor if is_double else state.actor, obs[None])
        action, log_prob = squash(mean, log_std, jax.random.normal(key, mean.shape))
        return action[0], log_prob[0] - log_scale

    def values(state: Any, obs: Float[Array, "b obs"], action: Float[Array, "b a"]) -> Float[Array, "critics b"]:
        if is_double:
            return scaled_values(state.critics, state, obs, action)
        return critic_values(state.critics, obs, action)

    return Critics(jax.jit(act), jax.jit(values))


def compare(run: OpenRun, parts: Critics, file: Path, after_warmup: int, episodes: int) -> dict[str, Any]:
    """Compare the critics of one archived agent with the returns of its policy."""
    arrays, note = read_arrays(file)
    state = restored_tree(run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)), arrays, "agent", file)
    fresh = [fresh_episode(run, parts, state, note["step"], number) for number in range(episodes)]
    alpha, gamma = float(np.exp(np.asarray(state.log_alpha))), run.config.agent.gamma
    returns = np.concatenate([soft_returns(one.reward, one.log_prob, alpha, gamma) for one in fresh])
    used = np.concatenate([usable_starts(len(one.reward), one.terminated, gamma) for one in fresh])
    inputs, obs_size = np.concatenate([one.inputs for one in fresh])[used], run.layout.obs_size
    values = np.zeros((0, 1))
    if len(inputs):
        values = in_chunks(lambda rows, _: parts.values(state, rows[:, :obs_size], rows[:, obs_size:]).T, inputs, CHUNK)
    return {
        "step": note["step"],
        "steps_after_warmup": after_warmup,
        "episodes": episodes,
        **agreement(values.T.astype(np.float64), returns[used], target_subset(run.config, values.shape[1])),
        "return_undiscounted": float(np.mean([one.reward.sum() for one in fresh])),
    }


def fresh_episode(run: OpenRun, parts: Critics, state: Any, step: int, number: int) -> FreshEpisode:
    """Run one episode with sampled actions; every draw depends on seed, step and the episode's number only."""
    seed = run.config.seed
    start, _ = run.env.reset(seed=env_seed(seed, Purpose.CRITIC_EPISODE, step, number))
    root = jax.random.fold_in(key(seed, Purpose.CRITIC_ACT, step), number)
    obs, ended, terminated = np.asarray(start, np.float32), False, False
    inputs: list[np.ndarray] = []
    reward: list[float] = []
    log_prob: list[float] = []
    while not ended:
        action, found = parts.act(state, obs, jax.random.fold_in(root, len(reward)))
        inputs.append(np.concatenate([obs, np.asarray(action)]))
        next_obs, gained, terminated, truncated, _ = run.env.step(np.array(action))
        reward.append(float(gained))
        log_prob.append(float(found))
        obs, ended = np.asarray(next_obs, np.float32), bool(terminated or truncated)
    is_end = bool(terminated or run.config.time_limit_terminates)
    return FreshEpisode(np.stack(inputs), np.array(reward), np.array(log_prob), is_end)


def soft_returns(
    reward: Float64[np.ndarray, " n"], log_prob: Float64[np.ndarray, " n"], alpha: float, gamma: float
) -> Float64[np.ndarray, " n"]:
    r"""$G_t = r_t + \gamma (G_{t+1} - \alpha \log \pi(a_{t+1}|s_{t+1}))$, nothing after the last step."""
    result, later = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        result[t] = reward[t] + gamma * later
        later = result[t] - alpha * log_prob[t]
    return result


def usable_starts(length: int, terminated: bool, gamma: float) -> Bool[np.ndarray, " length"]:
    """Return from which steps of an episode the return is known: of a truncated one, not from those near its end."""
    known = length if terminated else max(length - negligible_after(gamma) + 1, 0)
    return np.arange(length) < known


def target_subset(config: Config, num_critics: int) -> int:
    """Return of how many critics the agent's target takes the minimum."""
    return config.agent.subset if Feature.CRITIC_ENSEMBLE in METHODS[config.method].features else num_critics


def expected_minimum(values: Float64[np.ndarray, "critics n"], subset: int) -> Float64[np.ndarray, " n"]:
    """Return the minimum over the critics, averaged over all subsets of a size."""
    count = len(values)
    least_is = np.array([math.comb(count - 1 - rank, subset - 1) for rank in range(count)]) / math.comb(count, subset)
    return least_is @ np.sort(values, axis=0)


def agreement(
    values: Float64[np.ndarray, "critics n"], returns: Float64[np.ndarray, " n"], subset: int
) -> dict[str, Any]:
    """Return how values and returns of the same states differ; NaN where there is no state."""
    if not len(returns):
        names = ("value_mean", "value_min", "return_mean", "bias", "bias_min", "correlation", "rmse")
        return {"states": 0} | dict.fromkeys(names, math.nan)
    mean, least = values.mean(axis=0), expected_minimum(values, subset)
    varies = min(float(mean.std()), float(returns.std())) > 0.0
    return {
        "states": len(returns),
        "value_mean": float(mean.mean()),
        "value_min": float(least.mean()),
        "return_mean": float(returns.mean()),
        "bias": float((mean - returns).mean()),
        "bias_min": float((least - returns).mean()),
        "correlation": float(np.corrcoef(mean, returns)[0, 1]) if varies else math.nan,
        "rmse": float(np.sqrt(np.square(mean - returns).mean())),
    }
