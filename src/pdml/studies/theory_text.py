"""The findings of `pdml.studies.theory` as text tables."""

from pdml.studies.theory import Score, TheoryResult
from pdml.studies.theory_bounds import BOUNDS


def describe_theory(result: TheoryResult) -> str:
    """Return all findings as text: bounds, terms, Proposition, counterexamples."""
    blocks = (_bound_table(result), _size_table(result), _order_table(result), _example_lines(result))
    return "\n\n".join("\n".join(block) for block in blocks)


def _score(result: TheoryResult, family: str, weights: str, bound: str) -> Score:
    """Look up one score."""
    keys = (family, weights, bound)
    return next(score for score in result.scores if (score.family, score.weights, score.bound) == keys)


def _bound_table(result: TheoryResult) -> list[str]:
    """Show every bound on three families, with PDML's weights."""
    config, families = result.config, ("ordinary", "sticky", "slip")
    lines = [
        f"Bounds on |J(pi,T) - J(pi,T^)| and the true gap, PDML's weights, seed {config.seed}",
        f"  ordinary  {config.trials} random MDPs: {config.num_states} states, {config.num_actions} actions, "
        f"{config.num_policies} policies, 1/(1-gamma) from 2 to {config.horizon:g}",
        f"  sticky    {config.trials} random MDPs: 3 states that are rarely left, similar policies, "
        "1/(1-gamma) from 10 to 1000",
        f"  forked    {config.trials} random MDPs: sticky, but the start is left at once; policies differ by state",
        f"  slip      counterexample: current policy alone, {result.examples.slip_cells} pairs of gamma and slip rate",
        "(a) policy drawn once, (b) policy drawn at each step",
        "fails: gap > bound; median, max: of gap / bound; vacuous: the bound is at least the largest possible gap",
        "",
        " " * 14 + "".join(f" | {name:<28}" for name in families).rstrip(),
        f"{'bound':<14}" + f" | {'fails':>6} {'median':>6} {'max':>6} {'vacuous':>7}" * 3,
    ]
    for bound in BOUNDS:
        cells = [_score(result, family, "pdml", bound) for family in families]
        numbers = (
            f" | {s.fails / s.trials:6.1%} {s.median_ratio:6.3f} {s.largest_ratio:6.2f} {s.says_nothing:7.0%}"
            for s in cells
        )
        lines.append(f"{bound:<14}" + "".join(numbers))
    others = [score for score in result.scores if not score.bound.startswith("printed")]
    failed, tried = (sum(getattr(score, name) for score in others) for name in ("fails", "trials"))
    total = f"All bounds except the printed ones, all families and weights: {failed} failures in {tried} comparisons"
    return [*lines, total]


def _size_table(result: TheoryResult) -> list[str]:
    """Show the terms of the printed bound, and how often it and the steps of its proof fail."""
    lines = [
        "Printed bound (a). Medians: gap, the four terms, and the term that the proof assumes to be 0 (left out).",
        "Failures with uniform and with PDML's weights, in brackets without the absolute value.",
        "Failures of the two convexity steps of the proof.",
        f"{'':<10}{'gap':>7}{'model':>8}{'visits':>8}{'policy':>8}{'last':>8}{'left out':>10}"
        f"{'uniform':>13}{'PDML':>13}{'policy (a)':>12}{'visits (b)':>12}",
    ]
    for size in result.sizes:
        uniform, pdml = (_score(result, size.family, name, "printed (a)") for name in ("uniform", "pdml"))
        failures = [f"{score.fails} ({score.fails_one_sided})" for score in (uniform, pdml)]
        lines.append(
            f"{size.family:<10}{size.gap:7.3f}{size.model:8.3f}{size.visitation:8.3f}{size.policy:8.3f}{size.last:8.3f}"
            f"{size.fit:10.3f}{failures[0]:>13}{failures[1]:>13}{size.split_a_fails:12.1%}{size.split_b_fails:12.1%}"
        )
    return lines


def _order_table(result: TheoryResult) -> list[str]:
    """Show the Proposition."""
    lines = [
        "Proposition: the weighted shifts are at most their average.",
        "MDPs, pairs: share where the two shifts order policies differently.",
        "Failures: with one order for both shifts (a count), with PDML's weights, with each mixture's own states.",
        "bound grows: share of MDPs where PDML's weights enlarge the whole printed bound (a).",
        f"{'':<10}{'MDPs':>7}{'pairs':>8}{'one order':>12}{'PDML':>9}{'own states':>13}{'bound grows':>13}",
    ]
    for order in result.orders:
        lines.append(
            f"{order.family:<10}{order.orders_disagree:7.1%}{order.pairs_disagree:8.1%}"
            f"{order.fails_common + order.fails_agreeing:12d}{order.fails:9.2%}{order.fails_own_states:13.2%}"
            f"{order.bound_grows:13.2%}"
        )
    return lines


def _example_lines(result: TheoryResult) -> list[str]:
    """Show the counterexamples."""
    found = result.examples
    return [
        f"slip    violates the printed bound in {found.slip_violated[0]} of {found.slip_cells} pairs; the closed form "
        f"gamma (1 - rate) > 1/2 predicts {found.slip_predicted}",
        f"        with rewards -1 and 1: in {found.slip_violated[1]}, by a factor of up to "
        f"{found.slip_largest_ratio:.0f}; closed form and general code agree to {max(found.slip_deviation, 1e-12):.0e}",
        f"detour  the model fits mixture (b) to within {found.detour_fit:.0e}, yet the gap is {found.detour_gap:.3f}; "
        f"printed (b) {found.detour_printed:.3f}, corrected (b) {found.detour_corrected:.3f}",
        f"fork    PDML's weights raise the weighted shifts from {found.fork_average:.3f} to {found.fork_weighted:.3f}",
    ]
