"""`Agent.act` and `Agent.observe`: learning while the caller steps the environment."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from point_env import SPACES, Point, act_and_observe, learned, new_agent, steps_of

import pdml.training.loop
from pdml.api import Agent, Callback
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, env_seed
from pdml.envs.spaces import Spaces


class Seeded(Point):
    """Resets as a run resets it."""

    number = 0

    def reset(self, *, seed=None, options=None):
        self.number += 1
        return super().reset(seed=env_seed(0, Purpose.EPISODE, self.number - 1))


@pytest.mark.slow
def test_acting_and_observing_learns_the_same_as_learn(tmp_path):
    env = Seeded()
    ours = new_agent(tmp_path / "ours", env=SPACES, eval_episodes=0)
    obs = act_and_observe(ours, env, env.reset()[0], 130)
    theirs = learned(tmp_path / "theirs", 130, eval_episodes=0, max_episode_steps=0)
    assert np.allclose(ours.predict(np.ones((4, 2))), theirs.predict(np.ones((4, 2))), atol=1e-3)
    ours.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy")
    other = Seeded()
    other.reset()
    other.state, other.time, other.number = env.state.copy(), env.time, env.number
    act_and_observe(again, other, obs, 15)
    act_and_observe(ours, env, obs, 15)
    assert np.array_equal(again.predict(np.ones((4, 2))), ours.predict(np.ones((4, 2))))


def test_the_action_that_was_really_taken_is_stored(tmp_path):
    agent = new_agent(tmp_path / "run", env=SPACES)
    agent.act([0.1, 0.2])
    agent.observe([0.3, 0.4], 1.5, False, action=[4.0])
    rows = agent._live.state.replay.stored().rows
    assert np.allclose(rows[0], [0.1, 0.2, 1.0, 1.5, 0.3, 0.4, 0.0])


def test_an_action_from_before_learn_cannot_be_observed(tmp_path):
    agent = new_agent(tmp_path / "run")
    agent.act([0.1, 0.2])
    agent.learn(25, progress_bar=False)
    with pytest.raises(UserError, match="observe: call act first"):
        agent.observe([0.3, 0.4], 1.5, False)
    assert agent.steps == 25


class StopAt95(Callback):
    def on_step(self, agent):
        return agent.steps != 95


@pytest.mark.slow
def test_acting_after_an_unfinished_block_removes_its_row(tmp_path):
    agent = new_agent(tmp_path / "run", eval_episodes=0).learn(100, StopAt95(), progress_bar=False)
    assert steps_of(tmp_path / "run") == [80, 95]
    env = Point()
    obs = act_and_observe(agent, env, env.reset(seed=1)[0], 30)
    agent.save()
    assert steps_of(tmp_path / "run") == [80, 100, 120]
    agent.close()
    again = Agent.load(tmp_path / "run", env=Point)
    act_and_observe(again, env, obs, 5)
    assert steps_of(tmp_path / "run") == [80, 100, 120]
    with pytest.raises(UserError, match="the agent is closed"):
        agent.learn(1)


def test_a_block_is_opened_once_however_often_act_is_called(tmp_path):
    agent = new_agent(tmp_path / "run", env=SPACES)
    env = Point()
    obs = act_and_observe(agent, env, env.reset(seed=1)[0], 80)
    first = agent.act(obs)
    count = agent._live.state.history.count
    assert np.array_equal(agent.act(obs), first)
    agent.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy")
    assert np.array_equal(again.act(obs), first)
    assert again._live.state.history.count == agent._live.state.history.count == count


def test_ctrl_c_while_observing_saves_and_leaves_a_usable_agent(tmp_path, monkeypatch):
    agent = new_agent(tmp_path / "run", env=SPACES)
    env = Point()
    obs = act_and_observe(agent, env, env.reset(seed=1)[0], 70)
    observe = pdml.training.loop.Interaction.observe

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return observe(*args)

    monkeypatch.setattr(pdml.training.loop.Interaction, "observe", interrupted)
    agent.act(obs)
    with pytest.raises(KeyboardInterrupt, match=r"SIGINT; .*run is saved at step 71"):
        agent.observe(obs, 0.0, False)
    monkeypatch.undo()
    assert agent.steps == 71
    act_and_observe(agent, env, obs, 12)
    assert agent.steps == 83


def test_actions_never_leave_their_bounds_by_rounding():
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.normal(size=3)
        spaces = Spaces(2, low, low + rng.uniform(0.1, 3.0, 3))
        box = gymnasium.spaces.Box(spaces.low.astype(np.float32), spaces.high.astype(np.float32))
        for end in (-1.0, 1.0):
            assert box.contains(spaces.to_env(np.full((1, 3), end, np.float32))[0])
