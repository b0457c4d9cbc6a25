"""Print the table of a results directory: python results/summary.py results/InvertedPendulum-v5."""

import math
import sys
from pathlib import Path

from pdml.runs import groups, read_all, returns
from pdml.stats import first_reaching

GOAL = 950.0


def table(path: Path) -> str:
    """Return each method's budget, the last evaluation of each seed, and the step at which each reached the goal."""
    runs = read_all([path])
    seeds = sorted({run.config.seed for run in runs})
    head = f"| method | steps | {' | '.join(f'seed {seed}' for seed in seeds)} | first at {GOAL:.0f} or more, by seed |"
    lines = [head, "|---" * (len(seeds) + 3) + "|"]
    for curve, group in groups(runs).items():
        last = " | ".join(f"{returns(run).values[-1]:.0f}" for run in group)
        reached = [first_reaching(returns(run), GOAL) + run.config.warmup_steps for run in group]
        first = ", ".join("never" if math.isinf(step) else f"{step:.0f}" for step in reached)
        lines.append(f"| {curve} | {group[0].config.steps} | {last} | {first} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
