"""Environments that go wrong, as `faulty:Raises-v0`: at the step `AT` of the one that is learned from."""

import os
import time

import gymnasium
import numpy as np
from gymnasium.spaces import Box

AT = int(os.environ.get("FAULTY_AT", "90"))
"""Steps that an environment takes before it goes wrong; 0: it does not."""


class Faulty(gymnasium.Env):
    """A point that is pushed along a line."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, fault="none"):
        self.fault, self.count = fault, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=None if self.fault == "wanders" else seed)
        self.x = self.np_random.normal(size=2)
        return self.x.astype(np.float32), {}

    def step(self, action):
        self.count += 1
        self.x = self.x + 0.1 * np.array([self.x[1], float(action[0])])
        obs, reward = self.x.astype(np.float32), -float(abs(self.x[0]))
        if AT and self.count >= AT and self.fault not in ("none", "wanders"):
            obs, reward = getattr(self, self.fault)(obs, reward)
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


FAULTS = ("none", "wanders", "raises", "forgets", "grows", "hangs", "overpays", "leaps", "unpaid")
for name in FAULTS:
    gymnasium.register(f"{name.capitalize()}-v0", Faulty, max_episode_steps=17, kwargs={"fault": name})
