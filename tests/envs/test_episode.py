"""The running episode: its seed and actions bring it back."""

import numpy as np

from pdml.envs.episode import Episode, advance_episode, begin_episode, reproduce_episode
from pdml.envs.gym import make_env


def test_an_episode_is_reproduced_from_its_seed_and_actions():
    first, second = make_env("Hopper-v5"), make_env("Hopper-v5")
    rng = np.random.default_rng(0)
    episode = begin_episode(first, 7, 0)
    for _ in range(60):
        episode, _ = advance_episode(first, 7, episode, rng.uniform(-1, 1, 3).astype(np.float32))
    second.reset(seed=99)
    assert reproduce_episode(second, 7, episode, np.zeros((0, 11), np.float32)) == (episode, True)
    action = np.full(3, 0.3, np.float32)
    copy = Episode(episode.number, episode.obs, list(episode.actions), episode.total)
    steps = [advance_episode(env, 7, each, action)[1] for env, each in ((first, episode), (second, copy))]
    assert np.array_equal(steps[0].next_obs, steps[1].next_obs)
    broken = Episode(episode.number, episode.obs + 1, copy.actions, 0.0)
    new, reproduced = reproduce_episode(second, 7, broken, np.zeros((0, 11), np.float32))
    assert not reproduced
    assert new.number == episode.number + 1
    assert np.array_equal(new.obs, begin_episode(first, 7, episode.number + 1).obs)
    assert new.actions == []
