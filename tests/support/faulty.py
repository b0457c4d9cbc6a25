"""An environment that goes wrong: how is chosen by `FAULT`, at which of its steps by `AT`."""

import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box

FAULT = os.environ.get("FAULTY_FAULT", "")
"""A method of `Faulty` that spoils a step, or "wanders": it ignores its seed. Empty: nothing is wrong."""

AT = int(os.environ.get("FAULTY_AT", "90"))
"""Steps that an environment takes before it goes wrong. The faulty one is the one that is learned from: the others
take fewer steps."""


class Faulty(gymnasium.Env):
    """A point that is pushed along a line."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self):
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if FAULT == "wanders" else seed)
        self.x = self.np_random.normal(size=2)
        return self.x.astype(np.float32), {}

    def step(self, action):
        self.count += 1
        self.x = self.x + 0.1 * np.array([self.x[1], float(action[0])])
        obs, reward = self.x.astype(np.float32), -float(abs(self.x[0]))
        if FAULT not in ("", "wanders") and self.count >= AT:
            obs, reward = getattr(self, FAULT)(obs, reward)
        return obs, reward, False, False, {}

    def raises(self, obs, reward):
        raise RuntimeError("the motor\nis on fire")

    def forgets(self, obs, reward):
        return np.array([obs[0], np.nan], np.float32), reward

    def grows(self, obs, reward):
        return np.append(obs, np.float32(0.0)), reward

    def hangs(self, obs, reward):
        time.sleep(600)
        return obs, reward

    def overpays(self, obs, reward):
        return obs, 1e38

    def leaps(self, obs, reward):
        return obs * np.float32(1e30), reward

    def unpaid(self, obs, reward):
        return obs, float("nan")


gymnasium.register("Faulty-v0", Faulty, max_episode_steps=17)
