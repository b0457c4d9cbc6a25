"""The best policy of a run, which is not its last one; and the evaluation at the end of a run."""

import csv
import shutil

import gymnasium
import numpy as np
import pytest
from point_env import Point, learned, new_agent
from run_files import assert_same_files

from pdml.api import Agent, Callback
from pdml.core.rng import Purpose, env_seed
from pdml.runs.best_policy import best_of
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.policy import Policy
from pdml.runs.tensor_file import read_arrays, write_arrays

RETURNS = {80: 1.0, 100: 9.0, 120: 8.0, 130: 50.0, 140: 2.0, 160: 1.0}
"""What evaluations return, by step. Step 130 is one only where a run ends there."""
BY_SEED = {env_seed(0, Purpose.EVALUATION, step): value for step, value in RETURNS.items()}
"""The same by the seed of the episode."""


class Graded(gymnasium.Env):
    """An environment for evaluation with the sizes of `Point`: an episode is one step, which gives what is wanted."""

    observation_space, action_space = Point.observation_space, Point.action_space

    def reset(self, *, seed=None, options=None):
        self.reward = BY_SEED.get(seed, 0.0)
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), self.reward, True, False, {}


SETTINGS = {"eval_every": 20, "eval_episodes": 1, "best_over": 2, "checkpoint_every": 55}


class Policies(Callback):
    """Keeps the policy of every evaluation."""

    def __init__(self):
        self.kept = {}

    def on_evaluation(self, agent, evaluation):
        self.kept[evaluation.step] = agent.policy.arrays()


def agent_for(path):
    return new_agent(path, Point(), "sac", eval_env=Graded(), **SETTINGS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of 160 steps whose last phase is bad, and its policies by step."""
    path, policies = tmp_path_factory.mktemp("unbroken") / "run", Policies()
    agent_for(path).learn(160, policies, progress_bar=False).close()
    return path, policies.kept


def load(path):
    return Agent.load(path, Point(), eval_env=Graded())


def best_bytes(path):
    return (path / "best_policy.safetensors").read_bytes()


def same(arrays, others):
    return arrays.keys() == others.keys() and all(np.array_equal(arrays[name], others[name]) for name in arrays)


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def chosen(returns, best_over):
    """Return which policy is the best after each of some evaluations, and the score of the last best."""
    best, found = None, []
    for step in range(len(returns)):
        last = tuple(map(float, returns[: step + 1][-best_over:]))
        best = best_of(best, last, lambda step=step: Policy((), np.zeros(1), np.ones(1), step))
        found.append(best.policy.step)
    return found, best.score


@pytest.mark.parametrize(
    ("returns", "best_over", "steps", "score"),
    [
        ([1, 3, 2, 5, 4], 1, [0, 1, 1, 3, 3], 5),  # each by its own evaluation
        ([1, 2, 3, 4], 3, [0, 1, 2, 3], 3),  # it gets better and better
        ([4, 3, 2, 1], 3, [0, 0, 0, 0], 3),  # worse and worse
        ([5, 5, 5, 5], 3, [0, 0, 0, 0], 5),  # nothing changes: the first stays
        ([100, 50, 60, 55, 70, 75, 80], 3, [0, 0, 0, 0, 0, 0, 6], 75),  # the first is lucky: it counts as 70
        ([5, 6, 7, 100, 7, 8, 7], 3, [0, 1, 2, 3, 3, 3, 3], 113 / 3),  # one in the middle is, and counts as 38
        ([900, 960, 950, 300, 920], 3, [0, 1, 1, 1, 1], 2810 / 3),  # a bad one after good ones is never the best
        ([900, 900, 100], 3, [0, 0, 0], 1900 / 3),  # not even when the mean is the first over all three
    ],
)
def test_the_best_policy_has_the_highest_lesser_of_its_own_return_and_the_mean_of_the_last(
    returns, best_over, steps, score
):
    found, last = chosen(returns, best_over)
    assert found == steps
    assert last == pytest.approx(score)


def test_the_best_policy_is_kept_where_the_last_phase_is_bad(unbroken):
    path, policies = unbroken
    arrays, note = read_arrays(path / "best_policy.safetensors")
    assert same(arrays, policies[120])
    assert not same(arrays, policies[160])
    assert same(read_arrays(path / "policy.safetensors")[0], policies[160])
    assert {key: note[key] for key in ("step", "return", "mean_return", "evaluations")} == {
        "step": 120,
        "return": 8.0,
        "mean_return": 8.5,
        "evaluations": 2,
    }
    assert Policy.load(path).step == Policy.load(path, "last").step == 160
    best = Policy.load(path, "best")
    assert best.step == 120
    assert same(best.arrays(), policies[120])


def test_an_agent_can_look_at_its_best_policy_and_learns_on_from_the_last(unbroken):
    agent, policies = load(unbroken[0]), unbroken[1]
    assert same(agent.best_policy.arrays(), policies[120])
    assert agent.evaluate(1, policy="best") == (120, (8.0,), (1,))  # as it was judged
    assert agent.evaluate(1) == agent.evaluate(1, policy="last") == (160, (1.0,), (1,))
    assert same(agent.policy.arrays(), policies[160])
    agent.close()


def test_resuming_makes_the_best_policy_what_it_was_at_the_checkpoint(unbroken, tmp_path):
    """As a run that was killed after step 120 leaves it: the file is newer than the checkpoint of step 110."""
    path = tmp_path / "run"
    shutil.copytree(unbroken[0], path)
    (path / "DONE").unlink()
    saved_checkpoints(path)[0].unlink()
    agent = load(path)
    assert agent.steps == 110
    agent.learn(5, progress_bar=False)
    assert agent.best_policy.step == 100
    assert same(agent.best_policy.arrays(), unbroken[1][100])
    agent.learn(45, progress_bar=False)
    agent.close()
    assert best_bytes(path) == best_bytes(unbroken[0])
    assert (path / "evaluations.csv").read_bytes() == (unbroken[0] / "evaluations.csv").read_bytes()


def test_a_resume_removes_a_best_policy_that_the_checkpoint_does_not_know(unbroken, tmp_path):
    path = tmp_path / "run"
    agent = agent_for(path)
    agent.learn(55, progress_bar=False)  # of the warm-up
    agent.close()
    assert not (path / "best_policy.safetensors").exists()
    shutil.copy(unbroken[0] / "best_policy.safetensors", path)
    load(path).learn(1, progress_bar=False).close()
    assert not (path / "best_policy.safetensors").exists()


def test_the_evaluation_at_the_end_is_gone_in_a_run_that_goes_further(unbroken, tmp_path):
    path, copy = tmp_path / "run", tmp_path / "copy"
    agent = agent_for(path).learn(130, progress_bar=False)
    assert [(row["step"], float(row["return"])) for row in rows(path / "evaluations.csv")[-2:]] == [
        ("120", 8.0),
        ("130", 50.0),
    ]
    block = rows(path / "progress.csv")[-1]
    assert (block["step"], block["eval/return"], block["evaluation_steps"]) == ("130", "50.0", "4")
    assert agent.best_policy.step == 130  # 29 is the mean of the last two
    agent.save(copy)
    assert Policy.load(copy, "best").step == 120
    agent.learn(30, progress_bar=False)
    agent.close()
    load(copy).learn(30, progress_bar=False).close()
    for again in (path, copy):
        for name in ("evaluations.csv", "progress.csv", "best_policy.safetensors", "policy.safetensors"):
            assert (again / name).read_bytes() == (unbroken[0] / name).read_bytes(), name


@pytest.mark.slow
def test_training_episodes_are_credited_to_the_policy_that_collected_them(tmp_path):
    """Not to the one that the update phase of their end has just made: it has not acted yet."""
    double = {"far": 3, "near": 2, "first_factor": 2, "dropout": (0.01,)}
    settings = {"eval_every": 20, "eval_episodes": 0, "best_over": 1, "batch_size": 30, "double": double}
    agent = new_agent(tmp_path / "run", Point, "dhmbpo", **settings)
    policies = {}
    for steps in range(60, 161, 20):
        agent.learn(steps - agent.steps, progress_bar=False)
        policies[steps] = agent.policy.arrays()
    returns = {}
    for row in rows(tmp_path / "run" / "evaluations.csv"):
        returns.setdefault(int(row["step"]), []).append(float(row["return"]))
    scores = {step: np.mean(values) for step, values in returns.items()}
    best = agent.best_policy
    agent.close()
    assert len(scores) > 2
    assert best.step == max(scores, key=scores.get) - 20
    assert same(best.arrays(), policies[best.step])
    assert not same(best.arrays(), policies[best.step + 20])


def test_a_run_that_was_killed_before_the_evaluation_at_its_end_makes_it_when_it_is_resumed(tmp_path):
    settings = {"env": Point, "method": "sac", "eval_every": 1000, "eval_episodes": 2}
    whole, path = tmp_path / "whole", tmp_path / "run"
    learned(whole, 90, **settings).close()
    assert [row["step"] for row in rows(whole / "evaluations.csv")] == ["90", "90"]
    assert Policy.load(whole, "best").step == 90
    shutil.copytree(whole, path)
    for name in ("DONE", "evaluations.csv", "best_policy.safetensors"):
        (path / name).unlink()
    agent = Agent.load(path, Point)
    agent._open().learn(90)  # what `pdml resume` does
    agent.close()
    assert_same_files(path, whole)


def test_a_checkpoint_of_an_earlier_version_has_a_best_policy_from_its_next_evaluation_on(unbroken, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(unbroken[0], path)
    for name in ("DONE", "best_policy.safetensors"):
        (path / name).unlink()
    newest, file = saved_checkpoints(path)
    newest.unlink()
    arrays, note = read_arrays(file)
    kept = {name: array for name, array in arrays.items() if not name.startswith("best.")}
    assert len(kept) < len(arrays)
    write_arrays(file, kept, {key: value for key, value in note.items() if key not in ("format", "returns", "best")})
    agent = load(path)
    assert agent.steps == 110
    agent.learn(50, progress_bar=False)
    agent.close()
    assert (path / "policy.safetensors").read_bytes() == (unbroken[0] / "policy.safetensors").read_bytes()
    note = read_arrays(path / "best_policy.safetensors")[1]
    assert (note["step"], note["return"], note["mean_return"]) == (120, 8.0, 5.0)  # of steps 120 and 140
