"""Published numbers to compare results with: the paper's curves and tables, and DHMBPO's curves."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from pdml.config.methods import METHODS

OWN_METHOD = "PDML-MBPO"
"""What the paper calls its own method."""

DHMBPO_WARMUP = 5000
"""Steps of warm-up that DHMBPO's published curves include."""

DHMBPO_TASKS = {
    "Hopper": "joint velocities not clipped",
    "Walker2d": "joint velocities not clipped, v4's friction, ends if an entry of the state passes 100",
    "HalfCheetah": "starts at position 0, older MuJoCo",
    "Ant": "v4's model files, older MuJoCo",
    "Humanoid": "forward reward weight 1 instead of 1.25, no control cost, no contact cost",
}
"""How the environments of DHMBPO's published curves differ from Gymnasium's v5."""


class PaperCurve(NamedTuple):
    """A curve as a paper draws it."""

    source: str
    steps: Float64[np.ndarray, " n"]
    """After warm-up; the middle of a bin where `half_bin` is not 0."""
    mean: Float64[np.ndarray, " n"]
    low: Float64[np.ndarray, " n"]
    high: Float64[np.ndarray, " n"]
    """The 95 % band, unless `note` says otherwise; NaN where the figure's data have none."""
    half_bin: float
    """Each point averages the evaluations of a bin that reaches this far to either side; 0: a single evaluation."""
    label: str = "paper"
    """Who published it."""
    seeds: int = 0
    """0 where the number is not known."""
    note: str = ""
    """What a reader must know about it."""


class Scale(NamedTuple):
    """Returns that count as 0 and as 1 when tasks are aggregated."""

    zero: float
    one: float


def task_of(env: str) -> str:
    """Return the paper's name of an environment."""
    return env.rpartition("-")[0]


def curve(env: str, method: str, figure: str | None = None, updates: int = 1) -> PaperCurve | None:
    """Return the published curve of a method, with its band if any figure has one; None if nothing is published.

    The curve of DHMBPO is that of its authors; see `dhmbpo_curve`.

    Args:
        figure: One of the figures of `curves.csv`; by default any of them, then the main comparison.
        updates: DHMBPO's updates per step.
    """
    record = METHODS[method]
    if record.is_double_horizon:
        return None if record.builds_on or figure is not None else dhmbpo_curve(env, updates)
    return _paper_curve(env, record.paper_name, figure)


def _paper_curve(env: str, name: str, figure: str | None = None) -> PaperCurve | None:
    """Return the curve that the paper has under a name."""
    task = task_of(env)
    points = [row for row in _rows("curves") if row["env"] == task and row["method"] == name]
    wanted = [row for row in points if row["figure"] == (figure or points[0]["figure"])]
    source = wanted[0]["figure"] if wanted else "main comparison"
    if not wanted and figure is None:
        wanted = [row for row in _rows("figure2_digitised") if row["env"] == task and row["method"] == name]
    if not wanted:
        return None
    count = len(wanted)
    width = round(float(wanted[-1]["env_step"]), -3) / count  # the figures stretch n bins over 0 to the end
    steps = width * (np.arange(count) + 0.5)
    mean = _numbers(wanted, "mean" if "mean" in wanted[0] else "return")
    low, high = _numbers(wanted, "ci_low"), _numbers(wanted, "ci_high")
    return PaperCurve(source, steps, mean, low, high, width / 2)


def dhmbpo_curve(env: str, updates: int = 1) -> PaperCurve | None:
    """Return DHMBPO's published curve [Kubo et al. 2025], moved to steps after warm-up.

    Its band is one standard deviation.

    Args:
        updates: Updates per step.
    """
    task, variant = task_of(env), f"UTD{updates}"
    rows = [row for row in _rows("dhmbpo_curves") if row["env"] == task and row["variant"] == variant]
    if not rows:
        return None
    mean, std, seeds = _numbers(rows, "mean"), _numbers(rows, "std"), int(rows[0]["n_seeds"])
    label = "DHMBPO as published" if updates == 1 else f"DHMBPO as published, {updates} updates per step"
    band = f"{seeds} seeds, mean ± standard deviation"
    note = f"{band}; its {task} differs slightly from Gymnasium's v5 ({DHMBPO_TASKS[task]})"
    steps = _numbers(rows, "step") - DHMBPO_WARMUP
    return PaperCurve("dhmbpo_curves", steps, mean, mean - std, mean + std, 0.0, label, seeds, note)


def rate_curve(env: str, rate: float) -> PaperCurve | None:
    """Return the paper's curve of a mixture rate."""
    name = f"{OWN_METHOD} (rate = 0.02)" if rate == 0.02 else f"rate = {rate:g}"
    return _paper_curve(env, name, "rate")


def training_hours(env: str, method: str) -> float | None:
    """Return the training time that the paper prints for a method."""
    return _entry("training_time", env, METHODS[method].paper_name)


def model_error(env: str, method: str, step: int) -> float | None:
    """Return the one-step model error that the paper prints for a method, or for the `converged` model, at a step."""
    name = METHODS[method].paper_name if method in METHODS else method
    return _entry("model_error", env, name, str(step))


def mixture(env: str, step: int) -> Float64[np.ndarray, " policies"] | None:
    """Return the weights that the paper plots at a step: historical policies only, summing to 1."""
    rows = [row for row in _rows("mixture_weights") if row["env"] == task_of(env) and row["env_step"] == str(step)]
    return _numbers(rows, "weight") if rows else None


def scale(env: str) -> Scale | None:
    """Return the scale of returns: SAC's first point and its asymptote in the paper; 0 and 1000 on the pendulum."""
    if task_of(env) == "InvertedPendulum":
        return Scale(0.0, 1000.0)
    first, last = _paper_curve(env, "SAC"), _paper_curve(env, "SAC@asym")
    return None if first is None or last is None else Scale(float(first.mean[0]), float(last.mean[-1]))


def threshold(env: str) -> float | None:
    """Return the return that a run should reach: the paper's last point of MBPO; 950 on the pendulum."""
    if task_of(env) == "InvertedPendulum":
        return 950.0
    found = _paper_curve(env, "MBPO")
    return None if found is None else float(found.mean[-1])


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (files("pdml.reporting") / "paper" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def _numbers(rows: list[dict[str, str]], name: str) -> Float64[np.ndarray, " n"]:
    return np.array([float(row.get(name) or "nan") for row in rows])


def _entry(table: str, env: str, name: str, step: str = "") -> float | None:
    key = (table, task_of(env), step, name)
    for row in _rows("tables"):
        if (row["table"], row["env"], row["env_step"], row["method"]) == key:
            return float(row["value"])
    return None
