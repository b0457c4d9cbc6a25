"""An environment for sweeps: it raises in the run of one seed, and is slow enough to be caught in the middle of a run.

`MOODY_SEED` is the seed, `MOODY_SLEEP` the seconds of a step, `FAULTY_AT` the steps that it takes before it raises.
"""

import os
import sys
import time

import faulty
import gymnasium

SLEEP = float(os.environ.get("MOODY_SLEEP", "0"))


class Moody(faulty.Faulty):
    """A point that is pushed along a line."""

    def step(self, action):
        time.sleep(SLEEP)
        return super().step(action)


gymnasium.register("Moody-v0", Moody, max_episode_steps=17)

seeds = [sys.argv[i + 1] for i, word in enumerate(sys.argv[:-1]) if word == "--seed"]
if seeds == [os.environ.get("MOODY_SEED")]:
    faulty.FAULT = "raises"
