"""Print the table of a results directory.

python results/summary.py results/InvertedPendulum-v5; python results/summary.py results/Hopper-v5 --goal 3000 --last 5.
"""

import argparse
import math
from pathlib import Path

from pdml.runs import groups, read_all, returns
from pdml.stats import first_reaching, last_mean


def table(path: Path, goal: float = 950.0, last: int = 1) -> str:
    """Return each curve's budget, the mean of each seed's last evaluations, and when each reached the goal."""
    runs = read_all([path])
    seeds = sorted({run.config.seed for run in runs})
    head = f"| method | steps | {' | '.join(f'seed {seed}' for seed in seeds)} | first at {goal:.0f} or more, by seed |"
    lines = [head, "|---" * (len(seeds) + 3) + "|"]
    for curve, group in groups(runs).items():
        found = {run.config.seed: f"{last_mean(returns(run), last):.0f}" for run in group}
        reached = [first_reaching(returns(run), goal) + run.config.warmup_steps for run in group]
        first = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in reached)
        cells = " | ".join(found.get(seed, "–") for seed in seeds)
        lines.append(f"| {curve} | {group[0].config.steps} | {cells} | {first} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--goal", type=float, default=950.0)
    parser.add_argument("--last", type=int, default=1)
    options = parser.parse_args()
    print(table(options.path, options.goal, options.last))
