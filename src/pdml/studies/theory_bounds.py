r"""The bound of Theorem 1, its corrections, and the Proposition, computed exactly [Wang et al. 2023, Sec. 3, App. B-D].

$\mathrm{Vol}(S)$ is the number of states.

The paper does not define "the policy mixture". Reading (a): a policy is drawn once, $\rho^{mix} = \sum_i
w_i \rho^{\pi_i}$. Reading (b): a policy is drawn at each step, $\pi_{mix}(a|s) = \sum_i w_i \pi_i(a|s)$.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pdml.studies.theory_mdps import Each, EachPolicy, FiniteMDPs, discounted_visitation, tv_distance

FLOOR = 1e-3
"""Smallest policy shift in PDML's weights, as in `MixtureConfig`."""

BOUNDS = {
    "printed (a)": "Theorem 1 as printed, policy drawn once",
    "printed (b)": "Theorem 1 as printed, policy drawn at each step",
    "corrected (a)": "distance to the imagined mixture; each policy shift in the policy's own states",
    "corrected (b)": "distance to the imagined mixture",
    "by policy (a)": "corrected (a), its distance split into the visitation shifts and the fit to the mixture",
    "triangle (a)": "visitation shifts, fit and last term only",
    "no mixture": "the simulation lemma: model error / (1 - gamma)",
}
"""The bounds under comparison, in the order of the tables."""


class Distances(NamedTuple):
    """The total variations that the bounds are made of, each between 0 and 1, for given weights."""

    model_error: Each
    r"""$E_{\rho^\pi_T} TV(T, \hat T)$"""
    visitation_shift: EachPolicy
    r"""$\xi_{\rho_i} = TV(\rho^\pi_T, \rho^{\pi_i}_T)$"""
    policy_shift_a: EachPolicy
    r"""$\xi_{\pi_i}$ in the states of the imagined mixture, reading (a)"""
    policy_shift_b: EachPolicy
    own_policy_shift: EachPolicy
    r"""The same in the policy's own imagined states, $E_{v^{\pi_i}_{\hat T}} TV(\pi, \pi_i)$"""
    last_a: Each
    r"""$TV(\rho^{mix}_{\hat T}, \rho^\pi_{\hat T})$"""
    last_b: Each
    distance_a: Each
    r"""$TV(\rho^\pi_T, \rho^{mix}_{\hat T})$"""
    distance_b: Each
    fit_a: Each
    r"""$TV(\rho^{mix}_T, \rho^{mix}_{\hat T})$, which the paper's proof assumes to be 0"""
    fit_b: Each
    split_a: Each
    r"""$E_{v^{mix}_{\hat T}} TV(\pi, \pi_{mix}) - \sum_i w_i \xi_{\pi_i}$, which the proof needs to be at most 0"""
    split_b: Each
    r"""$TV(\rho^\pi_T, \rho^{mix}_T) - \sum_i w_i \xi_{\rho_i}$, likewise"""


def pdml_weights(shifts: EachPolicy) -> EachPolicy:
    r"""$w_i \propto 1/\xi_{\pi_i}$ for the past policies; the current one, the last, gets the largest of these."""
    inverse = 1.0 / np.maximum(shifts[:, :-1], FLOOR)
    newest = inverse.max(axis=1, initial=1.0, keepdims=True)
    weights = np.concatenate([inverse, newest], axis=1)
    return weights / weights.sum(axis=1, keepdims=True)


def stored_shifts(mdps: FiniteMDPs) -> EachPolicy:
    """Return the policy shifts in the states of all stored data, from which PDML computes its weights."""
    real = discounted_visitation(mdps.policies, mdps.truth, mdps.start, mdps.gamma)
    states = real.sum(axis=-1).mean(axis=1)
    return np.einsum("ts,tks->tk", states, _action_shifts(mdps))


def distances(mdps: FiniteMDPs, weights: EachPolicy) -> Distances:
    """Compute every distance that appears in a bound."""
    truth, model, start, _, gamma, policies = mdps
    real = discounted_visitation(policies, truth, start, gamma)
    imagined = discounted_visitation(policies, model, start, gamma)
    current, imagined_current = real[:, -1], imagined[:, -1]
    action_shifts = _action_shifts(mdps)

    # visitation of the mixture, reading (a): a policy drawn once
    once_real, once = np.einsum("tk,tksa->tsa", weights, real), np.einsum("tk,tksa->tsa", weights, imagined)
    # reading (b): a policy drawn at each step
    stepwise = np.einsum("tk,tksa->tsa", weights, policies)[:, None]
    step_real, step = (discounted_visitation(stepwise, dynamics, start, gamma)[:, 0] for dynamics in (truth, model))

    states = once.sum(axis=-1)
    visitation_shift = _between(current[:, None], real)
    policy_shift_a = np.einsum("ts,tks->tk", states, action_shifts)
    return Distances(
        model_error=(current * tv_distance(truth, model)).sum(axis=(1, 2)),
        visitation_shift=visitation_shift,
        policy_shift_a=policy_shift_a,
        policy_shift_b=np.einsum("ts,tks->tk", step.sum(axis=-1), action_shifts),
        own_policy_shift=np.einsum("tks,tks->tk", imagined.sum(axis=-1), action_shifts),
        last_a=_between(once, imagined_current),
        last_b=_between(step, imagined_current),
        distance_a=_between(current, once),
        distance_b=_between(current, step),
        fit_a=_between(once_real, once),
        fit_b=_between(step_real, step),
        split_a=_between(states[..., None] * policies[:, -1], once) - (weights * policy_shift_a).sum(axis=1),
        split_b=_between(current, step_real) - (weights * visitation_shift).sum(axis=1),
    )


def bounds(mdps: FiniteMDPs, weights: EachPolicy, found: Distances) -> dict[str, Each]:
    """Compute all `BOUNDS`. The largest reward is the largest absolute one, as the proof needs."""
    gamma, volume = mdps.gamma, float(mdps.start.shape[1])
    largest = np.abs(mdps.reward).max(axis=(1, 2))
    model = 2.0 * gamma * found.model_error
    shifts, own = (weights * found.visitation_shift).sum(axis=1), (weights * found.own_policy_shift).sum(axis=1)
    policy_a, policy_b = ((weights * shift).sum(axis=1) for shift in (found.policy_shift_a, found.policy_shift_b))
    in_units = {
        "printed (a)": model + gamma * volume * shifts + 2.0 * policy_a + 2.0 * found.last_a,
        "printed (b)": model + gamma * volume * shifts + 2.0 * policy_b + 2.0 * found.last_b,
        "corrected (a)": model + 2.0 * gamma * found.distance_a + 2.0 * own + 2.0 * found.last_a,
        "corrected (b)": model + 2.0 * gamma * found.distance_b + 2.0 * policy_b + 2.0 * found.last_b,
        "by policy (a)": model + 2.0 * gamma * (shifts + found.fit_a) + 2.0 * own + 2.0 * found.last_a,
        "triangle (a)": 2.0 * (shifts + found.fit_a + found.last_a),
        "no mixture": model / (1.0 - gamma),
    }
    return {name: largest * value for name, value in in_units.items()}


def proposition_terms(
    weights: EachPolicy,
    visitation_shift: EachPolicy,
    policy_shift: EachPolicy,
    volume: Each,
) -> Each:
    r"""$\sum_i w_i (c\, \xi_{\rho_i} + 2 \xi_{\pi_i})$, with the `volume` $c = \gamma \mathrm{Vol}(S)$."""
    return (weights * (volume[:, None] * visitation_shift + 2.0 * policy_shift)).sum(axis=1)


def _action_shifts(mdps: FiniteMDPs) -> Float64[np.ndarray, "t k s"]:
    """Return how far each policy is from the current one in each state."""
    return tv_distance(mdps.policies[:, -1:], mdps.policies)


def _between(p: Float64[np.ndarray, "*#b s a"], q: Float64[np.ndarray, "*#b s a"]) -> Float64[np.ndarray, "..."]:
    """Return the total variation between distributions over states and actions."""
    return 0.5 * np.abs(p - q).sum(axis=(-2, -1))
