"""Environments as they are made: spaces, rescaled actions, time limits, checks of every step."""

import gymnasium
import numpy as np
import pytest

from pdml.config.tasks import TaskSizes, env_ids, listed_task
from pdml.envs.episode import advance_episode, begin_episode
from pdml.envs.gym import adapt, has_time_limit, make_env, make_plain, own_time_limit, sizes_of
from pdml.envs.spaces import examine


@pytest.mark.parametrize("env_id", env_ids())
def test_spaces_are_those_of_the_table_and_actions_are_rescaled(env_id):
    env, task = make_env(env_id), listed_task(env_id)
    assert env.observation_space.shape == (task.obs_size,)
    assert env.action_space.shape == (task.action_size,)
    assert np.all(env.action_space.low == -1.0)
    assert np.all(env.action_space.high == 1.0)
    episode = begin_episode(env, 0, 0)
    episode, step = advance_episode(env, 0, episode, np.ones(task.action_size, np.float32))
    assert episode.obs.dtype == step.obs.dtype == np.float32
    inner = env.unwrapped
    np.testing.assert_allclose(inner.data.ctrl, inner.action_space.high)
    env.close()


def test_time_limits_end_an_episode_without_a_terminal():
    env = make_env("Pusher-v5")
    episode, finished = begin_episode(env, 0, 0), []
    for _ in range(250):
        episode, step = advance_episode(env, 0, episode, np.zeros(7, np.float32))
        assert not step.terminated
        if step.finished:
            finished.append(step.finished[1])
    assert finished == [100, 100]
    env.close()


def test_the_own_time_limit_is_that_of_the_outermost_wrapper_or_of_the_registration():
    env = make_plain("Pendulum-v1")
    assert own_time_limit(env) == 200
    assert own_time_limit(gymnasium.wrappers.TimeLimit(env, 30)) == 30
    bare = type(env.unwrapped)()
    assert own_time_limit(bare) is None
    assert not has_time_limit(bare)
    spaces = examine(env.observation_space, env.action_space, "Pendulum-v1")
    assert sizes_of(spaces, env) == TaskSizes(3, 1, True)
    assert sizes_of(spaces, bare) == TaskSizes(3, 1, False)
    env.close()


def test_long_episodes_are_truncated_with_a_warning():
    env = adapt(make_plain("Pendulum-v1"), "Pendulum-v1", max_episode_steps=3)
    env.reset(seed=0)
    action = np.zeros(1, np.float32)
    assert [env.step(action)[3] for _ in range(2)] == [False, False]
    with pytest.warns(UserWarning, match="an episode was truncated by max_episode_steps = 3"):
        _, _, terminated, truncated, _ = env.step(action)
    assert (terminated, truncated) == (False, True)
    env.close()
