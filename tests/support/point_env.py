"""An environment that takes a microsecond per step, and tiny agents for it."""

import gymnasium
import jax.numpy as jnp
import numpy as np
from tiny import TINY

from pdml.api import Agent
from pdml.config.fields import leaves
from pdml.config.methods import METHODS


class Point(gymnasium.Env):
    """A point on a line, pushed; beyond 1.5 the episode ends."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-2.0, 4.0, (1,), np.float64)

    def __init__(self):
        self.actions, self.closed = [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.time = self.np_random.uniform(-1.0, 1.0, 2), 0
        return self.state.copy(), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float64)), action
        self.actions.append(float(action[0]))
        self.time += 1
        self.state = self.state + 0.1 * np.array([self.state[1], float(action[0])])
        return self.state.copy(), -abs(self.state[0]), bool(abs(self.state[0]) > 1.5), self.time >= 40, {}

    def close(self):
        self.closed = True


SPACES = (Point.observation_space, Point.action_space)


def beyond(obs, action, next_obs):
    """Return which steps end an episode of `Point`."""
    return jnp.abs(next_obs[:, 0]) > 1.5


def tiny_settings(method="pdml"):
    """Return the settings of a tiny run as `Agent` takes them: groups are dicts."""
    settings = {}
    for leaf in leaves():
        if leaf.name in TINY and leaf.name != "steps" and method in leaf.methods:
            group, _, inner = leaf.name.partition(".")
            settings |= {group: {**settings.get(group, {}), inner: TINY[leaf.name]}} if inner else {group: TINY[group]}
    return settings


def new_agent(path, env=Point, method="pdml", **more):
    """Return a tiny agent. Its imagined episodes never end: learning when they do takes longer than all the rest."""
    settings = tiny_settings(method) | ({"termination": "never"} if METHODS[method].has_model else {})
    return Agent(env, method, run_dir=path, **{**settings, **more})


def learned(path, steps, **more):
    """Return a tiny agent that has learned from some steps."""
    return new_agent(path, **more).learn(steps, progress_bar=False)


def act_and_observe(agent, env, obs, steps):
    """Step an environment ourselves; return the observation to act on next."""
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        agent.observe(obs, reward, terminated, truncated)
        if terminated or truncated:
            obs, _ = env.reset()
    return obs


def tables(path):
    """Return the csv files of a run that must not depend on how it was made."""
    return {name: (path / name).read_text() for name in ("progress.csv", "evaluations.csv")}


def steps_of(path):
    """Return the steps of the rows of progress.csv."""
    return [int(line.split(",")[0]) for line in (path / "progress.csv").read_text().splitlines()[1:]]
