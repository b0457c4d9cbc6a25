"""The evaluator: its seeds, its batches, and which environments it closes."""

import signal
import time
from contextlib import closing

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from pdml.core import signals
from pdml.core.rng import Purpose, env_seed
from pdml.envs.evaluation import MOST_ENVS, EpisodeResult, Evaluator, evaluate


class Counter(gymnasium.Env):
    """Pays 1 per step; an episode lasts as many steps as its first observation says."""

    observation_space = Box(0.0, 10.0, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self):
        self.seeds, self.closed = [], False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.left = int(self.np_random.integers(1, 6))
        return np.array([self.left, 7.0], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left, 7.0], np.float32), float(action[0]), self.left == 0, False, {}

    def close(self):
        self.closed = True


class Endless(Counter):
    """Its episodes do not end."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        if self.left < -1000:
            raise RuntimeError("nobody stopped it")
        return obs, reward, False, False, info


@pytest.mark.parametrize(("seconds", "ends"), [(6.0, True), (1.0, False)])
def test_an_evaluation_is_abandoned_five_seconds_after_a_signal(monkeypatch, seconds, ends):
    monkeypatch.setattr(signals, "_asked", [(signal.SIGTERM, time.monotonic() - seconds)])
    with pytest.raises(signals.Stopped if ends else RuntimeError):
        evaluate([Endless()], lambda obs, step: np.zeros((len(obs), 1)), seed=0, step=0, episodes=1)


def evaluator(num_envs, borrowed=False):
    made = []

    def make():
        made.append(Counter())
        return made[-1]

    return Evaluator(make, num_envs, borrowed), made


def batches_of(evaluate, episodes, seed=3, step=40):
    seen = []

    def policy(obs, time):
        seen.append((obs, time))
        return np.ones((len(obs), 1), np.float32)

    return evaluate(policy, seed, step, episodes), seen


def lengths_of(episodes, seed=3, step=40):
    seeds = [env_seed(seed, Purpose.EVALUATION, step, i) for i in range(episodes)]
    return [int(np.random.default_rng(each).integers(1, 6)) for each in seeds], seeds


@pytest.mark.parametrize(("num_envs", "borrowed"), [(1, False), (2, False), (5, False), (8, False), (5, True)])
def test_results_depend_on_seed_step_and_episode_not_on_how_many_run_at_once(num_envs, borrowed):
    lengths, seeds = lengths_of(5)
    evaluate, made = evaluator(num_envs, borrowed)
    results, _ = batches_of(evaluate, 5)
    assert results == [EpisodeResult(float(length), length) for length in lengths]
    assert sorted(each for env in made for each in env.seeds) == sorted(seeds)


def test_batches_keep_their_shape_and_are_padded_with_zeros():
    evaluate, _ = evaluator(3)
    _, seen = batches_of(evaluate, 4)
    lengths, _ = lengths_of(4)
    assert {(obs.shape, obs.dtype) for obs, _ in seen} == {((3, 2), np.dtype(np.float32))}
    assert [time for _, time in seen] == [*range(max(lengths[:3])), *range(lengths[3])]
    obs, _ = seen[-1]
    assert obs[0].tolist() == [1.0, 7.0]
    assert not obs[1:].any()
    assert seen[0][0][:, 0].tolist() == lengths[:3]  # later steps did not write into earlier batches


def test_environments_are_made_once_and_closed_unless_they_are_borrowed():
    evaluate, made = evaluator(3)
    with closing(evaluate):
        first, _ = batches_of(evaluate, 3)
        assert batches_of(evaluate, 3)[0] == first
        assert not any(env.closed for env in made)
    assert [env.closed for env in made] == [True] * 3
    evaluate, made = evaluator(3, borrowed=True)
    evaluate.close()
    assert [env.closed for env in made] == [False]
    assert evaluator(0, borrowed=True)[1] == []


def test_many_episodes_do_not_open_as_many_environments():
    evaluate, made = evaluator(3 * MOST_ENVS)
    results, _ = batches_of(evaluate, MOST_ENVS + 2)
    assert len(made) == MOST_ENVS
    assert [result.length for result in results] == lengths_of(MOST_ENVS + 2)[0]
