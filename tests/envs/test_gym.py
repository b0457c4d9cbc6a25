import jax.numpy as jnp
import numpy as np
import pytest

from pdml.config.tasks import TASKS, env_ids, find_task
from pdml.core.errors import UserError
from pdml.envs.gym import Episode, advance, begin, make_env, reproduce
from pdml.envs.termination_fns import RULES


@pytest.mark.parametrize("env_id", env_ids())
def test_spaces_are_those_of_the_table_and_actions_are_rescaled(env_id):
    env, task = make_env(env_id), find_task(env_id)
    assert env.observation_space.shape == (task.obs_size,)
    assert env.action_space.shape == (task.action_size,)
    assert np.all(env.action_space.low == -1.0)
    assert np.all(env.action_space.high == 1.0)
    episode = begin(env, 0, 0)
    episode, step = advance(env, 0, episode, np.ones(task.action_size, np.float32))
    assert episode.obs.dtype == step.obs.dtype == np.float32
    inner = env.unwrapped
    np.testing.assert_allclose(inner.data.ctrl, inner.action_space.high)
    env.close()


def test_every_family_has_a_rule():
    assert set(RULES) == set(TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", env_ids())
def test_termination_rule_agrees_with_the_environment_on_ten_thousand_steps(env_id):
    env, drawn = make_env(env_id), np.random.default_rng(0)
    episode, observed, ended, limits = begin(env, 0, 0), [], [], 0
    held = np.zeros(env.action_space.shape, np.float32)
    for i in range(10_000):
        if i % 5 == 0:  # actions held for a while reach more of the space than white noise
            held = drawn.uniform(-1, 1, held.shape).astype(np.float32)
        episode, step = advance(env, 0, episode, held)
        observed.append(step.next_obs)
        ended.append(step.terminated)
        limits += step.finished is not None and not step.terminated
    found = np.asarray(RULES[env_id.rpartition("-")[0]](jnp.asarray(np.stack(observed))))
    assert np.array_equal(found, ended)
    if env_id.startswith(("HalfCheetah", "Pusher")):
        assert limits == 10_000 // (100 if env_id.startswith("Pusher") else 1000)
        assert not any(ended)
    else:
        assert sum(ended) > 20  # both outcomes were seen
    env.close()


@pytest.mark.parametrize(
    ("name", "row", "ended"),
    [
        ("Hopper", [1.2, 0.0, -101.0], True),  # both sides of the bound count
        ("Hopper", [1.2, 0.0, 99.0], False),
        ("Hopper", [1.2, 0.0, np.nan], True),
        ("Hopper", [0.7, 0.0, 0.0], True),
        ("Hopper", [1.2, -0.2, 0.0], True),
        ("Walker2d", [2.0, 0.0], True),
        ("Walker2d", [1.9, 0.99], False),
        ("Ant", [1.0, 0.0], False),
        ("Ant", [0.19, 0.0], True),
        ("Ant", [0.5, np.inf], True),
        ("Humanoid", [1.0, 0.0], True),
        ("Humanoid", [1.5, 0.0], False),
        ("InvertedPendulum", [0.0, 0.21], True),
        ("InvertedPendulum", [0.0, np.nan], True),
        ("InvertedPendulum", [5.0, -0.19], False),
        ("HalfCheetah", [1e9, 0.0], False),
        ("Pusher", [1e9, 0.0], False),
    ],
)
def test_rules_at_their_limits(name, row, ended):
    assert bool(RULES[name](jnp.asarray([row], jnp.float32))[0]) is ended


def test_time_limits_end_an_episode_without_a_terminal():
    env = make_env("Pusher-v5")
    episode, finished = begin(env, 0, 0), []
    for _ in range(250):
        episode, step = advance(env, 0, episode, np.zeros(7, np.float32))
        assert not step.terminated
        if step.finished:
            finished.append(step.finished[1])
    assert finished == [100, 100]
    env.close()


def test_an_episode_is_reproduced_from_its_seed_and_actions():
    first, second = make_env("Hopper-v5"), make_env("Hopper-v5")
    drawn = np.random.default_rng(0)
    episode = begin(first, 7, 0)
    for _ in range(60):
        episode, _ = advance(first, 7, episode, drawn.uniform(-1, 1, 3).astype(np.float32))
    second.reset(seed=99)
    assert reproduce(second, 7, episode, np.zeros((0, 11), np.float32)) == (episode, True)
    action = np.full(3, 0.3, np.float32)
    copy = Episode(episode.number, episode.obs, list(episode.actions), episode.total)
    assert np.array_equal(advance(first, 7, episode, action)[1].next_obs, advance(second, 7, copy, action)[1].next_obs)
    broken = Episode(episode.number, episode.obs + 1, copy.actions, 0.0)
    new, reproduced = reproduce(second, 7, broken, np.zeros((0, 11), np.float32))
    assert not reproduced
    assert new.number == episode.number + 1
    assert np.array_equal(new.obs, begin(first, 7, episode.number + 1).obs)
    assert new.actions == []


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("Hoper-v5", "did you mean Hopper-v5"),
        ("Zzz", "known: Hopper-v5"),
        ("CartPole-v1", "action space is Discrete"),
        ("FrozenLake-v1", "space is Discrete"),
        ("Pusher-v4", "mujoco < 3"),
        ("Hopper-v3", "take Hopper-v5 or Hopper-v4"),
    ],
)
def test_refused_environments_get_one_line(env_id, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        find_task(env_id)
    assert "\n" not in str(caught.value)
