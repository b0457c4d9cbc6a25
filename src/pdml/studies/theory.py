"""Compare the bounds of Theorem 1 with the true gap, on random finite MDPs and counterexamples [Wang et al. 2023]."""

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from pdml.studies.theory_bounds import (
    Distances,
    bounds,
    distances,
    pdml_weights,
    proposition_terms,
    stored_shifts,
)
from pdml.studies.theory_counterexamples import detour_mdp, fork_mdp, slip_closed_form, slip_mdps
from pdml.studies.theory_mdps import Each, EachPolicy, FiniteMDPs, TheoryConfig, random_mdps, return_gaps

TOLERANCE = 1e-9
"""A bound fails where the gap exceeds it by more than this, in units of the largest reward."""


class Score(NamedTuple):
    """How one bound did on one family of MDPs."""

    family: str
    weights: str
    bound: str
    trials: int
    fails: int
    """MDPs where the absolute gap exceeds the bound."""
    fails_one_sided: int
    """MDPs where the real return minus the imagined one does; this is what the theorem states."""
    median_ratio: float
    """Median of absolute gap / bound."""
    largest_ratio: float
    says_nothing: float
    """Share of the MDPs where the bound is vacuous: no gap between such rewards can exceed it."""


class Sizes(NamedTuple):
    """Median gap and median terms of the printed bound on one family, reading (a), in units of the largest reward."""

    family: str
    gap: float
    model: float
    visitation: float
    policy: float
    last: float
    fit: float
    """2 gamma times the distance that the proof assumes to be 0."""
    split_a_fails: float
    """Share of the MDPs where convexity of the policy shift fails under reading (a)."""
    split_b_fails: float
    """Share of the MDPs where convexity of the visitation shift fails under reading (b)."""


class Order(NamedTuple):
    """The Proposition on one family, as shares of its MDPs unless noted."""

    family: str
    orders_disagree: float
    """MDPs where the policy shift and the visitation shift order at least one pair of policies differently."""
    pairs_disagree: float
    """Share of such pairs among all pairs."""
    fails_common: int
    """MDPs (a count) where weighted shifts exceed their average once the visitation shifts are in the policy order."""
    fails_agreeing: int
    """MDPs (a count) where they do although the two orders agree without rearranging."""
    fails: float
    """MDPs where they do as the shifts are, with policy shifts in the states of the stored data on both sides."""
    fails_own_states: float
    """The same, with each side's policy shifts in the imagined states of its own mixture, as in the theorem."""
    bound_grows: float
    """MDPs where the whole printed bound, reading (a), is larger with PDML's weights than with uniform ones."""


class Examples(NamedTuple):
    """Findings on the counterexamples."""

    slip_cells: int
    slip_predicted: int
    """Pairs of gamma and slip rate where the closed form violates the printed bound, rewards 0 and 1."""
    slip_violated: tuple[int, int]
    """Pairs where the general code finds a violation: rewards 0 and 1, rewards -1 and 1."""
    slip_largest_ratio: float
    """Largest gap / bound, rewards -1 and 1."""
    slip_deviation: float
    """Largest difference between the closed form and the general code, in the gap and in the bound."""
    detour_gap: float
    detour_printed: float
    detour_corrected: float
    detour_fit: float
    """The distance that the proof assumes to be 0."""
    fork_weighted: float
    """Weighted shifts with PDML's weights."""
    fork_average: float
    """Weighted shifts with uniform weights."""


class TheoryResult(NamedTuple):
    """Everything that `check_theory` finds."""

    config: TheoryConfig
    scores: tuple[Score, ...]
    sizes: tuple[Sizes, ...]
    orders: tuple[Order, ...]
    examples: Examples


def check_theory(config: TheoryConfig | None = None) -> TheoryResult:
    """Compare every bound with the true gap, on random MDPs and on the counterexamples."""
    config = config or TheoryConfig()
    rng = np.random.default_rng(config.seed)
    scores, sizes, orders = [], [], []
    for family in ("ordinary", "sticky", "forked"):
        mdps = random_mdps(rng, config, family)
        uniform = np.full(mdps.policies.shape[:2], 1.0 / config.num_policies)
        pdml = pdml_weights(stored_shifts(mdps))
        found = {"uniform": distances(mdps, uniform), "pdml": distances(mdps, pdml)}
        for name, weights in (("uniform", uniform), ("pdml", pdml)):
            scores += _scores(mdps, family, name, bounds(mdps, weights, found[name]))
        sizes.append(_sizes(mdps, family, pdml, found["pdml"]))
        orders.append(_order(mdps, family, pdml, found))
    for family, lowest in (("slip", 0.0), ("slip, signed", -1.0)):
        mdps = slip_mdps(lowest)
        weights = np.ones((len(mdps.gamma), 1))
        scores += _scores(mdps, family, "pdml", bounds(mdps, weights, distances(mdps, weights)))
    return TheoryResult(config, tuple(scores), tuple(sizes), tuple(orders), _examples())


def rows(result: TheoryResult) -> list[dict[str, Any]]:
    """Return one row per family, weights and bound."""
    return [asdict(result.config) | score._asdict() for score in result.scores]


def _scores(mdps: FiniteMDPs, family: str, weights: str, values: dict[str, Each]) -> list[Score]:
    """Compare the bounds of one family with the gap."""
    gap = return_gaps(mdps)
    largest = np.abs(mdps.reward).max(axis=(1, 2))
    span = largest - np.minimum(mdps.reward.min(axis=(1, 2)), 0.0)
    scores = []
    for name, value in values.items():
        ratio = np.abs(gap) / np.maximum(value, 1e-300)
        scores.append(
            Score(
                family=family,
                weights=weights,
                bound=name,
                trials=len(gap),
                fails=int((np.abs(gap) > value + TOLERANCE * largest).sum()),
                fails_one_sided=int((gap > value + TOLERANCE * largest).sum()),
                median_ratio=float(np.median(ratio)),
                largest_ratio=float(ratio.max()),
                says_nothing=float((value >= span).mean()),
            )
        )
    return scores


def _sizes(mdps: FiniteMDPs, family: str, weights: EachPolicy, found: Distances) -> Sizes:
    """Take the medians of the terms of the printed bound."""
    gamma, volume = mdps.gamma, mdps.start.shape[1]
    return Sizes(
        family=family,
        gap=float(np.median(np.abs(return_gaps(mdps)))),
        model=float(np.median(2.0 * gamma * found.model_error)),
        visitation=float(np.median(gamma * volume * (weights * found.visitation_shift).sum(axis=1))),
        policy=float(np.median(2.0 * (weights * found.policy_shift_a).sum(axis=1))),
        last=float(np.median(2.0 * found.last_a)),
        fit=float(np.median(2.0 * gamma * found.fit_a)),
        split_a_fails=float((found.split_a > TOLERANCE).mean()),
        split_b_fails=float((found.split_b > TOLERANCE).mean()),
    )


def _order(mdps: FiniteMDPs, family: str, pdml: EachPolicy, found: dict[str, Distances]) -> Order:
    """Compare the second term of the bound under PDML's weights with the same term under uniform weights."""
    uniform = np.full_like(pdml, 1.0 / pdml.shape[1])
    volume = mdps.gamma * mdps.start.shape[1]
    stored, shift = stored_shifts(mdps), found["pdml"].visitation_shift

    def fails(visitation_shift: EachPolicy) -> np.ndarray:
        weighted, average = (proposition_terms(w, visitation_shift, stored, volume) for w in (pdml, uniform))
        return weighted > average + TOLERANCE

    first, second = np.triu_indices(pdml.shape[1] - 1, k=1)  # without the current policy: it is last in both orders
    pairs = (stored[:, first] - stored[:, second]) * (shift[:, first] - shift[:, second]) < 0.0
    rank = stored.argsort(axis=1).argsort(axis=1)
    both = (("pdml", pdml), ("uniform", uniform))
    own, own_average = (proposition_terms(w, shift, found[name].policy_shift_a, volume) for name, w in both)
    printed = [bounds(mdps, w, found[name])["printed (a)"] for name, w in both]
    return Order(
        family=family,
        orders_disagree=float(pairs.any(axis=1).mean()),
        pairs_disagree=float(pairs.mean()) if pairs.size else 0.0,
        fails_common=int(fails(np.take_along_axis(np.sort(shift, axis=1), rank, axis=1)).sum()),
        fails_agreeing=int((fails(shift) & ~pairs.any(axis=1)).sum()),
        fails=float(fails(shift).mean()),
        fails_own_states=float((own > own_average + TOLERANCE).mean()),
        bound_grows=float((printed[0] > printed[1] + TOLERANCE).mean()),
    )


def _examples() -> Examples:
    """Compute gaps, bounds and weighted shifts of the counterexamples."""
    # slip
    violated, ratios, deviations = [], [], []
    for lowest in (0.0, -1.0):
        slip, exact = slip_mdps(lowest), slip_closed_form(lowest)
        alone = np.ones((len(slip.gamma), 1))
        gap, printed = return_gaps(slip), bounds(slip, alone, distances(slip, alone))["printed (a)"]
        violated.append(int((gap > printed + TOLERANCE).sum()))
        ratios.append(float((gap / printed).max()))
        deviations += [float(np.abs(gap - exact[0]).max()), float(np.abs(printed - exact[1]).max())]
    gap, printed = slip_closed_form()

    # detour
    detour, weights = detour_mdp()
    found = distances(detour, weights)
    values = bounds(detour, weights, found)

    # fork
    fork = fork_mdp()
    stored, volume = stored_shifts(fork), fork.gamma * fork.start.shape[1]
    pdml = pdml_weights(stored)
    shift = distances(fork, pdml).visitation_shift
    return Examples(
        slip_cells=len(gap),
        slip_predicted=int((gap > printed).sum()),
        slip_violated=(violated[0], violated[1]),
        slip_largest_ratio=ratios[1],
        slip_deviation=max(deviations),
        detour_gap=float(return_gaps(detour)[0]),
        detour_printed=float(values["printed (b)"][0]),
        detour_corrected=float(values["corrected (b)"][0]),
        detour_fit=float(found.fit_b[0]),
        fork_weighted=float(proposition_terms(pdml, shift, stored, volume)[0]),
        fork_average=float(proposition_terms(np.full_like(pdml, 1 / 3), shift, stored, volume)[0]),
    )
