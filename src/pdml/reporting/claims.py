"""The paper's claims beside our runs: a measure per seed, an interval over seeds, and a verdict by fixed rules.

The measures and rules are those of `results/PLAN.md`, which was written before the first run and dates later changes.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pdml.reporting import statistics
from pdml.reporting.read import Run, differences, read_table, returns
from pdml.reporting.statistics import Estimate

Measure = Callable[[Run], float]
"""One number per run; NaN if the run does not have it."""


CONVERGED, WEIGHTINGS = Path("analysis", "converged.csv"), Path("analysis", "weightings.csv")
ANALYSES = {CONVERGED: ("step", "converged_l2"), WEIGHTINGS: ("step", "uniform_l2", "blocks_l2", "pdml_l2")}
"""The files of a run's analyses that claims read, and their columns."""


class ClaimArm(NamedTuple):
    """Runs that are compared: a method on a task, and the settings in which it differs from its defaults."""

    method: str
    seeds: range
    """The planned seeds: no other counts, and before all of them are done, nothing is decided."""
    env: str = "Hopper-v5"
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The method and its settings."""
        return " ".join([self.method, *self.settings])


class Claim(NamedTuple):
    """A claim of the paper, and how it is measured."""

    number: str
    says: str
    """What is claimed, in a few words."""
    paper: str
    """The paper's number."""
    measure: Measure
    unit: str
    """What the measure is, in a few words."""
    ours: ClaimArm
    theirs: ClaimArm | None
    """What it is compared with; None: with `null`."""
    larger: bool
    """Whether a larger value of ours supports the claim."""
    needs: int
    """Real steps that a run must have to count."""
    command: str
    """Makes the runs."""
    is_ratio: bool = False
    """Compare by the ratio of the means instead of the difference; of one arm: the measure is a ratio itself."""
    size: float | None = None
    """The difference or ratio that the paper has, where there is one."""
    is_own_size: bool = False
    """Whether the size is our reading of words of the paper, which has no number."""
    null: float = 0.0
    """For claims about one arm: the value of no effect."""
    suffix: str = ""
    """Stands after the numbers of the table, such as ` %`."""

    @property
    def size_text(self) -> str:
        """The size, and whether it is the paper's."""
        assert self.size is not None
        return _number(self.size) if self.is_own_size else f"the paper's {_number(self.size)}"


class Judged(NamedTuple):
    """What the runs say about a claim."""

    claim: Claim
    ours: Float64[np.ndarray, " n"]
    theirs: Float64[np.ndarray, " m"]
    effect: Estimate
    """The difference or ratio; of claims about one arm, its mean."""
    improvement: Estimate
    """The probability that a run of ours is on the claimed side of one of theirs."""
    verdict: str
    """reproduced, contradicted, contradicted in size, or open."""
    remark: str = ""
    """How the paper's size stands to the interval; of open claims, how many runs would settle them."""


def mean_return(until: int) -> Measure:
    """Return the mean of all evaluations up to a real step."""

    def measure(run: Run) -> float:
        found = returns(run)
        kept = found.values[found.steps + run.config.warmup_steps <= until]
        return float(kept.mean()) if len(kept) else math.nan

    return measure


def bin_return(low: int, high: int) -> Measure:
    """Return the mean of the evaluations in (low, high], in steps after warm-up."""

    def measure(run: Run) -> float:
        found = returns(run)
        kept = found.values[(found.steps > low) & (found.steps <= high)]
        return float(kept.mean()) if len(kept) else math.nan

    return measure


def diagnosed(title: str, until: int) -> Measure:
    """Return the mean over diagnoses up to a real step of a column; `a-b` stands for the difference of two."""
    first, _, second = title.partition("-")

    def measure(run: Run) -> float:
        table = run.diagnostics
        if first not in table:
            return math.nan
        values = table[first] - (table[second] if second else 0.0)
        kept = values[table["step"] <= until]
        return float(np.nanmean(kept)) if len(kept) else math.nan

    return measure


def time_share(phase: str) -> Measure:
    """Return the share of a block's seconds that a phase took, in percent: the median over the blocks of a run.

    The clock keeps running while a process is suspended, so a sum over blocks would be wrong.
    """

    def measure(run: Run) -> float:
        table = run.timing
        if phase not in table:
            return math.nan
        spent, seconds = (np.diff(table[name], prepend=0.0) for name in (phase, "seconds"))
        return 100.0 * float(np.median(spent / seconds)) if len(seconds) else math.nan

    return measure


def converged_gap(run: Run) -> float:
    """Return how far a model that was trained further stays above the overall error of its step.

    The mean over archived steps of its error on fresh steps of the archived policy, minus the run's overall error. NaN
    unless every archived step was analysed.
    """
    table = read_table(run.path / CONVERGED, ANALYSES[CONVERGED], [])
    overall = dict(zip(run.diagnostics.get("step", ()), run.diagnostics.get("overall_l2", ()), strict=True))
    further = dict(zip(table.get("step", ()), table.get("converged_l2", ()), strict=True))
    gaps = [further.get(step, math.nan) - overall.get(step, math.nan) for step in run.options.archive_at]
    return float(np.mean(gaps)) if gaps else math.nan


def weighting_ratio(ours: str, theirs: str, steps: Sequence[int]) -> Measure:
    """Return the ratio of the errors that two weightings of a run's data have on the policy of the step.

    The geometric mean over steps; NaN unless every step was analysed.
    """

    def measure(run: Run) -> float:
        names = ("step", f"{ours}_l2", f"{theirs}_l2")
        table = read_table(run.path / WEIGHTINGS, names, [])
        columns = [table.get(name, np.zeros(0)) for name in names]
        found = {step: one / other for step, one, other in zip(*columns, strict=True) if min(one, other) > 0.0}
        return math.exp(float(np.mean([math.log(found.get(step, math.nan)) for step in steps])))

    return measure


def unreadable(run: Run) -> list[str]:
    """Name what could not be read of a run and of its analyses."""
    problems = list(run.problems)
    for file, columns in ANALYSES.items():
        read_table(run.path / file, columns, problems)
    return problems


def judge(claim: Claim, runs: Sequence[Run]) -> Judged:
    """Measure a claim and give the verdict."""
    ours = _values(claim, claim.ours, runs)
    theirs = np.zeros(0) if claim.theirs is None else _values(claim, claim.theirs, runs)
    side = 1.0 if claim.larger else -1.0
    if claim.theirs is None:
        effect = (statistics.geometric_interval if claim.is_ratio else statistics.mean_interval)(ours)
        improvement = Estimate(math.nan, math.nan, math.nan, len(ours))
        null = claim.null
    else:
        effect = (statistics.ratio_interval if claim.is_ratio else statistics.difference_interval)(ours, theirs)
        improvement = statistics.improvement_interval(side * ours, side * theirs)
        null = 1.0 if claim.is_ratio else 0.0
    found = Judged(claim, ours, theirs, effect, improvement, "open")
    if len(ours) < len(claim.ours.seeds) or (claim.theirs is not None and len(theirs) < len(claim.theirs.seeds)):
        return found
    verdict, remark = _verdict(claim, effect, null)
    return found._replace(verdict=verdict, remark=_to_settle(found, null) if verdict == "open" else remark)


EVALUATION = (1000, 10)
"""The plan's evaluations: every 1000 steps, 10 episodes each. Runs with others do not count."""


def _values(claim: Claim, arm: ClaimArm, runs: Sequence[Run]) -> Float64[np.ndarray, " n"]:
    """Return the measure of every planned run of an arm that went far enough; a seed counts once, its first run."""
    found: dict[int, float] = {}
    for run in runs:
        is_of_arm = (run.config.method, run.config.env, tuple(differences(run))) == (arm.method, arm.env, arm.settings)
        is_planned = run.config.seed in arm.seeds and (run.options.eval_every, run.options.eval_episodes) == EVALUATION
        if is_of_arm and is_planned and max(run.evaluations.get("step", np.zeros(0)), default=0) >= claim.needs:
            value = claim.measure(run)
            if math.isfinite(value):
                found.setdefault(run.config.seed, value)
    return np.array(list(found.values()), np.float64)


def _verdict(claim: Claim, effect: Estimate, null: float) -> tuple[str, str]:
    """Return the verdict, and a remark where the interval excludes the claim's size."""
    size = claim.size
    if math.isnan(effect.low):
        return "open", ""
    above, below = effect.low > null, effect.high < null
    if below if claim.larger else above:
        return "contradicted", ""
    is_reproduced = above if claim.larger else below
    if size is None or effect.low <= size <= effect.high:
        return ("reproduced" if is_reproduced else "open"), ""
    if is_reproduced:
        is_less = abs(effect.value - null) < abs(size - null)
        return "reproduced", f"a {'smaller' if is_less else 'larger'} effect than {claim.size_text}"
    return "contradicted in size", f"{claim.size_text} is excluded, {_number(null)} is not"


MOST_RUNS = 100
"""Above so many runs per arm, their number is not given."""


def _to_settle(found: Judged, null: float) -> str:
    """Say how many runs per arm would settle an open claim: a t-test of power 0.8, to first order.

    With so many, one would see an effect of the paper's size, or see that it is excluded if there is none. Where the
    paper has no size, the effect seen takes its place.
    """
    claim = found.claim
    samples = [found.ours] if claim.theirs is None else [found.ours, found.theirs]
    if any(len(values) < 2 for values in samples) or math.isnan(found.effect.low):
        return ""
    variances = [float(values.var(ddof=1)) for values in samples]
    effect = found.effect.value if claim.size is None else claim.size
    if claim.is_ratio:
        effect, null = math.log(effect), math.log(null)
        variances = (
            [float(np.log(found.ours).var(ddof=1))]
            if claim.theirs is None
            else [variance / float(values.mean()) ** 2 for variance, values in zip(variances, samples, strict=True)]
        )
    per_arm = "" if claim.theirs is None else " per arm"
    at = "the effect seen" if claim.size is None else claim.size_text
    from scipy.special import ndtri  # slow to import, and only an open claim needs it

    wanted = float((ndtri(0.975) + ndtri(0.8)) ** 2) * sum(variances)
    if wanted >= MOST_RUNS * (effect - null) ** 2:
        return f"more than {MOST_RUNS} runs{per_arm} for an 80 % chance to settle it at {at}"
    runs = math.ceil(wanted / (effect - null) ** 2) + (2 if claim.theirs is None else 1)  # t instead of normal
    return f"about {runs} runs{per_arm} for an 80 % chance to settle it at {at}"


COLUMNS = ("", "claim", "measured", "here, by arm", "difference or ratio", "probability", "verdict", "runs")
SHORT_COLUMNS = ("", "claim", "here, by arm", "difference or ratio", "verdict")


def claims_table(findings: Sequence[Judged], short: bool = False) -> str:
    """Write findings as a Markdown table, a row per claim.

    A short one has fewer columns, and only claims that have runs of all arms.
    """
    names = SHORT_COLUMNS if short else COLUMNS
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for found in findings:
        if short and math.isnan(found.effect.value):
            continue
        claim = found.claim
        if claim.theirs is None:
            arms = [_arm_text(claim.ours, found.ours, found.effect.value, claim.suffix)]
        else:
            both = (claim.ours, found.ours), (claim.theirs, found.theirs)
            arms = [_arm_text(arm, values, sum(values) / max(len(values), 1), claim.suffix) for arm, values in both]
        cells = (
            claim.number,
            f"{claim.says}: {claim.paper}" if claim.paper else claim.says,
            claim.unit,
            "; ".join(arms),
            _estimate_text(found.effect, claim.suffix),
            _estimate_text(found.improvement),
            f"{found.verdict}; {found.remark}" if found.remark else found.verdict,
            f"`{claim.command}`",
        )
        kept = [cell for name, cell in zip(COLUMNS, cells, strict=True) if name in names]
        lines.append(f"| {' | '.join(kept)} |")
    return "\n".join(lines)


def _arm_text(arm: ClaimArm, values: np.ndarray, mean: float, suffix: str) -> str:
    if not len(values):
        return f"{arm.label}: no run yet"
    seeds = f"{len(values)}" if len(values) == len(arm.seeds) else f"{len(values)} of {len(arm.seeds)}"
    return f"{arm.label} {_number(mean)}{suffix} ({seeds} seeds)"


def _estimate_text(estimate: Estimate, suffix: str = "") -> str:
    if math.isnan(estimate.value):
        return "–"
    if math.isnan(estimate.low):
        return f"{_number(estimate.value)}{suffix}"
    return f"{_number(estimate.value)}{suffix} [{_number(estimate.low)}, {_number(estimate.high)}]"


def _number(value: float) -> str:
    """Write a number with about three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
