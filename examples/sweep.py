"""Compare a method that has a model with one that has none, on two seeds, and read the results back into a table.

    python examples/sweep.py

Each run is a process of its own, and there are as many at a time as there are cores. Runs that are done are skipped
and broken ones resumed, so the same command continues after Ctrl-C. How they stand: pdml status runs/two_methods
"""

import argparse

import pdml

parser = argparse.ArgumentParser(description="compare methods on InvertedPendulum-v5")
parser.add_argument("--steps", type=int, default=2500)
parser.add_argument("--methods", nargs="+", default=["mbpo", "sac"])
parser.add_argument("--seeds", default="0-1", help="two, the default, show how it works; a result needs five or more")
options = parser.parse_args()

study = {  # what a study's file has, see docs/sweeps.md
    "envs": ["InvertedPendulum-v5"],
    "methods": options.methods,
    "seeds": options.seeds,
    "steps": options.steps,
    "settings": {"warmup_steps": options.steps // 5, "updates_per_step": 5, "eval_every": 250},
}
result = pdml.sweep(study, "runs/two_methods")

print("method    return    95 % interval  seeds")
for row in result.final_returns():
    print(f"{row['method']:6s} {row['mean']:9.1f} {row['low']:7.0f} to {row['high']:5.0f} {row['seeds']:6d}")
for path, reason in result.failed.items():
    print(f"{path} failed: {reason}")
