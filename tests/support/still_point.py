"""A point that does not move, and agents that are small enough to be misused."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from pdml.api import Agent


class Point(gymnasium.Env):
    """A point that does not move."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, obs_size=2):
        self.observation_space = Box(-1.0, 1.0, (obs_size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


SMALL = {
    "warmup_steps": 4,
    "model_every": 4,
    "updates_per_step": 1,
    "batch_size": 4,
    "eval_episodes": 0,
    "agent": {"hidden_sizes": (4,)},
}
SPACES = (Point.observation_space, Point.action_space)


def small_agent(env=Point, method="sac", **more):
    return Agent(env, method, **{**SMALL, **more})
