"""pdml.Agent: the promises of its documentation, on environments that take a millisecond."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY, assert_same_run

import pdml
from pdml import cli
from pdml.api import Agent, Callback, Evaluation
from pdml.core.errors import RunError, UserError
from pdml.envs.spaces import Spaces
from pdml.runs.checkpoint import saved
from pdml.runs.policy import Policy
from pdml.runs.tensor_file import read_arrays

SETTINGS = {name: value for name, value in TINY.items() if name != "steps" and "." not in name}
for name, value in TINY.items():
    group, _, inner = name.partition(".")
    if inner and group not in ("ampo", "vagram"):
        SETTINGS.setdefault(group, {})[inner] = value


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


def beyond(obs, action, next_obs):
    return jnp.abs(next_obs[:, 0]) > 1.5


def new(path, env=Point, method="pdml", **more):
    settings = (
        SETTINGS
        if method not in ("sac", "redq")
        else {
            name: value
            for name, value in SETTINGS.items()
            if name not in ("dynamics", "mixture", "rollouts", "epoch_steps")
        }
    )
    return Agent(env, method, run_dir=path, **{**settings, **more})


def texts(path):
    return {name: (path / name).read_text() for name in ("progress.csv", "evaluations.csv")}


def test_learning_twice_n_is_learning_once_2n_bit_for_bit(tmp_path):
    with_pauses = new(tmp_path / "twice").learn(77, progress_bar=False).learn(77, progress_bar=False)
    at_once = new(tmp_path / "once").learn(154, progress_bar=False)
    assert texts(tmp_path / "twice") == texts(tmp_path / "once")
    assert_same_run(tmp_path / "twice", tmp_path / "once")
    assert with_pauses.steps == at_once.steps == 154
    assert (tmp_path / "once" / "DONE").read_text() == "154\n"


def test_a_saved_agent_goes_on_as_the_one_that_was_not(tmp_path):
    agent = new(tmp_path / "run").learn(95, progress_bar=False)
    agent.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy", env=Point).learn(45, progress_bar=False)
    agent.learn(45, progress_bar=False)
    assert texts(tmp_path / "run") == texts(tmp_path / "copy")
    assert np.array_equal(again.predict(np.ones((3, 2))), agent.predict(np.ones((3, 2))))


def test_a_run_of_the_command_line_is_an_agent_and_the_other_way_round(tmp_path, capsys):
    words = [
        f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in TINY.items()
    ]
    words = [word for word in words if not word.startswith(("--ampo", "--vagram", "--steps"))]
    assert (
        cli.main(["train", "--env", "Pendulum-v1", "--steps", "140", "--run-dir", str(tmp_path / "shell"), *words]) == 0
    )
    Agent("Pendulum-v1", run_dir=tmp_path / "python", **SETTINGS).learn(100, progress_bar=False).close()
    assert cli.main(["resume", str(tmp_path / "python"), "--steps", "140"]) == 0
    assert texts(tmp_path / "shell") == texts(tmp_path / "python")
    agent = Agent.load(tmp_path / "shell")
    assert agent.steps == 140
    capsys.readouterr()
    assert cli.main(["eval", str(tmp_path / "python"), "--episodes", "2"]) == 0
    assert f"mean return {agent.evaluate(2).mean:.1f}" in capsys.readouterr().out


def test_actions_are_in_the_environments_own_range_and_reach_both_ends(tmp_path):
    env = Point()
    with pytest.warns(UserWarning, match="without eval_env"):
        agent = new(tmp_path / "run", env=env).learn(100, progress_bar=False)
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


def test_the_policy_is_a_function_of_numpy_arrays_without_jax(tmp_path):
    agent = new(tmp_path / "run", method="sac").learn(80, progress_bar=False)
    obs = np.random.default_rng(0).normal(size=(20, 2))
    agent.policy.save(tmp_path / "policy.safetensors")
    assert np.allclose(Policy.load(tmp_path / "policy.safetensors")(obs), agent.predict(obs), atol=1e-5)
    assert np.allclose(Policy.load(tmp_path / "run")(obs[0]), agent.predict(obs[0]), atol=1e-5)
    code = f"""
import sys, numpy, pdml
policy = pdml.Policy.load({str(tmp_path / "run")!r})
print(policy(numpy.zeros(2)).shape, policy.step, 'jax' in sys.modules, 'gymnasium' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(1,)", "80", "False", "False"]


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


def test_callbacks_hear_of_steps_blocks_and_evaluations_and_may_stop(tmp_path):
    heard = Counting()
    agent = new(tmp_path / "run").learn(125, heard, progress_bar=False)
    assert heard.steps == list(range(1, 126))
    assert heard.blocks == [80, 100, 120]
    assert heard.evaluations == [(80, 2), (120, 2)]
    agent.learn(100, Counting(stop_at=133), progress_bar=False)
    assert agent.steps == 133
    assert not (tmp_path / "run" / "DONE").exists()
    agent.learn(21, progress_bar=False)
    new(tmp_path / "once").learn(154, progress_bar=False)
    assert texts(tmp_path / "run") == texts(tmp_path / "once")


def test_learned_known_and_never_ending_imagination(tmp_path):
    rows = {}
    for name, termination in (("known", beyond), ("never", "never"), ("learned", None)):
        agent = new(tmp_path / name, termination=termination, rollouts={"batch": 200, "longest": 5, "shortest": 5})
        agent.learn(140, progress_bar=False)
        row = np.genfromtxt(tmp_path / name / "progress.csv", delimiter=",", names=True, deletechars="")
        rows[name] = row["imagined/terminated"].sum(), "ending/rate" in row.dtype.names
        far = agent.model.predict([3.0, 0.0], [0.0])
        assert bool(far.terminated) == (name == "known") or name == "learned"
    assert rows["never"] == (0.0, False)
    assert rows["known"][0] > 0
    assert rows["known"][1] is False
    assert rows["learned"][1] is True


def test_a_known_reward_takes_the_place_of_the_learned_one(tmp_path):
    agent = new(tmp_path / "run", reward=lambda obs, action, next_obs: 100.0 + action[:, 0])
    agent.learn(81, progress_bar=False)
    assert agent.model.predict([0.0, 0.0], [3.0]).reward == pytest.approx(103.0, abs=1e-4)
    arrays, _ = read_arrays(saved(tmp_path / "run")[0])
    size = int(arrays["imagined.size"])
    rewards, actions = arrays["imagined.rows"][:size, 3], arrays["imagined.rows"][:size, 2]
    assert np.allclose(rewards, 100.0 + 1.0 + 3.0 * actions, atol=1e-3)  # -2 to 4 is 1 + 3 a


def test_prior_transitions_are_a_block_of_their_own_before_the_warm_up(tmp_path):
    drawn = np.random.default_rng(0)
    prior = {
        "obs": drawn.normal(size=(30, 2)),
        "action": drawn.uniform(-2, 4, (30, 1)),
        "reward": drawn.normal(size=30),
    }
    prior |= {"next_obs": drawn.normal(size=(30, 2)), "terminated": drawn.random(30) < 0.2}
    agent = new(tmp_path / "run", prior=prior).learn(141, progress_bar=False)
    arrays, note = read_arrays(saved(tmp_path / "run")[0])
    assert arrays["replay.block_sizes"][:3].tolist() == [30, 60, 20]
    assert np.allclose(arrays["replay.rows"][:30, :2], prior["obs"], atol=1e-6)
    assert np.allclose(arrays["replay.rows"][:30, 2], (prior["action"][:, 0] - 1.0) / 3.0, atol=1e-6)
    assert note["prior"] == 30
    last, _ = read_arrays(sorted((tmp_path / "run" / "blocks").glob("*"))[-1])
    model, shift = last["model"], last["shift"]
    assert model[0] == pytest.approx(model[1]) == pytest.approx(model[2])  # the share of the first policy
    assert np.isnan(shift[0])
    assert len(shift) == len(model)
    agent.save(tmp_path / "copy")
    agent.learn(20, progress_bar=False)
    Agent.load(tmp_path / "copy", env=Point).learn(20, progress_bar=False)
    assert texts(tmp_path / "run") == texts(tmp_path / "copy")


def ask_and_tell(agent, env, obs, steps):
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        agent.observe(obs, reward, terminated, truncated)
        if terminated or truncated:
            obs, _ = env.reset()
    return obs


def test_asking_and_telling_learns_the_same_as_handing_the_environment_over(tmp_path):
    class Seeded(Point):  # as a run resets it
        number = 0

        def reset(self, *, seed=None, options=None):
            from pdml.core.rng import Purpose, env_seed

            self.number += 1
            return super().reset(seed=env_seed(0, Purpose.EPISODE, self.number - 1))

    env = Seeded()
    spaces = (Point.observation_space, Point.action_space)
    asked = new(tmp_path / "asked", env=spaces, eval_episodes=0)
    obs = ask_and_tell(asked, env, env.reset()[0], 130)
    handed = new(tmp_path / "handed", eval_episodes=0, max_episode_steps=0).learn(130, progress_bar=False)
    assert np.allclose(asked.predict(np.ones((4, 2))), handed.predict(np.ones((4, 2))), atol=1e-3)
    asked.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy")
    other = Seeded()
    other.reset()
    other.state, other.time, other.number = env.state.copy(), env.time, env.number
    ask_and_tell(again, other, obs, 15)
    ask_and_tell(asked, env, obs, 15)
    assert np.array_equal(again.predict(np.ones((4, 2))), asked.predict(np.ones((4, 2))))


def test_what_was_done_instead_of_the_action_is_what_is_stored(tmp_path):
    agent = new(tmp_path / "run", env=(Point.observation_space, Point.action_space))
    agent.act([0.1, 0.2])
    agent.observe([0.3, 0.4], 1.5, False, action=[4.0])
    rows = agent._session.state.replay.stored().rows
    assert np.allclose(rows[0], [0.1, 0.2, 1.0, 1.5, 0.3, 0.4, 0.0])


def test_an_environment_is_evaluated_in_the_one_that_was_given_for_it(tmp_path):
    env, other = Point(), Point()
    agent = new(tmp_path / "run", env=env, eval_env=other, eval_episodes=3).learn(85, progress_bar=False)
    rows = np.genfromtxt(tmp_path / "run" / "evaluations.csv", delimiter=",", names=True)
    assert rows["step"].tolist() == [80, 80, 80]
    taken = len(env.actions)
    assert taken == 85
    assert len(agent.evaluate(2).returns) == 2
    assert len(env.actions) == taken
    assert len(other.actions) > 0


class Failing(Point):
    left = 110

    def step(self, action):
        Failing.left -= 1
        if Failing.left == 0:
            raise RuntimeError("the motor is on fire")
        return super().step(action)


def test_after_a_failure_the_agent_stands_at_its_last_checkpoint_and_goes_on(tmp_path):
    agent = new(tmp_path / "run", env=Failing, checkpoint_every=50, eval_episodes=0)
    with pytest.raises(RunError, match="raised RuntimeError: the motor is on fire"):
        agent.learn(120, progress_bar=False)
    assert agent.steps == 100
    assert "the motor is on fire" in (tmp_path / "run" / "error.txt").read_text()
    agent.learn(20, progress_bar=False)
    new(tmp_path / "once", checkpoint_every=50, eval_episodes=0).learn(120, progress_bar=False)
    assert texts_without_env(tmp_path / "run") == texts_without_env(tmp_path / "once")
    assert not (tmp_path / "run" / "error.txt").exists()


def texts_without_env(path):
    return (path / "progress.csv").read_text()


def test_dm_control_is_an_environment_like_others(tmp_path):
    pytest.importorskip("shimmy")
    agent = new(tmp_path / "run", "dm_control/cartpole-balance-v0", eval_episodes=0)
    agent.learn(81, progress_bar=False)
    assert agent.predict(np.zeros(5)).shape == (1,)
    assert agent.config.max_episode_steps == 1000


def test_two_agents_do_not_share_a_directory(tmp_path):
    agent = new(tmp_path / "run").learn(61, progress_bar=False)
    other = Agent.load(tmp_path / "run", env=Point)
    assert other.predict(np.zeros(2)).shape == (1,)
    with pytest.raises(UserError, match="another process or agent is running it"):
        other.learn(1)
    agent.learn(10, progress_bar=False)
    agent.close()
    with pytest.raises(UserError, match="has gone on since it was loaded"):
        other.learn(1)


def test_the_package_imports_without_jax_and_names_what_it_lacks():
    code = "import sys, pdml; print('jax' in sys.modules); pdml.Agnet"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n"
    assert "has no attribute 'Agnet'" in done.stderr
    assert set(pdml.__all__) <= set(dir(pdml)) | {"Agent", "Callback", "Evaluation", "Model", "Policy", "Prediction"}
    assert (Path(pdml.__file__).parent / "py.typed").exists()


def steps_of(path):
    return [int(line.split(",")[0]) for line in (path / "progress.csv").read_text().splitlines()[1:]]


def test_going_on_by_asking_after_an_unfinished_block_takes_its_row_back(tmp_path):
    agent = new(tmp_path / "run", env=Point, eval_episodes=0).learn(100, Counting(stop_at=95), progress_bar=False)
    assert steps_of(tmp_path / "run") == [80, 95]
    env = Point()
    obs = ask_and_tell(agent, env, env.reset(seed=1)[0], 30)
    agent.save()
    assert steps_of(tmp_path / "run") == [80, 100, 120]
    agent.close()
    again = Agent.load(tmp_path / "run", env=Point)
    ask_and_tell(again, env, obs, 5)
    assert steps_of(tmp_path / "run") == [80, 100, 120]
    with pytest.raises(UserError, match="the agent is closed"):
        agent.learn(1)


def test_a_block_is_opened_once_whoever_asks_again(tmp_path):
    agent = new(tmp_path / "run", env=(Point.observation_space, Point.action_space))
    env = Point()
    obs = ask_and_tell(agent, env, env.reset(seed=1)[0], 80)
    first = agent.act(obs)
    count = agent._session.state.history.count
    assert np.array_equal(agent.act(obs), first)
    agent.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy")
    assert np.array_equal(again.act(obs), first)
    assert again._session.state.history.count == agent._session.state.history.count == count


def test_a_run_keeps_its_termination(tmp_path):
    new(tmp_path / "run").learn(61, progress_bar=False).close()
    with pytest.raises(UserError, match="termination: the run has 'learned', not a function"):
        Agent.load(tmp_path / "run", env=Point, termination=beyond)
    Agent("Pendulum-v1", run_dir=tmp_path / "id", **SETTINGS).save()
    with pytest.raises(UserError, match="the run's environment is 'Pendulum-v1'"):
        Agent.load(tmp_path / "id", env="InvertedPendulum-v5")


def test_a_failure_before_the_first_checkpoint_leads_back_to_the_beginning(tmp_path):
    Failing.left = 65
    agent = new(tmp_path / "run", env=Failing, eval_episodes=0)
    with pytest.raises(RunError, match="the motor is on fire"):
        agent.learn(70, progress_bar=False)
    assert agent.steps == 0
    agent.learn(85, progress_bar=False)
    new(tmp_path / "once", eval_episodes=0).learn(85, progress_bar=False)
    assert (tmp_path / "run" / "progress.csv").read_text() == (tmp_path / "once" / "progress.csv").read_text()


def test_ctrl_c_while_observing_saves_and_leaves_a_whole_agent(tmp_path, monkeypatch):
    agent = new(tmp_path / "run", env=(Point.observation_space, Point.action_space))
    env = Point()
    obs = ask_and_tell(agent, env, env.reset(seed=1)[0], 70)
    absorb = pdml.api.absorb

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        absorb(*args)

    monkeypatch.setattr(pdml.api, "absorb", interrupted)
    agent.act(obs)
    with pytest.raises(KeyboardInterrupt, match="SIGINT; the run is saved"):
        agent.observe(obs, 0.0, False)
    monkeypatch.undo()
    assert agent.steps == 71
    ask_and_tell(agent, env, obs, 12)
    assert agent.steps == 83


def test_a_factory_must_make_a_new_environment_each_time(tmp_path):
    env = Point()
    with pytest.raises(UserError, match="the same environment each time"):
        new(tmp_path / "run", env=lambda: env)
    assert not env.closed


def test_saving_a_loaded_run_in_place_changes_nothing(tmp_path):
    new(tmp_path / "run").learn(95, progress_bar=False).close()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    Agent.load(tmp_path / "run", env=Point).save()
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_actions_never_leave_their_bounds_by_rounding():
    drawn = np.random.default_rng(0)
    for _ in range(200):
        low = drawn.normal(size=3)
        spaces = Spaces(2, low, low + drawn.uniform(0.1, 3.0, 3))
        box = gymnasium.spaces.Box(spaces.low.astype(np.float32), spaces.high.astype(np.float32))
        for end in (-1.0, 1.0):
            assert box.contains(spaces.outward(np.full((1, 3), end, np.float32))[0])
