"""The paper's own curves and tables, and DHMBPO's published curves: what a result is compared with."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

NAMES = {
    "pdml": "PDML-MBPO",
    "mbpo": "MBPO",
    "pdml-model-only": "Model Learning Only",
    "pdml-starts-only": "Model Rollouts Only",
    "decay-mbpo": "Exponentially Decay-MBPO",
    "per-mbpo": "PER-MBPO",
    "recall-mbpo": "RECALL-MBPO",
    "maper-mbpo": "MaPER-MBPO",
    "ampo": "AMPO",
    "vagram": "VaGraM",
    "redq": "REDQ",
    "sac": "SAC",
}
"""What the paper's figures call a method."""

DHMBPO_WARMUP = 5000
"""Steps of warm-up that DHMBPO's published curves count."""

DHMBPO_TASKS = {
    "Hopper": "joint velocities not clipped",
    "Walker2d": "joint velocities not clipped, v4's friction",
    "HalfCheetah": "starts at position 0, older MuJoCo",
    "Ant": "v4's files, older MuJoCo",
    "Humanoid": "speed times 1 instead of 1.25, no control cost",
}
"""In what the tasks of DHMBPO's published curves are not Gymnasium's v5."""


class PaperCurve(NamedTuple):
    """A curve as a paper draws it."""

    source: str
    steps: Float64[np.ndarray, " n"]
    """After warm-up; see `half_bin`."""
    mean: Float64[np.ndarray, " n"]
    low: Float64[np.ndarray, " n"]
    high: Float64[np.ndarray, " n"]
    """The 95 % band, unless `note` says otherwise; not a number where the figure's data do not have it."""
    half_bin: float
    """How far to either side of its place on the axis a point may belong."""
    label: str = "paper"
    """Whose it is."""
    seeds: int = 0
    """0 where it is not known."""
    note: str = ""
    """What a reader must know of it."""


class Scale(NamedTuple):
    """Returns that count as 0 and as 1 when tasks are put together."""

    zero: float
    one: float


def task_of(env: str) -> str:
    """Return the name under which the paper has an environment."""
    return env.rpartition("-")[0]


def curve(env: str, method: str, figure: str | None = None) -> PaperCurve | None:
    """Return the paper's curve of a method, with its band if any figure has one; None where there is none.

    That of `dhmbpo` is its own authors': see `dhmbpo_curve`.

    Args:
        figure: One of the figures of `curves.csv`; by default any of them, and the main comparison after them.
    """
    if method == "dhmbpo" and figure is None:
        return dhmbpo_curve(env)
    name, task = NAMES.get(method, method), task_of(env)
    points = [row for row in _rows("curves") if row["env"] == task and row["method"] == name]
    wanted = [row for row in points if row["figure"] == (figure or points[0]["figure"])]
    source = wanted[0]["figure"] if wanted else "main comparison"
    if not wanted and figure is None:
        wanted = [row for row in _rows("figure2_digitised") if row["env"] == task and row["method"] == name]
    if not wanted:
        return None
    steps = _column(wanted, "env_step")
    mean = _column(wanted, "mean" if "mean" in wanted[0] else "return")
    low, high = _column(wanted, "ci_low"), _column(wanted, "ci_high")
    return PaperCurve(source, steps, mean, low, high, float(steps[-1] / len(steps)))


def dhmbpo_curve(env: str, updates: int = 1) -> PaperCurve | None:
    """Return DHMBPO's published curve [Kubo et al. 2025], moved to steps after warm-up: its band is a deviation.

    Args:
        updates: Updates a step.
    """
    task, variant = task_of(env), f"UTD{updates}"
    rows = [row for row in _rows("dhmbpo_curves") if row["env"] == task and row["variant"] == variant]
    if not rows:
        return None
    mean, std, seeds = _column(rows, "mean"), _column(rows, "std"), int(rows[0]["n_seeds"])
    label = "DHMBPO as published" if updates == 1 else f"DHMBPO as published, {updates} updates a step"
    band = f"{seeds} seeds, mean ± standard deviation"
    note = f"{band}; its {task} is not quite Gymnasium's v5 ({DHMBPO_TASKS[task]})"
    steps = _column(rows, "step") - DHMBPO_WARMUP
    return PaperCurve("dhmbpo_curves", steps, mean, mean - std, mean + std, 0.0, label, seeds, note)


def rate_curve(env: str, rate: float) -> PaperCurve | None:
    """Return the paper's curve of a mixture rate."""
    name = "PDML-MBPO (rate = 0.02)" if rate == 0.02 else f"rate = {rate:g}"
    return curve(env, name, "rate")


def final_return(env: str, method: str) -> float | None:
    """Return the last point of the paper's curve."""
    found = curve(env, method)
    return None if found is None else float(found.mean[-1])


def training_hours(env: str, method: str) -> float | None:
    """Return the paper's training time."""
    return _entry("training_time", env, method)


def model_error(env: str, method: str, step: int) -> float | None:
    """Return the paper's one-step error of a method, or of the `converged` model, after so many steps."""
    return _entry("model_error", env, method, str(step))


def mixture(env: str, step: int) -> Float64[np.ndarray, " policies"] | None:
    """Return the weights that the paper plots after so many steps: historical policies only, summing to 1."""
    rows = [row for row in _rows("mixture_weights") if row["env"] == task_of(env) and row["env_step"] == str(step)]
    return _column(rows, "weight") if rows else None


def scale(env: str) -> Scale | None:
    """Return what counts as 0 and 1: SAC's first point and its asymptote in the paper; on the pendulum, 0 and 1000."""
    if task_of(env) == "InvertedPendulum":
        return Scale(0.0, 1000.0)
    first, last = curve(env, "sac"), curve(env, "SAC@asym")
    return None if first is None or last is None else Scale(float(first.mean[0]), float(last.mean[-1]))


def threshold(env: str) -> float | None:
    """Return the return that counts as reached: the paper's last point of MBPO; on the pendulum 950."""
    return 950.0 if task_of(env) == "InvertedPendulum" else final_return(env, "mbpo")


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (files("pdml.reporting") / "paper" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def _column(rows: list[dict[str, str]], name: str) -> Float64[np.ndarray, " n"]:
    return np.array([float(row.get(name) or "nan") for row in rows])


def _entry(table: str, env: str, method: str, step: str = "") -> float | None:
    key = (table, task_of(env), step, NAMES.get(method, method))
    for row in _rows("tables"):
        if (row["table"], row["env"], row["env_step"], row["method"]) == key:
            return float(row["value"])
    return None
