"""`Agent.save`, `Agent.load`, `pdml.Policy`: what is saved is the whole agent, and runs of the commands are agents."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from faulty_runs import FAULTY
from point_env import Point, beyond, learned, new_agent, tables, tiny_settings
from tiny import TINY

import pdml
from pdml.api import Agent
from pdml.cli import main
from pdml.config.parse import shown
from pdml.core.errors import LostRunError, UserError
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.policy import Policy
from pdml.runs.tensor_file import read_arrays

ENV = FAULTY
"""An id; it has no fault unless a test chooses one, and the sizes of `Point`, so it compiles nothing new."""


def test_a_saved_agent_resumes_as_the_one_that_was_not_saved(tmp_path):
    agent = learned(tmp_path / "run", 95)
    agent.save(tmp_path / "copy")
    again = Agent.load(tmp_path / "copy", env=Point).learn(45, progress_bar=False)
    agent.learn(45, progress_bar=False)
    assert tables(tmp_path / "run") == tables(tmp_path / "copy")
    assert np.array_equal(again.predict(np.ones((3, 2))), agent.predict(np.ones((3, 2))))


def test_a_closed_agent_is_saved_with_all_its_rows(tmp_path):
    agent = learned(tmp_path / "run", 95)
    agent.close()
    agent.save(tmp_path / "copy")
    Agent.load(tmp_path / "copy", env=Point).learn(45, progress_bar=False)
    Agent.load(tmp_path / "run", env=Point).learn(45, progress_bar=False)
    assert tables(tmp_path / "copy") == tables(tmp_path / "run")


def test_a_run_is_not_loaded_with_other_bounds_of_actions(tmp_path):
    learned(tmp_path / "run", 62).close()

    class Stronger(Point):
        action_space = gymnasium.spaces.Box(-2.0, 5.0, (1,), np.float64)

    with pytest.raises(
        UserError, match=r"env: actions in \[-2, 5\] do not fit the run .*, which has them in \[-2, 4\]"
    ):
        Agent.load(tmp_path / "run", env=Stronger)
    with pytest.raises(UserError, match="eval_env: goes with an environment as env only"):
        Agent.load(tmp_path / "run", eval_env=Point())


def test_saving_a_loaded_run_in_place_changes_nothing(tmp_path):
    learned(tmp_path / "run", 95).close()
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    Agent.load(tmp_path / "run", env=Point).save()
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_of_the_command_line_is_an_agent_and_the_other_way_round(tmp_path, capsys):
    words = [f"--{name}={shown(value)}" for name, value in TINY.items()]
    words = [word for word in words if not word.startswith(("--ampo", "--vagram", "--steps"))]
    shell, python = tmp_path / "shell", tmp_path / "python"
    assert main(["train", "--env", ENV, "--steps", "140", "--run-dir", str(shell), *words]) == 0
    Agent(ENV, run_dir=python, **tiny_settings()).learn(100, progress_bar=False).close()
    assert main(["resume", str(python), "--steps", "140"]) == 0
    assert tables(shell) == tables(python)
    agent = Agent.load(shell)
    assert agent.steps == 140
    capsys.readouterr()
    assert main(["eval", str(python), "--episodes", "2"]) == 0
    assert f"mean return {agent.evaluate(2).mean:.1f}" in capsys.readouterr().out


def test_the_policy_is_a_function_of_numpy_arrays_without_jax(tmp_path):
    agent = learned(tmp_path / "run", 80, method="sac")
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


def test_the_package_imports_without_jax_and_names_what_it_lacks():
    code = "import sys, pdml; print('jax' in sys.modules); pdml.Agnet"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n"
    assert "has no attribute 'Agnet'" in done.stderr
    assert all(hasattr(pdml, name) for name in pdml.__all__)
    assert (Path(pdml.__file__).parent / "py.typed").exists()


def test_prior_transitions_are_a_block_of_their_own_before_the_warm_up(tmp_path):
    rng = np.random.default_rng(0)
    prior = {"obs": rng.normal(size=(30, 2)), "action": rng.uniform(-2, 4, (30, 1)), "reward": rng.normal(size=30)}
    prior |= {"next_obs": rng.normal(size=(30, 2)), "terminated": rng.random(30) < 0.2}
    agent = learned(tmp_path / "run", 141, prior=prior)
    arrays, note = read_arrays(saved_checkpoints(tmp_path / "run")[0])
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
    assert tables(tmp_path / "run") == tables(tmp_path / "copy")


def test_two_agents_do_not_share_a_directory(tmp_path):
    agent = learned(tmp_path / "run", 61)
    other = Agent.load(tmp_path / "run", env=Point)
    assert other.predict(np.zeros(2)).shape == (1,)
    with pytest.raises(UserError, match="another process or agent is running it"):
        other.learn(1)
    agent.learn(10, progress_bar=False)
    agent.close()
    with pytest.raises(UserError, match="has been continued since it was loaded"):
        other.learn(1)


def test_an_agent_that_was_frozen_and_replaced_is_closed_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PDML_LEASE_SECONDS", "1e6")  # no heartbeat during the test
    path = tmp_path / "run"
    agent = learned(path, 61)
    os.utime(path / "lease" / "000001.json", (0, 0))
    other = Agent.load(path, env=Point)
    other.learn(20, progress_bar=False)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(LostRunError, match="another process has taken the run over"):
        agent.learn(20, progress_bar=False)
    with pytest.raises(UserError, match="the agent is closed; load it again"):
        agent.learn(20)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    other.learn(20, progress_bar=False)
    other.close()


@pytest.mark.slow
def test_a_run_keeps_its_termination_and_its_environment(tmp_path):
    new_agent(tmp_path / "run", termination=None).save()
    with pytest.raises(UserError, match="termination: the run has 'learned', not a function"):
        Agent.load(tmp_path / "run", env=Point, termination=beyond)
    new_agent(tmp_path / "id", env="Pendulum-v1").save()
    with pytest.raises(UserError, match="the run's environment is 'Pendulum-v1'"):
        Agent.load(tmp_path / "id", env="InvertedPendulum-v5")
