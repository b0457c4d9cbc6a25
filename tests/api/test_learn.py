"""`Agent.learn`: what its documentation promises, on an environment that takes a microsecond."""

import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from point_env import Point, learned, new_agent, tables
from tiny import assert_same_run

from pdml.api import Agent, Callback, Evaluation
from pdml.core.errors import RunError, UserError
from pdml.reporting.read import differences, read
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.recorder import StepRecord
from pdml.runs.tensor_file import read_arrays
from pdml.views import call_back


def columns(path):
    return np.genfromtxt(path / "progress.csv", delimiter=",", names=True, deletechars="")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of 154 steps that was learned at once."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    learned(path, 154).close()
    return path


def test_learning_twice_n_is_learning_once_2n_bit_for_bit(unbroken, tmp_path):
    agent = learned(tmp_path / "twice", 77).learn(77, progress_bar=False)
    assert tables(tmp_path / "twice") == tables(unbroken)
    assert_same_run(tmp_path / "twice", unbroken)
    assert agent.steps == 154
    assert (unbroken / "DONE").read_text() == "154\n"


@pytest.mark.slow
def test_the_same_holds_where_the_termination_is_learned(tmp_path):
    """As it is where none is given."""
    learned(tmp_path / "twice", 77, termination=None).learn(8, progress_bar=False)
    agent = learned(tmp_path / "once", 85, termination=None)
    assert agent.model.predict([3.0, 0.0], [0.0]).terminated.dtype == bool
    assert "ending/rate" in columns(tmp_path / "once").dtype.names
    assert tables(tmp_path / "twice") == tables(tmp_path / "once")
    assert_same_run(tmp_path / "twice", tmp_path / "once")


class Counting(Callback):
    def __init__(self, stop_at=None):
        self.steps, self.blocks, self.evaluations, self.stop_at = [], [], [], stop_at

    def on_step(self, agent):
        self.steps.append(agent.steps)
        return agent.steps != self.stop_at

    def on_block(self, agent, row):
        self.blocks.append(row["step"])

    def on_evaluation(self, agent, evaluation):
        assert isinstance(evaluation, Evaluation)
        self.evaluations.append((evaluation.step, len(evaluation.returns)))


def test_callbacks_are_called_for_steps_blocks_and_evaluations_and_may_stop(unbroken, tmp_path):
    heard = Counting()
    agent = new_agent(tmp_path / "run").learn(125, heard, progress_bar=False)
    assert heard.steps == list(range(1, 126))
    assert heard.blocks == [80, 100, 120]
    assert heard.evaluations == [(80, 2), (120, 2), (125, 2)]  # the last is that of the end
    agent.learn(100, Counting(stop_at=133), progress_bar=False)
    assert agent.steps == 133
    assert not (tmp_path / "run" / "DONE").exists()
    agent.learn(21, progress_bar=False)
    assert tables(tmp_path / "run") == tables(unbroken)


@pytest.mark.parametrize("answer", [np.False_, np.zeros(1, bool), jnp.asarray(False)], ids=["numpy", "array", "jax"])
def test_a_callback_may_answer_with_a_truth_value_of_numpy_or_jax(answer):
    class Answering(Callback):
        def __init__(self, answer):
            self.answer = answer

        def on_step(self, agent):
            return self.answer

    record = StepRecord(None, [])
    assert not call_back(Answering(answer), None, record)
    for other in (None, True, np.True_, jnp.asarray(True), 0, 0.0, "", np.zeros(1), [[1], [2, 3]]):
        assert call_back(Answering(other), None, record)


class Interrupting(Point):
    """Ctrl-C arrives during its 80th step, after which there is an evaluation."""

    def step(self, action):
        result = super().step(action)
        if len(self.actions) == 80:
            os.kill(os.getpid(), signal.SIGINT)
        return result


def test_callbacks_hear_of_the_step_at_which_a_run_is_stopped(unbroken, tmp_path):
    heard, agent = Counting(), new_agent(tmp_path / "run", env=Interrupting)
    with pytest.raises(KeyboardInterrupt, match="run is saved at step 80"):
        agent.learn(154, heard, progress_bar=False)
    assert (heard.steps[-1], heard.blocks, heard.evaluations) == (80, [80], [(80, 2)])
    Agent.load(tmp_path / "run", env=Point).learn(74, heard, progress_bar=False)
    assert heard.blocks == [80, 100, 120, 140]
    assert tables(tmp_path / "run") == tables(unbroken)


def test_a_stop_that_comes_while_a_callback_runs_saves_that_step(unbroken, tmp_path):
    class Slow(Counting):
        def on_step(self, agent):
            if agent.steps == 93:  # no checkpoint is due
                os.kill(os.getpid(), signal.SIGINT)
            return super().on_step(agent)

    heard, agent = Slow(), new_agent(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt, match="run is saved at step 93"):
        agent.learn(154, heard, progress_bar=False)
    Agent.load(tmp_path / "run", env=Point).learn(61, heard, progress_bar=False)
    assert heard.steps == list(range(1, 155))
    assert tables(tmp_path / "run") == tables(unbroken)


def test_without_an_environment_for_evaluation_the_run_says_that_its_returns_are_of_training(tmp_path):
    with pytest.warns(UserWarning, match="without eval_env"):
        agent = learned(tmp_path / "run", 125, env=Point())
    assert agent.settings.run.eval_episodes == 0
    agent.close()
    with (tmp_path / "run" / "evaluations.csv").open("a") as file:
        file.write("140,0,-30.0,40\n")  # fewer episodes than before: they were longer
    run = read(tmp_path / "run")
    assert (run.problems, differences(run)[0]) == ((), "eval_episodes=0")
    assert run.evaluations["step"][-1] == 140


def half_way(obs, action, next_obs):
    return jnp.abs(next_obs[:, 0]) > 0.5


@pytest.mark.slow
def test_known_termination_and_reward_replace_the_learned_ones(tmp_path):
    reward = lambda obs, action, next_obs: 100.0 + action[:, 0]  # noqa: E731
    agent = learned(tmp_path / "run", 81, termination=half_way, reward=reward)
    table = columns(tmp_path / "run")
    assert table["imagined/terminated"].sum() > 0
    assert "ending/rate" not in table.dtype.names
    near, far = (agent.model.predict([x, 0.0], [3.0]) for x in (0.0, 3.0))
    assert (bool(near.terminated), bool(far.terminated)) == (False, True)
    assert near.reward == pytest.approx(103.0, abs=1e-4)
    arrays, _ = read_arrays(saved_checkpoints(tmp_path / "run")[0])
    rows = arrays["imagined.rows"][: int(arrays["imagined.size"])]
    assert np.allclose(rows[:, 3], 100.0 + 1.0 + 3.0 * rows[:, 2], atol=1e-3)  # -2 to 4 is 1 + 3 a


def test_the_model_compiles_once_per_power_of_two_of_steps(tmp_path):
    agent = learned(tmp_path / "run", 62, termination="never")
    whole = agent.model.predict(np.ones((7, 2)), np.linspace(-2.0, 4.0, 7)[:, None])
    for rows in (5, 6, 8):
        found = agent.model.predict(np.ones((rows, 2)), np.linspace(-2.0, 4.0, 7)[np.arange(rows) % 7, None])
        assert found.next_obs.shape == found.spread.shape == (rows, 2)
        assert found.reward.shape == found.terminated.shape == (rows,)
        count = min(rows, 7)
        np.testing.assert_array_equal(found.next_obs[:count], whole.next_obs[:count])
    assert agent.model._expected._cache_size() == 1
    assert agent.model.predict([1.0, 1.0], [-2.0]).next_obs == pytest.approx(whole.next_obs[0], abs=1e-5)
    outputs = agent._live.training.parts.model.dynamics.means(
        agent._live.state.model, jnp.ones((1, 2)), -jnp.ones((1, 1))
    )
    assert whole.reward[0] == pytest.approx(float(outputs[:, 0, 0].mean()), abs=1e-5)
    assert whole.spread[0] == pytest.approx(np.asarray(outputs)[:, 0, 1:].std(axis=0), abs=1e-5)


def test_imagined_episodes_never_end_if_the_termination_says_so(tmp_path):
    agent = learned(tmp_path / "run", 81, termination="never")
    table = columns(tmp_path / "run")
    assert table["imagined/terminated"].sum() == 0
    assert "ending/rate" not in table.dtype.names
    assert not agent.model.predict([3.0, 0.0], [0.0]).terminated


def test_actions_are_in_the_environments_own_range_and_reach_both_ends(tmp_path):
    env = Point()
    with pytest.warns(UserWarning, match="without eval_env"):
        agent = learned(tmp_path / "run", 100, env=env)
    assert -2.0 <= min(env.actions) < -1.5
    assert 3.5 < max(env.actions) <= 4.0
    action = agent.predict(np.zeros((500, 2)), deterministic=False)
    assert action.shape == (500, 1)
    assert action.min() < 0.0
    assert action.max() > 2.0
    assert not np.array_equal(action, agent.predict(np.zeros((500, 2)), deterministic=False))
    assert agent.predict([0.5, 0.5]).shape == (1,)
    agent.close()
    assert not env.closed


def test_an_environment_is_evaluated_in_the_one_that_was_given_for_it(tmp_path):
    env, other = Point(), Point()
    agent = learned(tmp_path / "run", 85, env=env, eval_env=other, eval_episodes=3)
    rows = np.genfromtxt(tmp_path / "run" / "evaluations.csv", delimiter=",", names=True)
    assert rows["step"].tolist() == [80, 80, 80, 85, 85, 85]
    taken = len(env.actions)
    assert taken == 85
    assert len(agent.evaluate(2).returns) == 2
    assert len(env.actions) == taken
    assert len(other.actions) > 0


class Failing(Point):
    left = 0
    """Steps until it fails, over all environments of this kind."""

    def step(self, action):
        Failing.left -= 1
        if Failing.left == 0:
            raise RuntimeError("the motor is on fire")
        return super().step(action)


@pytest.mark.slow
def test_after_a_failure_the_agent_is_at_its_last_checkpoint_and_learns_on(tmp_path):
    Failing.left = 110
    agent = new_agent(tmp_path / "run", env=Failing, checkpoint_every=50, eval_episodes=0)
    with pytest.raises(RunError, match="raised RuntimeError: the motor is on fire"):
        agent.learn(120, progress_bar=False)
    assert agent.steps == 100
    assert "the motor is on fire" in (tmp_path / "run" / "error.txt").read_text()
    agent.learn(20, progress_bar=False)
    learned(tmp_path / "once", 120, env=Failing, checkpoint_every=50, eval_episodes=0)
    assert (tmp_path / "run" / "progress.csv").read_text() == (tmp_path / "once" / "progress.csv").read_text()
    assert not (tmp_path / "run" / "error.txt").exists()


def test_after_a_failure_before_the_first_checkpoint_the_agent_starts_again(tmp_path):
    Failing.left = 65
    agent = new_agent(tmp_path / "run", env=Failing, eval_episodes=0)
    with pytest.raises(RunError, match="the motor is on fire"):
        agent.learn(70, progress_bar=False)
    assert agent.steps == 0
    agent.learn(85, progress_bar=False)
    learned(tmp_path / "once", 85, env=Failing, eval_episodes=0)
    assert (tmp_path / "run" / "progress.csv").read_text() == (tmp_path / "once" / "progress.csv").read_text()


def test_a_factory_must_make_a_new_environment_each_time(tmp_path):
    env = Point()
    with pytest.raises(UserError, match="the same environment each time"):
        new_agent(tmp_path / "run", env=lambda: env)
    assert not env.closed


@pytest.mark.slow
def test_dm_control_is_an_environment_like_others(tmp_path):
    pytest.importorskip("shimmy")
    agent = learned(tmp_path / "run", 81, env="dm_control/cartpole-balance-v0", method="sac", eval_episodes=0)
    assert agent.predict(np.zeros(5)).shape == (1,)
    assert agent.config.max_episode_steps == 1000


def test_an_agent_offers_the_settings_of_learning_and_of_the_run(tmp_path):
    agent = new_agent(tmp_path / "run", eval_episodes=3, batch_size=17)
    assert agent.settings.learning == agent.config
    assert agent.config.batch_size == 17
    assert agent.settings.run.eval_episodes == 3
