r"""Random finite MDPs for the check of Theorem 1, and their exact visitations and returns [Wang et al. 2023, Sec. 3].

In a finite MDP every quantity of the theorem solves a small linear system, so both sides of a bound are known exactly.
All functions work on a batch of MDPs: the first axis `t` of every array counts them. The other axes are states `s`,
actions `a`, next states `z` and policies `k`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

Each = Float64[np.ndarray, " t"]
EachPolicy = Float64[np.ndarray, "t k"]
Dynamics = Float64[np.ndarray, "t s a s"]


@dataclass(frozen=True)
class TheoryConfig:
    """Settings of the check."""

    seed: int = 0
    """seed of all random numbers"""
    trials: int = 4000
    """random MDPs per family"""
    num_states: int = 8
    """states of the ordinary MDPs"""
    num_actions: int = 3
    """actions of all random MDPs"""
    num_policies: int = 5
    """policies in the history, including the current one"""
    horizon: float = 100.0
    """longest effective horizon 1 / (1 - gamma) of the ordinary MDPs; the shortest is 2"""

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("num_states", 2), ("num_actions", 2), ("num_policies", 2), ("horizon", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class FiniteMDPs(NamedTuple):
    """A batch of MDPs, each with a learned model and a history of policies. The last policy is the current one."""

    truth: Dynamics
    model: Dynamics
    start: Float64[np.ndarray, "t s"]
    reward: Float64[np.ndarray, "t s a"]
    gamma: Each
    policies: Float64[np.ndarray, "t k s a"]


def tv_distance(p: Float64[np.ndarray, "*#b n"], q: Float64[np.ndarray, "*#b n"]) -> Float64[np.ndarray, "..."]:
    r"""$\frac12 \sum_x |p(x) - q(x)|$ over the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def discounted_visitation(
    policies: Float64[np.ndarray, "t k s a"],
    dynamics: Dynamics,
    start: Float64[np.ndarray, "t s"],
    gamma: Each,
) -> Float64[np.ndarray, "t k s a"]:
    r"""Solve $v = (1-\gamma) v_0 + \gamma P_\pi^\top v$ and return $\rho(s,a) = v(s) \pi(a|s)$."""
    moves = np.einsum("tksa,tsaz->tkzs", policies, dynamics)
    system = np.eye(moves.shape[-1]) - gamma[:, None, None, None] * moves
    right = np.broadcast_to(((1.0 - gamma)[:, None] * start)[:, None, :, None], (*moves.shape[:3], 1))
    return np.linalg.solve(system, right) * policies


def return_gaps(mdps: FiniteMDPs) -> Each:
    r"""$J(\pi, T) - J(\pi, \hat T)$ of the current policy, with $J = \sum_{s,a} \rho(s,a) r(s,a)$ as in the paper."""
    current, start, gamma = mdps.policies[:, -1:], mdps.start, mdps.gamma
    real = discounted_visitation(current, mdps.truth, start, gamma)
    imagined = discounted_visitation(current, mdps.model, start, gamma)
    return np.einsum("tksa,tsa->t", real - imagined, mdps.reward)


def random_mdps(rng: np.random.Generator, config: TheoryConfig, family: str) -> FiniteMDPs:
    """Draw MDPs, models from nearly exact to unrelated, and a history of policies.

    `ordinary`: sizes and horizons of the config, no structure; the policies are a random walk to the current one.
    `sticky`: three states that are rarely left, horizons from 10 to 1000, policies that hardly differ.
    `forked`: like sticky, but the start state is left at once, and each policy is far from the current one in some
    states and near it in others. Here a small policy shift can come with a large visitation shift.
    """
    sticky, forked = family != "ordinary", family == "forked"
    trials, k, actions = config.trials, config.num_policies, config.num_actions
    states = 3 if sticky else config.num_states

    def log_uniform(low: float, high: float, *shape: int) -> Float64[np.ndarray, "..."]:
        return np.exp(rng.uniform(np.log(low), np.log(high), (trials, *shape)))

    def dynamics() -> Dynamics:
        mass = rng.exponential(size=(trials, states, actions, states)) ** (6.0 if sticky else 2.0)
        return mass / mass.sum(axis=-1, keepdims=True)

    moving = log_uniform(1e-4 if sticky else 1.0, 1.0, 1, 1, 1) * np.ones((1, states, 1, 1))
    start = rng.exponential(size=(trials, states))
    logits = rng.standard_normal((trials, k, states, actions))
    if forked:
        moving[:, 0], start[:, 1:] = 1.0, 0.0
        logits[:, :-1] = logits[:, -1:] + logits[:, :-1] * log_uniform(0.01, 3.0, k - 1, states, 1)
    else:
        logits[:, 1:] *= log_uniform(*((0.01, 0.3) if sticky else (0.05, 1.0)), 1, 1, 1)
        logits = logits.cumsum(axis=1)
    truth = moving * dynamics() + (1.0 - moving) * np.eye(states)[:, None]
    error, reward = log_uniform(1e-3, 1.0, 1, 1, 1), rng.uniform(size=(trials, states, actions))
    return FiniteMDPs(
        truth=truth,
        model=(1.0 - error) * truth + error * dynamics(),
        start=start / start.sum(axis=1, keepdims=True),
        reward=reward / reward.max(axis=(1, 2), keepdims=True),
        gamma=1.0 - 1.0 / log_uniform(*((10.0, 1000.0) if sticky else (2.0, config.horizon))),
        policies=np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True),
    )
