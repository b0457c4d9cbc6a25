"""The environment of a run: what it is made with, what is recorded of it, and which ids are refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.tasks import TASKS, TaskSizes, generic
from pdml.core.errors import UserError
from pdml.envs import env_spec
from pdml.envs.env_spec import spaces_of, spec_of, task_for
from pdml.envs.spaces import Spaces, spaces_from


def test_the_task_of_a_listed_environment_is_that_of_the_table():
    assert task_for("Hopper-v5") is TASKS["Hopper"]
    assert task_for("Humanoid-v4") is TASKS["Humanoid"]


def test_an_environment_that_is_not_listed_is_made_once_for_its_task(monkeypatch):
    made, original = [], env_spec.make_plain

    def counted(env_id):
        made.append(original(env_id))
        return made[-1]

    monkeypatch.setattr(env_spec, "make_plain", counted)
    task_for.cache_clear()
    assert task_for("Pendulum-v1") == task_for("Pendulum-v1") == generic(3, 1, time_limited=True)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("Hoper-v5", "did you mean Hopper-v5"),
        ("Zzz", "known: Hopper-v5"),
        ("CartPole-v1", "action space is Discrete"),
        ("FrozenLake-v1", "space is Discrete"),
        ("Pusher-v4", "mujoco < 3"),
        ("Hopper-v3", "take Hopper-v5 or Hopper-v4"),
        ("python:Point", "was a Python object"),
    ],
)
def test_refused_environments_get_one_line(env_id, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        task_for(env_id)
    assert "\n" not in str(caught.value)


def test_a_spec_has_spaces_rule_sizes_and_environments_of_its_settings():
    spec = spec_of(defaults("Humanoid-v5"))
    assert spec.sizes == TaskSizes(45, 17, True)
    assert spec.spaces.layout == (45, 17)
    assert np.array_equal(spec.spaces.high, np.full(17, 0.4))
    assert bool(spec.known.terminated(None, None, jnp.zeros((1, 45)))[0])
    assert spec.known.reward is None
    settings = change(defaults("Pendulum-v1", task=task_for("Pendulum-v1")), {"max_episode_steps": 2})
    spec = spec_of(settings)
    assert spec.sizes == TaskSizes(3, 1, True)
    assert spec.known.terminated is None
    assert spec.make_more() is spec.make_eval
    env = spec.make()
    env.reset(seed=0)
    env.step(np.zeros(1, np.float32))
    with pytest.warns(UserWarning, match="max_episode_steps = 2"):
        assert env.step(np.zeros(1, np.float32))[3]
    env.close()


def test_there_are_no_more_environments_where_they_are_borrowed_or_missing():
    spec = spec_of(defaults("Hopper-v5"))
    for other in (spec._replace(borrowed=True), spec._replace(make_eval=None)):
        with pytest.raises(UserError, match="diagnose: needs environments of its own"):
            other.make_more()


def test_spaces_of_the_table_are_those_of_the_environment_and_can_be_recorded():
    spaces = spaces_of("InvertedPendulum-v5")
    assert (spaces.obs_size, spaces.low.tolist(), spaces.high.tolist()) == (4, [-3.0], [3.0])
    recorded = {"obs_size": 3, "low": [-2.0, 0.0], "high": [2.0, 1.0]}
    read = spaces_from(recorded)
    assert read.layout == (3, 2)
    assert read.low.tolist() == recorded["low"]
    assert read.high.tolist() == recorded["high"]


def test_actions_to_the_environment_and_back():
    spaces = Spaces(3, np.array([-2.0, 0.0]), np.array([4.0, 1.0]))
    inside = np.array([[-1.0, 1.0], [0.0, -0.5]], np.float32)
    outside = spaces.to_env(inside)
    assert np.allclose(outside, [[-2.0, 1.0], [1.0, 0.25]])
    assert np.allclose(spaces.from_env(outside), inside)
    assert np.array_equal(spaces.from_env(np.array([[-9.0, 9.0]])), [[-1.0, 1.0]])
