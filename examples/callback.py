"""Stop when the policy is good enough, and leave a line of JSON per block, for a dashboard.

    python examples/callback.py

The same class from the shell, in the directory above this one:

    pdml train --env InvertedPendulum-v5 --callback "examples.callback:GoodEnough(goal=950)" --run-dir runs/enough
"""

import argparse
import json
import math
from collections import deque

import pdml


class GoodEnough(pdml.Callback):
    """Stops when the mean return of the last evaluations reaches a goal: a lucky one is not enough."""

    def __init__(self, goal: float, over: int = 3):
        self.goal, self.means = goal, deque(maxlen=over)

    def on_evaluation(self, agent, evaluation):
        self.means.append(evaluation.mean)
        reached = len(self.means) == self.means.maxlen and sum(self.means) / len(self.means) >= self.goal
        return not reached  # False stops the run: it is saved, and can be resumed

    def on_block(self, agent, row):
        numbers = {name: value for name, value in row.items() if math.isfinite(value)}  # a row of progress.csv
        with (agent.path / "blocks.jsonl").open("a") as file:
            print(json.dumps(numbers), file=file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="balance a pole until it is good enough")
    parser.add_argument("--steps", type=int, default=6000, help="at most so many, and 24 or more")
    parser.add_argument("--run-dir", default="runs/enough")
    parser.add_argument("--goal", type=float, default=950.0, help="mean return of three evaluations; 1000 is perfect")
    options = parser.parse_args()
    agent = pdml.Agent(
        "InvertedPendulum-v5",
        "sac",  # it has no model, so it is quick; callbacks are the same for all methods
        run_dir=options.run_dir,
        warmup_steps=options.steps // 12,
        model_every=options.steps // 24,  # the length of a block: 250 steps, as by default
        updates_per_step=5,
        eval_every=options.steps // 24,
        eval_episodes=5,
    )
    agent.learn(options.steps, callback=GoodEnough(options.goal))
    print(f"ended at step {agent.steps} of {options.steps}; {agent.path / 'blocks.jsonl'} has a line per block")
    agent.close()
