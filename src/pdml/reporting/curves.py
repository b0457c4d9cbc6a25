"""Learning curves as rows: returns over real steps, beside the published points.

Steps count from the end of the warm-up, as the paper's do.
"""

import math
from collections.abc import Callable, Sequence

from pdml.config.fields import get
from pdml.config.methods import METHODS, Feature
from pdml.config.schema import Settings
from pdml.core.errors import UserError
from pdml.reporting import published, statistics
from pdml.reporting.published import PaperCurve
from pdml.reporting.read import Row, Run, column, differences, groups, one_environment, returns
from pdml.reporting.rows import Rows, curve_rows

_BASES = {method.builds_on for method in METHODS.values()}

ABLATION = tuple(name for name, method in METHODS.items() if method.builds_on or name in _BASES)
"""Methods that an ablation compares: those with weights, and what they are without."""

RATED = tuple(name for name, method in METHODS.items() if Feature.DISTANCE in method.features and not method.fixes)
"""Methods that are compared by mixture.rate: whole ones with weights by policy distance."""

DOUBLE_HORIZON = tuple(name for name, method in METHODS.items() if method.is_double_horizon)
"""Methods that are compared by the lengths of their rollouts."""


def learning_curves(runs: Sequence[Run]) -> Rows:
    """Return the mean return over seeds with its 95 % interval, and published points."""
    return _with_published(runs, published_curve)


def each_seed(runs: Sequence[Run]) -> Rows:
    """Return the returns of every run separately, numbered within its curve, and published points."""
    one_environment(runs)
    rows: list[Row] = []
    notes = shared_settings(runs)
    for curve, group in groups(runs).items():
        for number, run in enumerate(group):
            found = statistics.over_seeds([returns(run)])
            notes += found.notes
            own: Row = {"run": number, "seed": run.config.seed}
            rows += [row | own for row in curve_rows(curve, run.config.method, found)]
        known = published_curve(group[0])
        if known is not None:
            rows += _published_rows(curve, group[0].config.method, known)
            notes += [f"{known.label}: {known.note}"] if known.note else []
    return Rows(rows, list(dict.fromkeys(notes)))


def progress_curves(runs: Sequence[Run], title: str) -> list[Row]:
    """Return the mean over seeds of a column of progress.csv, of the methods that have it."""
    rows: list[Row] = []
    for curve, group in groups(runs).items():
        found = statistics.over_seeds([column(run, run.progress, title) for run in group])
        rows += curve_rows(curve, group[0].config.method, found)
    return rows


def ablation(runs: Sequence[Run]) -> Rows:
    """Return the curves of methods with PDML's weights, of their ablations, and of the methods they build on."""
    kept = [run for run in runs if run.config.method in ABLATION]
    if not kept:
        raise UserError(f"no run of {', '.join(ABLATION)}: the ablation compares these")
    return _with_published(kept, lambda run: published_curve(run, "ablation"))


def rates(runs: Sequence[Run]) -> Rows:
    """Return the curves of PDML by mixture.rate, with published points."""
    return _sweep(runs, RATED, {"rate": "mixture.rate"}, _published_rate)


def horizons(runs: Sequence[Run]) -> Rows:
    """Return the curves of DHMBPO by the lengths of its rollouts, with its published points."""
    return _sweep(runs, DOUBLE_HORIZON, {"far": "double.far", "near": "double.near"}, published_curve)


def _sweep(
    runs: Sequence[Run],
    methods: Sequence[str],
    settings: dict[str, str],
    paper: Callable[[Run], PaperCurve | None],
) -> Rows:
    """Return the curves of some methods; each row also has the compared settings, given by column."""
    kept = [run for run in runs if run.config.method in methods]
    if not kept:
        raise UserError(f"no run of {', '.join(methods)}: their runs are compared by {' and '.join(settings.values())}")
    found = _with_published(kept, paper)
    named = {
        run.label: {title: get(Settings(run.config, run.options), setting) for title, setting in settings.items()}
        for run in kept
    }
    return found._replace(rows=[row | named[row["curve"]] for row in found.rows])


def published_curve(run: Run, figure: str | None = None) -> PaperCurve | None:
    """Return the published curve of a run's method; None for a run whose settings are not the method's defaults.

    Both double-horizon methods are compared with DHMBPO's own curve. It also holds for DHMBPO's own preset, and there
    is one for two updates per step.
    """
    words = differences(run)
    if not METHODS[run.config.method].is_double_horizon:
        return None if words else published.curve(run.config.env, run.config.method, figure)
    other = [word for word in words if word != "preset=published" and not word.startswith("updates_per_step=")]
    return None if other else published.dhmbpo_curve(run.config.env, run.config.updates_per_step)


def _published_rate(run: Run) -> PaperCurve | None:
    """Return the published curve of a run's mixture.rate; None if any other setting differs."""
    if METHODS[run.config.method].is_double_horizon:
        return published_curve(run)
    other = [word for word in differences(run) if not word.startswith("mixture.rate=")]
    return None if other else published.rate_curve(run.config.env, run.config.mixture.rate)


def shared_settings(runs: Sequence[Run]) -> list[str]:
    """Name the settings off the defaults that labels do not show because all runs of the method share them."""
    notes = []
    for curve, group in groups(runs).items():
        hidden = [word for word in differences(group[0]) if word not in curve.split()]
        if hidden:
            notes.append(f"{curve} on {group[0].config.env}: every run has {', '.join(hidden)}")
    return notes


def _with_published(runs: Sequence[Run], paper: Callable[[Run], PaperCurve | None]) -> Rows:
    """Return the curves of some runs, and the published points of each."""
    one_environment(runs)
    rows: list[Row] = []
    notes = shared_settings(runs)
    shown: set[str] = set()
    for curve, group in groups(runs).items():
        found = statistics.over_seeds([returns(run) for run in group])
        notes += found.notes
        seeds = [run.config.seed for run in group]
        repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        notes += [f"{curve}: {seeds.count(seed)} runs have seed {seed}; each is counted" for seed in repeated]
        rows += curve_rows(curve, group[0].config.method, found)
        known = paper(group[0])
        if known is None or known.label in shown:
            continue
        rows += _published_rows(curve, group[0].config.method, known)
        if known.note:  # a curve of another paper serves several methods: show it beside the first
            shown.add(known.label)
            notes.append(f"{known.label}: {known.note}")
    return Rows(rows, notes)


def _published_rows(curve: str, method: str, known: PaperCurve) -> list[Row]:
    return [
        {
            "curve": curve,
            "method": method,
            "source": known.label,
            "step": float(known.steps[i]),
            "mean": float(known.mean[i]),
            "low": float(known.low[i]),
            "high": float(known.high[i]),
            "seeds": known.seeds,
            "half_bin": known.half_bin,
        }
        | ({"note": known.note} if known.note else {})
        for i in range(len(known.steps))
    ]


def last_step_shown(rows: list[Row]) -> float:
    """Return where the axis of a plot ends: a little beyond the runs, with the whole bin that they end in.

    Published curves go much further and would squash the runs.
    """
    last = max((row["step"] for row in rows if row["source"] == "runs"), default=math.inf)
    bins = [row["step"] + row["half_bin"] for row in rows if 0 <= row["step"] - row["half_bin"] < last]
    return max([1.1 * last, *(end for end in bins if math.isfinite(last))])
