"""Mistakes that people make in Python: each is an error of one line that names it, and nothing is written."""

import warnings

import gymnasium
import jaxtyping
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from still_point import SPACES, Point, small_agent

from pdml import UserError, check_env, sweep
from pdml.api import Agent, Callback
from pdml.runs.policy import Policy


def prior(count=8, **changed):
    """Transitions of the point, with some fields changed; None leaves one out."""
    rows = {
        "obs": np.zeros((count, 2)),
        "action": np.zeros((count, 1)),
        "reward": np.zeros(count),
        "next_obs": np.zeros((count, 2)),
        "terminated": np.zeros(count, bool),
    }
    return {name: rows for name, rows in {**rows, **changed}.items() if rows is not None}


@pytest.fixture(scope="module")
def agents(place):
    """Agents to be misused: one with an environment of its own, one that is stepped by others, one that was lent."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        warnings.simplefilter("ignore")
        found = {"own": small_agent(), "asked": small_agent(SPACES), "lent": small_agent(Point())}
    yield found
    for agent in found.values():
        agent.close()


class Other:
    pass


def raising():
    raise OSError("no robot\nis plugged in")


INPUTS = [
    # what is learned
    (
        lambda a: small_agent(None),
        "env = None: must be an id, an environment, a function that makes one, or a pair of spaces",
    ),
    (lambda a: small_agent(5), "env = 5: must be an id, an environment, a function"),
    (lambda a: small_agent(Other), "env: the function returned Other, not a gymnasium.Env"),
    (lambda a: small_agent(Other()), "must be an id, an environment, a function that makes one"),
    (lambda a: small_agent(lambda: "Hopper-v5"), "env: the function returned str, not a gymnasium.Env"),
    (lambda a: small_agent(lambda size: Point(size)), "env: the function failed (TypeError: "),
    (lambda a: small_agent(raising), "env: the function failed (OSError: no robot is plugged in)"),
    (lambda a: small_agent((1, 2)), "env: a pair must be (observation space, action space)"),
    (lambda a: small_agent((*SPACES, SPACES[0])), "env: a pair must be (observation space, action space)"),
    (lambda a: small_agent([*SPACES]), "must be an id, an environment"),
    (lambda a: small_agent((SPACES[0], Discrete(3))), "env = 'spaces': its action space is Discrete"),
    (lambda a: small_agent(gymnasium.make("CartPole-v1")), "env = 'CartPoleEnv': its action space is Discrete"),
    (
        lambda a: small_agent(gymnasium.make_vec("Pendulum-v1", 2)),
        "env: is a vector of environments; one environment is needed",
    ),
    (lambda a: small_agent("Hoper-v5"), "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
    (lambda a: small_agent("strange_envs:Words-v0"), "part 'a': its observation space is Text"),
    (lambda a: small_agent("python:Point"), "env = 'python:Point': was a Python object"),
    (lambda a: small_agent(eval_env=Point()), "eval_env: goes with an environment as env only"),
    (lambda a: small_agent("Pendulum-v1", eval_env=Point()), "eval_env: goes with an environment as env only"),
    (lambda a: (lambda env: small_agent(env, eval_env=env))(Point()), "eval_env: must be another environment than env"),
    (
        lambda a: (lambda env: small_agent(gymnasium.wrappers.TimeLimit(env, 9), eval_env=env))(Point()),
        "eval_env: must be another environment than env",
    ),
    (lambda a: small_agent(SPACES, max_episode_steps=50), "max_episode_steps = 50: does nothing with a pair of spaces"),
    (lambda a: small_agent(SPACES, env_timeout=5.0), "env_timeout = 5.0: does nothing with a pair of spaces"),
    (lambda a: small_agent(Point(), eval_env=Point(3)), "eval_env: its spaces are not those of env"),
    (lambda a: small_agent(Point(), eval_env=Point), "eval_env: must be an environment, as env is"),
    (lambda a: small_agent(Point(), eval_env="Pendulum-v1"), "eval_env: must be an environment, as env is"),
    # settings
    (lambda a: small_agent(method="scaffold"), "method = 'scaffold': unknown; allowed: pdml, mbpo"),
    (lambda a: small_agent(method="SAC"), "method = 'SAC': unknown (did you mean sac?)"),
    (lambda a: small_agent(method=None), "method = 'None': unknown; allowed: pdml"),
    (lambda a: small_agent(method=["sac"]), "method = '['sac']': unknown (did you mean sac?)"),
    (lambda a: small_agent(preset="papers"), "preset = 'papers': unknown (did you mean paper?)"),
    (lambda a: small_agent(seed=-1), "seed = -1: must lie in [0, 4294967295]"),
    (lambda a: small_agent(seed=1.0), "seed = 1.0: must be a whole number"),
    (lambda a: small_agent(seed=None), "seed = None: must be a whole number"),
    (lambda a: small_agent(seed=True), "seed = True: must be a whole number"),
    (lambda a: small_agent(batch_sise=4), "batch_sise: unknown setting (did you mean batch_size?)"),
    (lambda a: small_agent(learning_rate=0.1), "learning_rate: unknown setting (did you mean agent.learning_rate or "),
    (lambda a: small_agent(agent={"gama": 0.9}), "agent.gama: unknown setting (did you mean agent.gamma?)"),
    (lambda a: small_agent(agent=256), "agent = 256: is a group; give its settings as a dict"),
    (lambda a: small_agent(agent={"gamma": "high"}), "agent.gamma = 'high': must be a number"),
    (lambda a: small_agent(agent={3: 4}), "agent.3: unknown setting"),
    (lambda a: small_agent(agent={"hidden_sizes": ()}), "agent.hidden_sizes = '': at least one hidden layer is needed"),
    (lambda a: small_agent(agent={"hidden_sizes": 256}), "agent.hidden_sizes = 256: must be a comma-separated list"),
    (lambda a: small_agent(batch_size={"a": 1}), "batch_size = {'a': 1}: must be a whole number"),
    (lambda a: small_agent(batch_size=np.zeros(3)), "batch_size = array([0., 0., 0.]): must be a whole number"),
    (lambda a: small_agent(batch_size=1), "batch_size = 1: must lie in [2, inf)"),
    (lambda a: small_agent(steps=100), "steps: is what learn is given"),
    (lambda a: small_agent(env="Pendulum-v1", total_steps=100), "total_steps: unknown setting"),
    (lambda a: small_agent(dynamics={"patience": 3}), "dynamics.patience: method 'sac' has no such option"),
    (lambda a: small_agent(termination=lambda o, a, n: n[:, 0] > 0), "termination: method 'sac' has no such option"),
    (lambda a: small_agent(method="mbpo", mixture={"rate": 0.1}), "mixture.rate: method 'mbpo' has no such option"),
    (lambda a: small_agent(method="mbpo", reward=3), "reward = 3: must be a word"),
    (lambda a: small_agent(method="mbpo", reward=lambda o, a, n: n), "reward: returns shape (5, 2) for 5 steps"),
    (
        lambda a: small_agent(method="mbpo", reward=lambda o, a, n: np.abs(n[:, 0])),
        "write it with jax.numpy instead of numpy",
    ),
    (lambda a: small_agent(method="mbpo", reward=lambda o, a, n: None), "reward: "),
    (lambda a: small_agent(method="mbpo", termination=lambda o, n: n[:, 0] > 0), "termination: fails on batches"),
    (
        lambda a: small_agent(method="mbpo", termination="ends"),
        "termination = 'ends': allowed: never, learned, or module:",
    ),
    (lambda a: small_agent(run_dir="done"), "run-dir = 'done': already holds a run"),
    (lambda a: small_agent(run_dir="file/x"), "run-dir = 'file/x': 'file' is a file"),
    (lambda a: small_agent(run_dir=5), "run_dir = 5: must be a path"),
    (lambda a: small_agent(run_dir=""), "run_dir = '': must be a path; the current directory is '.'"),
    (lambda a: Agent.load(""), "run = '': must be a path; the current directory is '.'"),
    (lambda a: a["own"].save(""), "path = '': must be a path; the current directory is '.'"),
    # prior
    (
        lambda a: small_agent(prior=prior(reward=None)),
        "prior: has no reward; obs, action, reward, next_obs, terminated are",
    ),
    (lambda a: small_agent(prior=prior(rewards=np.zeros(8))), "prior: unknown field rewards (did you mean reward?)"),
    (lambda a: small_agent(prior=prior(reward=np.zeros(7))), "prior.reward: has 7 rows, prior.obs has 8"),
    (lambda a: small_agent(prior=prior(obs=np.zeros((8, 3)))), "prior.obs: has shape (8, 3); (2,) or (n, 2) is needed"),
    (
        lambda a: small_agent(prior=prior(next_obs=np.full((8, 2), np.nan))),
        "prior.next_obs: has numbers that are not finite",
    ),
    (lambda a: small_agent(prior=prior(reward=["high"] * 8)), "prior.reward: must be an array of numbers"),
    (lambda a: small_agent(prior=prior(terminated=[[1], [1, 2]])), "prior.terminated: must be an array of numbers"),
    (lambda a: small_agent(prior=prior(40), replay_capacity=40), "prior: 40 rows do not fit into replay_capacity = 40"),
    (lambda a: small_agent(prior=prior(0)), "prior: has no rows"),
    (lambda a: small_agent(prior=[1, 2]), "prior: must be a dict of arrays"),
    # from another run
    (lambda a: small_agent(start_from="nowhere"), "start-from = 'nowhere': no run there (it has no config.json)"),
    (lambda a: small_agent(start_from=5), "start-from = 5: must be a path"),
    (lambda a: small_agent(start_from="done"), "start-from = 'done': its observations have size 4 and its actions 1, "),
    (lambda a: small_agent(start_from="python"), "has not begun to learn, it is at step 0 of its warm-up; take its"),
    (lambda a: small_agent(start_from="python", start_with="rows"), "start-from = 'python': it has no rows yet"),
    (lambda a: small_agent(start_from="python", start_with=5), "start-with = 5: must be a list of words; allowed:"),
    (lambda a: small_agent(start_with=["rows"]), "start-with: needs start-from, the run to start from"),
    (lambda a: small_agent(start_from="python", start_with=[]), "start-with = '': at least one of agent, model, rows"),
    (lambda a: small_agent(start_from="python", start_with=[5]), "start-with = '5': unknown; allowed: agent, model"),
    # learning
    (lambda a: a["own"].learn(0), "steps = 0: must be a whole number, at least 1"),
    (lambda a: a["own"].learn(-5), "steps = -5: must be a whole number, at least 1"),
    (lambda a: a["own"].learn(1.5), "steps = 1.5: must be a whole number, at least 1"),
    (lambda a: a["own"].learn(True), "steps = True: must be a whole number, at least 1"),
    (lambda a: a["own"].learn("10"), "steps = '10': must be a whole number, at least 1"),
    (
        lambda a: a["asked"].learn(10),
        "learn: there is no environment to step; give one as env=, or use act and observe",
    ),
    (lambda a: a["own"].learn(10, lambda agent: True), "must be a pdml.Callback"),
    (lambda a: a["own"].learn(10, Callback), "callback = <class 'pdml.views.Callback'>: must be a pdml.Callback"),
    (lambda a: a["own"].learn(10, [Callback()]), "must be a pdml.Callback"),
    (lambda a: a["own"].learn(10**15), "the run needs about"),
    # use
    (lambda a: a["own"].predict(np.zeros(3)), "obs: has shape (3,); (2,) or (n, 2) is needed"),
    (lambda a: a["own"].predict(np.zeros((2, 2, 2))), "obs: has shape (2, 2, 2)"),
    (lambda a: a["own"].predict("up"), "obs: must be an array of numbers"),
    (lambda a: a["own"].predict(None), "obs: "),
    (lambda a: a["own"].predict({"a": 1}), "obs: must be an array of numbers"),
    (lambda a: a["own"].predict(([0.0, 0.0], {})), "obs: must be an array of numbers; env.reset() returns a pair, of"),
    (lambda a: a["own"].evaluate(0), "episodes = 0: must be a whole number, at least 1"),
    (lambda a: a["own"].evaluate(2.5), "episodes = 2.5: must be a whole number, at least 1"),
    (lambda a: a["lent"].evaluate(), "evaluate: needs an environment of its own; give eval_env="),
    (lambda a: a["asked"].evaluate(), "evaluate: needs an environment of its own"),
    (lambda a: a["own"].evaluate(1, policy="worst"), "policy = 'worst': allowed: last, best"),
    (lambda a: a["own"].evaluate(1, policy="best"), "best_policy: the agent has no run directory yet; learn first"),
    (lambda a: a["own"].best_policy, "best_policy: the agent has no run directory yet; learn first"),
    (lambda a: a["own"].model, "model: method 'sac' has none"),
    (lambda a: a["own"].policy(np.zeros(5)), "obs: has shape (5,); (2,) or (n, 2) is needed"),
    # stepping oneself
    (lambda a: a["asked"].observe(np.zeros(2), 0.0, False), "observe: call act first, once for every observe"),
    (lambda a: a["asked"].act(np.zeros((3, 2))), "obs: one observation of finite numbers is needed"),
    (lambda a: a["asked"].act(np.full(2, np.nan)), "obs: one observation of finite numbers is needed"),
    (lambda a: a["asked"].act(np.zeros(7)), "obs: has shape (7,)"),
    (lambda a: a["asked"].act("left"), "obs: must be an array of numbers"),
    # files
    (lambda a: Agent.load("nowhere"), "run = 'nowhere': no run there (it has no config.json)"),
    (lambda a: Agent.load("file"), "run = 'file': no run there"),
    (lambda a: Agent.load("empty"), "run = 'empty': no run there"),
    (lambda a: Agent.load("done/policy.safetensors"), "no run there"),
    (lambda a: Agent.load("notjson"), "config = 'notjson/config.json': not a configuration"),
    (lambda a: Agent.load("bare"), "run = 'bare': cannot be resumed, it has no checkpoint yet"),
    (
        lambda a: Agent.load("python", env=lambda: Point(3)),
        "env: observations of size 3 and actions of size 1 do not fit",
    ),
    (lambda a: Agent.load("done", env=Point), "do not fit the run 'done', which has 4 and 1"),
    (lambda a: Agent.load("python", env=5), "env = 5: must be an id, an environment"),
    (
        lambda a: Agent.load("unwhole"),
        "run = 'unwhole': cannot be resumed, none of its 2 checkpoints is readable; start",
    ),
    (lambda a: a["own"].save("done"), "run-dir = 'done': already holds a run"),
    (lambda a: a["own"].save("file"), "run-dir = 'file': 'file' is a file"),
    (lambda a: a["own"].policy.save("empty"), "'empty' cannot be written: it is a directory"),
    (lambda a: a["own"].policy.save("nowhere/p.safetensors"), "cannot be written: there is no directory 'nowhere'"),
    (lambda a: Policy.load("nowhere"), "'nowhere' cannot be read: there is no such file"),
    (lambda a: Policy.load("empty"), "'empty/policy.safetensors' cannot be read: there is no such file"),
    (lambda a: Policy.load("file"), "'file' cannot be read as a file of this package"),
    (lambda a: Policy.load("done/config.json"), "cannot be read as a file of this package"),
    (
        lambda a: Policy.load("nobest", "best"),
        "run = 'nobest': has no best policy; it has not been evaluated yet, or not",
    ),
    (lambda a: Policy.load("done", "worst"), "policy = 'worst': allowed: last, best"),
    (
        lambda a: Policy.load("done/policy.safetensors", "best"),
        "which = 'best': 'done/policy.safetensors' is not the directory of a run",
    ),
    (lambda a: Policy.load("arrays.safetensors"), "'arrays.safetensors' is not a policy"),
    # many runs
    (lambda a: sweep({**STUDY, "seed": [1]}, "out"), "study: unknown key seed (did you mean seeds?)"),
    (lambda a: sweep({**STUDY, "methods": ["sack"]}, "out"), "study: method = 'sack': unknown (did you mean sac?)"),
    (lambda a: sweep({**STUDY, "settings": {"gamma": 1}}, "out"), "study: gamma: unknown setting"),
    (lambda a: sweep({**STUDY, "settings": {"dynamics.patience": 3}}, "out"), "study = 'out', sac on Hopper-v5: "),
    (lambda a: sweep({"envs": ["Hopper-v5"]}, "out"), "study: methods: needs at least one"),
    (lambda a: sweep({**STUDY, "seeds": 3}, "out"), 'study: seeds = 3: must be a range such as "0-7", or a list'),
    (lambda a: sweep("comparisn", "out"), "study = 'comparisn': unknown (did you mean comparison?)"),
    (lambda a: sweep(5, "out"), "study = '5': unknown"),
    (lambda a: sweep(STUDY, None), "out = None: must be a path"),
    (lambda a: sweep(STUDY, ""), "out = '': must be a path"),
    (lambda a: sweep(STUDY, "out", jobs=0), "jobs = '0': must be a whole number in [1, "),
    (lambda a: sweep(STUDY, "out", jobs=1.5), "jobs = '1.5': must be a whole number in [1, "),
    (lambda a: sweep(STUDY, "out", cpus_per_run=4096), "cpus_per_run = '4096': must be a whole number in [1, "),
    (lambda a: check_env(lambda: None), "must be the name of an environment, such as 'Hopper-v5' or 'module:Id'"),
    (lambda a: check_env("Hopper-v5", steps=-3), "steps = '-3': must be a whole number in [1, "),
    (lambda a: check_env("Hoper-v5"), "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
]

STUDY = {"envs": ["Hopper-v5"], "methods": ["sac"]}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "sentence"), INPUTS, ids=[sentence for _, sentence in INPUTS])
def test_a_mistake_in_python(call, sentence, agents):
    with pytest.raises(UserError) as caught:
        call(agents)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_observed_must_be_numbers(place, tmp_path):
    agent = small_agent(SPACES, run_dir=tmp_path / "run")
    agent.act(np.zeros(2))
    for words, sentence in [
        ((np.full(2, np.nan), 0.0, False), "one observation and one reward of finite numbers are needed"),
        ((np.zeros(2), np.inf, False), "one observation and one reward of finite numbers are needed"),
        ((np.zeros(2), "high", False), "one observation and one reward of finite numbers are needed"),
        ((np.zeros(2), None, False), "one observation and one reward of finite numbers are needed"),
        ((np.zeros((1, 2)), 0.0, False), "one observation and one reward of finite numbers are needed"),
        ((np.zeros(3), 0.0, False), "next_obs: has shape (3,); (2,) or (n, 2) is needed"),
        ((np.zeros(2), 0.0, False, False, [1.0, 2.0]), "action: has shape (2,); (1,) or (n, 1) is needed"),
        ((np.zeros(2), 0.0, False, False, [np.nan]), "action: one action of finite numbers is needed"),
    ]:
        with pytest.raises(UserError) as caught:
            agent.observe(*words)
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)
    assert agent.steps == 0
    agent.observe(np.zeros(2), 0.0, False)
    assert agent.steps == 1
    agent.close()
