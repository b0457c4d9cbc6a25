"""Print the table of a results directory: python results/summary.py results/InvertedPendulum-v5."""

import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

GOAL = 950.0


def curve(run: Path) -> dict[int, float]:
    """Return the mean return of each evaluation, by step."""
    returns: dict[int, list[float]] = defaultdict(list)
    with (run / "evaluations.csv").open() as file:
        for row in csv.DictReader(file):
            returns[int(row["step"])].append(float(row["return"]))
    return {step: sum(values) / len(values) for step, values in returns.items()}


def row(method: Path) -> str:
    """Return a method's line: its budget, the last evaluation of each seed, and where each first reached the goal."""
    runs = sorted(method.glob("seed_*"))
    curves = [curve(run) for run in runs]
    steps = json.loads((runs[0] / "config.json").read_text())["steps"]
    last = " | ".join(f"{values[max(values)]:.0f}" for values in curves)
    reached = [min((step for step, value in values.items() if value >= GOAL), default=None) for values in curves]
    first = ", ".join("never" if step is None else str(step) for step in reached)
    return f"| {method.name} | {steps} | {last} | {first} |"


def table(path: Path) -> str:
    """Return the table of all methods."""
    methods = sorted(method for method in path.iterdir() if method.is_dir())
    seeds = [run.name.replace("_", " ") for run in sorted(methods[0].glob("seed_*"))]
    head = f"| method | steps | {' | '.join(seeds)} | first at {GOAL:.0f} or more, by seed |"
    return "\n".join([head, "|---" * (len(seeds) + 3) + "|", *(row(method) for method in methods)])


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))
