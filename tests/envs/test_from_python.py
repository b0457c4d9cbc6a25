"""Environments that are passed as Python objects, in each form."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.tasks import TASKS, TaskSizes, generic
from pdml.config.validate import OBJECT
from pdml.core.errors import UserError
from pdml.envs.from_python import absent_spec, name_and_task, require_spaces, spec_for
from pdml.envs.spaces import Spaces


class Line(gymnasium.Env):
    """A point on a line."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-2.0, 4.0, (1,), np.float64)

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


SPACES = (Line.observation_space, Line.action_space)


def settings_of(env, **changes):
    name, task = name_and_task(env)
    return change(defaults(name, task=task), changes)


@pytest.mark.parametrize(
    ("env", "name", "time_limited"),
    [
        (Line, "python:Line", False),
        (Line(), "python:Line", False),
        (lambda: TimeLimit(Line(), 9), "python:Line", True),
        (SPACES, "python:spaces", True),
        ("Pendulum-v1", "Pendulum-v1", True),
    ],
)
def test_name_task_and_sizes_of_each_form(env, name, time_limited):
    size = 3 if name == "Pendulum-v1" else 2
    assert name_and_task(env) == (name, generic(size, 1, time_limited))
    if isinstance(env, gymnasium.Env):
        with pytest.warns(UserWarning, match="without eval_env"):
            spec = spec_for(env, None, settings_of(env), {})
    else:
        spec = spec_for(env, None, settings_of(env), {})
    assert spec.sizes == TaskSizes(size, 1, time_limited)
    assert (spec.make is None) == isinstance(env, tuple)
    assert (spec.make_eval is None) == isinstance(env, tuple | gymnasium.Env)
    assert spec.borrowed == isinstance(env, gymnasium.Env)


def test_a_listed_id_has_its_own_task():
    assert name_and_task("Hopper-v5") == ("Hopper-v5", TASKS["Hopper"])


def test_environments_that_were_made_to_look_at_are_closed_and_passed_ones_are_not():
    made = []

    def make():
        made.append(Line())
        return made[-1]

    spec_for(make, None, settings_of(make), {})
    assert len(made) == 3
    assert all(env.closed for env in made)
    env, eval_env = Line(), Line()
    spec = spec_for(env, eval_env, settings_of(env), {})
    assert spec.make().unwrapped is env
    assert spec.make_eval().unwrapped is eval_env
    assert not env.closed
    assert not eval_env.closed


def test_an_absent_environment_has_the_recorded_spaces_and_no_environments():
    spaces = Spaces(2, np.array([-2.0]), np.array([4.0]))
    settings = settings_of(Line)
    spec = absent_spec(spaces, settings, {})
    assert (spec.spaces, spec.make, spec.make_eval) == (spaces, None, None)
    assert spec.sizes == TaskSizes(2, 1, False)
    unlimited = change(settings, {"max_episode_steps": 0})
    assert absent_spec(spaces, unlimited, {}).sizes.time_limited
    assert not absent_spec(spaces, unlimited, {}, name_and_task(Line)[1]).sizes.time_limited
    with pytest.raises(UserError, match=r"termination: it was a Python function; resume with pdml.Agent.load"):
        absent_spec(spaces, change(settings, {"termination": OBJECT}), {})


def test_an_environment_of_other_sizes_does_not_fit_a_run(tmp_path):
    spaces, other = (Spaces(size, np.array([-2.0]), np.array([4.0])) for size in (2, 3))
    require_spaces(spaces, spaces, tmp_path)
    with pytest.raises(UserError) as caught:
        require_spaces(other, spaces, tmp_path)
    sentence = f"observations of size 3 and actions of size 1 do not fit the run '{tmp_path}', which has 2 and 1"
    assert str(caught.value) == f"env: {sentence}"


def test_an_environment_with_other_bounds_of_actions_does_not_fit_a_run(tmp_path):
    run, other = (Spaces(2, np.array([-1.0, low]), np.array([1.0, 4.0])) for low in (-2.0, -3.0))
    require_spaces(run, Spaces(2, run.low.astype(np.float32), run.high), tmp_path)
    with pytest.raises(UserError) as caught:
        require_spaces(other, run, tmp_path)
    assert str(caught.value) == f"env: actions in [-3, 4] do not fit the run '{tmp_path}', which has them in [-2, 4]"
