"""Print the table of a results directory.

python results/summary.py results/InvertedPendulum-v5; python results/summary.py results/Hopper-v5 --goal 3000 --last 5;
with --until 10000 as if every run had ended there.
"""

import argparse
import math
from pathlib import Path
from statistics import mean, stdev

from pdml.reporting.read import Run, groups, read_all, returns
from pdml.reporting.statistics import Series, first_reaching, last_mean


def table(path: Path, goal: float = 950.0, last: int = 1, until: float = math.inf) -> str:
    """Return each curve's budget, the mean of each seed's last evaluations, that over seeds, and first passages."""
    runs = read_all([path])
    seeds = sorted({run.config.seed for run in runs})
    names = ["method", "steps", *(f"seed {seed}" for seed in seeds), "mean ± deviation"]
    lines = [f"| {' | '.join(names)} | first at {goal:.0f} or more, by seed |", "|---" * (len(names) + 1) + "|"]
    for curve, group in groups(runs).items():
        seen = {run.config.seed: _real(run, until) for run in group}
        found = {seed: last_mean(series, last) for seed, series in seen.items()}
        reached = [first_reaching(series, goal) for series in seen.values()]
        first = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in reached)
        cells = " | ".join(f"{found[seed]:.0f}" if not math.isnan(found.get(seed, math.nan)) else "–" for seed in seeds)
        values = [value for value in found.values() if not math.isnan(value)]
        spread = f"{mean(values):.0f} ± {stdev(values):.0f}" if len(values) > 1 else "–"
        lines.append(f"| {curve} | {min(group[0].config.steps, until):.0f} | {cells} | {spread} | {first} |")
    return "\n".join(lines)


def _real(run: Run, until: float) -> Series:
    """Return a run's evaluations up to a step, by real steps, warm-up included."""
    series = returns(run)
    steps = series.steps + run.config.warmup_steps
    return series._replace(steps=steps[steps <= until], values=series.values[steps <= until])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--goal", type=float, default=950.0)
    parser.add_argument("--last", type=int, default=1)
    parser.add_argument("--until", type=int, default=math.inf)
    options = parser.parse_args()
    print(table(options.path, options.goal, options.last, options.until))
