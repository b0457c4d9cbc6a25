"""Mistakes that people make: each is one line that names it, and nothing is written."""

import json
import shutil
import sys
import warnings
from pathlib import Path

import gymnasium
import jaxtyping
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from tiny import tiny_of

from pdml import UserError, cli
from pdml.api import Agent, Callback
from pdml.config.schema import change
from pdml.runs.device import available_threads
from pdml.runs.directory import Lock
from pdml.runs.policy import Policy
from pdml.runs.session import run
from pdml.runs.tensor_file import write_arrays

MODULE = """
import gymnasium
import jax.numpy as jnp
import numpy as np


class Cart(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


class Refusing(Cart):
    def __init__(self):
        raise OSError("no robot\\nis plugged in")


class Endless(Cart):
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Backwards(Cart):
    action_space = gymnasium.spaces.Box(1.0, 1.0, (1,), np.float32)


class Whole(Cart):
    action_space = gymnasium.spaces.Box(0, 3, (1,), np.int64)


class Camera(Cart):
    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)


class Words(Cart):
    observation_space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Text(5)})


for kind in (Cart, *Cart.__subclasses__()):
    gymnasium.register(f"{kind.__name__}-v0", kind)

number = 3


def with_numpy(obs, action, next_obs):
    return np.abs(next_obs[:, 0]) > 1.0


def matrix(obs, action, next_obs):
    return next_obs > 1.0


def branching(obs, action, next_obs):
    if next_obs[0, 0] > 1.0:
        return next_obs[:, 0] > 1.0
    return next_obs[:, 0] > 2.0


def two_arguments(obs, action):
    return obs[:, 0] > 1.0


def far(obs, action, next_obs):
    return next_obs[:, 99] > 1.0
"""

BROKEN_MODULE = "import gymnasium\nraise RuntimeError('half of it\\nis missing')\n"


class Point(gymnasium.Env):
    """A point that does not move."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def __init__(self, obs_size=2):
        self.observation_space = Box(-1.0, 1.0, (obs_size,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


SMALL = {
    "warmup_steps": 4,
    "model_every": 4,
    "updates_per_step": 1,
    "batch_size": 4,
    "eval_episodes": 0,
    "agent": {"hidden_sizes": (4,)},
}
SPACES = (Point.observation_space, Point.action_space)


def new(env=Point, method="sac", **more):
    return Agent(env, method, **{**SMALL, **more})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with runs of many kinds, and modules."""
    root = tmp_path_factory.mktemp("place")
    (root / "broken_envs.py").write_text(BROKEN_MODULE)
    (root / "strange_envs.py").write_text(MODULE)
    (root / "file").write_text("")
    (root / "empty").mkdir()
    small = {"steps": 80, "updates_per_step": 1, "eval_every": 80, "eval_episodes": 1}
    run(change(tiny_of("sac"), small), root / "done", available_threads(), "pdml train")
    for name in ("locked", "bare", "unwhole", "spoilt", "foreign", "nopolicy"):
        shutil.copytree(root / "done", root / name)
        (root / name / "DONE").unlink()
    shutil.rmtree(root / "bare" / "checkpoints")
    for file in (root / "unwhole" / "checkpoints").iterdir():
        file.write_bytes(b"garbage")
    (root / "spoilt" / "policy.safetensors").write_bytes(b"garbage")
    (root / "nopolicy" / "policy.safetensors").unlink()
    foreign = Policy(((np.zeros((3, 2), np.float32), np.zeros(2, np.float32)),), np.array([-1.0]), np.array([1.0]), 1)
    foreign.save(root / "foreign" / "policy.safetensors")
    kept = json.loads((root / "done" / "config.json").read_text())
    changed = {
        "notjson": "{",
        "later": json.dumps({**kept, "format": 99}),
        "unknown": json.dumps({**kept, "sedd": 1}),
        "mistyped": json.dumps({**kept, "steps": "many"}),
        "outside": json.dumps({**kept, "batch_size": 0}),
        "flat": json.dumps({**kept, "agent": 3}),
        "wordless": json.dumps({**kept, "termination": None}),
    }
    for name, text in changed.items():
        shutil.copytree(root / "done", root / name)
        (root / name / "config.json").write_text(text)
    (root / "binary").mkdir()
    (root / "binary" / "config.json").write_bytes(b"\xff\xfe\x00")
    agent = new(run_dir=root / "python")
    agent.save()
    agent.close()
    write_arrays(root / "arrays.safetensors", {"x": np.zeros(3)}, {"step": 0})
    lock = Lock(root / "locked")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        before = set(gymnasium.registry)
        yield root
        for name in set(gymnasium.registry) - before:
            del gymnasium.registry[name]
    for name in ("strange_envs", "broken_envs"):
        sys.modules.pop(name, None)
    lock.free()


@pytest.fixture(autouse=True)
def unchanged(place, monkeypatch):
    """Work in that directory as a user does, without the tests' checks of types, and leave it as it was."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    before = listing(place)
    yield
    assert listing(place) == before


def listing(place):
    files = (path for path in place.rglob("*") if "__pycache__" not in path.parts)
    return {path: (path.stat().st_size, path.stat().st_mtime_ns if path.is_file() else 0) for path in files}


COMMANDS = [
    # which command
    ("", "the following arguments are required: COMMAND"),
    ("lern", "invalid choice: 'lern'"),
    ("--env Hopper-v5", "argument COMMAND: invalid choice: 'Hopper-v5'"),
    # train: names
    ("train --stepz 100", "--stepz: unknown field (did you mean steps?)"),
    ("train --agent.gama 0.9", "--agent.gama: unknown field (did you mean agent.gamma?)"),
    ("train --learning-rate 0.1", "--learning_rate: unknown field (did you mean agent.learning_rate or dynamics."),
    ("train --step 100", "--step: unknown field (did you mean steps?)"),
    ("train -s 100", "'-s': pdml train has no such argument"),
    ("train Hopper-v5", "'Hopper-v5': pdml train has no such argument"),
    ("train --method sac2", "method = 'sac2': unknown (did you mean sac?); allowed: pdml, mbpo"),
    ("train --preset relesed", "preset = 'relesed': unknown (did you mean released?)"),
    # train: types and ranges
    ("train --seed -1", "seed = -1: must lie in [0, 4294967295]"),
    ("train --seed 0.5", "--seed = '0.5': must be a whole number"),
    ("train --steps many", "--steps = 'many': must be a whole number"),
    ("train --steps nan", "--steps = 'nan': must be a whole number"),
    ("train --steps=", "--steps = '': must be a whole number"),
    ("train --steps 0", "steps = 0: must lie in [1, inf)"),
    ("train --agent.gamma 1", "agent.gamma = 1.0: must lie in [0, 1)"),
    ("train --agent.gamma nan", "agent.gamma = nan: must lie in [0, 1)"),
    ("train --agent.hidden-sizes 0", "agent.hidden_sizes = 0: must lie in [1, inf)"),
    ("train --agent.temperature cold", "--agent.temperature = 'cold': must be a number or 'learned'"),
    ("train --dynamics.holdout fix", "dynamics.holdout = 'fix': unknown (did you mean fixed?); allowed: fresh, fixed"),
    ("train --diagnose perhaps", "--diagnose = 'perhaps': must be true or false"),
    ("train --threads 1.5", "threads = '1.5': must be a whole number"),
    ("train --env-timeout -1", "env_timeout = -1.0: must lie in [0, inf)"),
    # train: what does not go together
    ("train --steps 500", "steps = 500: must be above the warm-up of 500 steps"),
    ("train --method sac --rollouts.batch 10", "rollouts.batch: method 'sac' has no such option"),
    ("train --method redq --termination never", "termination: method 'redq' has no such option"),
    ("train --method mbpo --agent.num-critics 5", "agent.num_critics: method 'mbpo' has no such option; it belongs to"),
    ("train --method pdml-model-only --weigh both", "weigh: method 'pdml-model-only' fixes it at 'model'"),
    ("train --method redq --agent.subset 11", "agent.num_critics = 10: at least agent.subset = 11"),
    ("train --method vagram --rollouts.deterministic false", "vagram's networks have no variance"),
    ("train --dynamics.num-elites 9", "dynamics.num_elites = 9: at most dynamics.num_members = 7"),
    ("train --dynamics.hidden-sizes 20", "dynamics.weight_decay has 5 entries: must have one a layer, 2"),
    ("train --rollouts.shortest 3", "rollouts.longest = 1: at least rollouts.shortest = 3"),
    ("train --diagnose-every 50", "diagnose_every = 50: does nothing without diagnose"),
    ("train --weigh none --mixture.misaligned", "no weights reach the model when weigh = 'none'"),
    ("train --replay-capacity 300", "replay_capacity = 300: at least two blocks of model_every = 250"),
    ("train --archive-at 100", "archive_at = 100: must lie in (500, 4000]"),
    ("train --replay-capacity 1e12 --steps 1e12", "memory: the run needs about"),
    ("train --env Pendulum-v1 --agent.scaled-log-prob", "agent.scaled_log_prob = true: only for the environments of"),
    ("train --env Pendulum-v1 --preset released", "agent.scaled_log_prob = true: only for the environments of"),
    # train: environments
    ("train --env Hoper-v5", "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
    ("train --env Hopper", "env = 'Hopper': no such environment; did you mean Hopper-v5"),
    ("train --env CartPole-v1", "env = 'CartPole-v1': its action space is Discrete; continuous actions are needed"),
    ("train --env Ant-v3", "env = 'Ant-v3': this version is not supported; take Ant-v5 or Ant-v4"),
    ("train --env nowhere_envs:Cart-v0", "there is no module 'nowhere_envs' to import it from"),
    ("train --env nowhere_envs.inner:Cart-v0", "there is no module 'nowhere_envs.inner' to import it from"),
    ("train --env strange_envs:Carts-v0", "module 'strange_envs' does not register 'Carts-v0'"),
    ("train --env strange_envs:", "env = 'strange_envs:': Gymnasium cannot make it (Malformed environment ID"),
    ("train --env broken_envs:Cart-v0", "Gymnasium cannot make it (half of it is missing)"),
    ("train --env strange_envs:Refusing-v0", "Gymnasium cannot make it (no robot is plugged in)"),
    ("train --env strange_envs:Endless-v0", "its action bounds are not finite (-inf to inf); give it a Box with"),
    ("train --env strange_envs:Backwards-v0", "an action's lower bound is not below its upper bound"),
    ("train --env strange_envs:Whole-v0", "its actions are of type int64; floating point numbers are needed"),
    ("train --env strange_envs:Camera-v0", "its observations are images (8, 8, 3), which this package does not learn"),
    ("train --env strange_envs:Words-v0", "part 'a': its observation space is Text"),
    ("train --env python:Point", "env = 'python:Point': was a Python object"),
    ("train --env dm_control/cartpole-swingup-v0", "DeepMind Control is an extra; pip install 'pdml[dmc]'"),
    # train: what is known of the environment
    ("train --termination sometimes", "termination = 'sometimes': allowed: rule, never, learned, or module:function"),
    ("train --env Pendulum-v1 --termination rule", "no rule is known for this environment; allowed: never, learned"),
    ("train --termination nowhere:f", "termination = 'nowhere:f': cannot import 'nowhere' (No module named 'nowhere')"),
    ("train --termination broken_envs:f", "termination = 'broken_envs:f': cannot import 'broken_envs' (half of it is"),
    ("train --termination strange_envs:f", "termination = 'strange_envs:f': module 'strange_envs' has no 'f'"),
    ("train --termination strange_envs:number", "termination = 'strange_envs:number': is not a function"),
    ("train --termination strange_envs:with_numpy", "write it with jax.numpy instead of numpy"),
    ("train --termination strange_envs:matrix", "termination: returns shape (5, 4) for 5 steps; one number a step"),
    ("train --termination strange_envs:branching", "write conditions with & | ~ and jax.numpy.where, not if"),
    ("train --termination strange_envs:two_arguments", "termination: fails on batches of observations (TypeError:"),
    ("train --termination strange_envs:far", "termination: index 99 is out of bounds for axis 1 with size 4; observ"),
    ("train --reward sparse", "reward = 'sparse': allowed: learned, or module:function"),
    ("train --reward strange_envs:matrix", "reward: returns shape (5, 4) for 5 steps"),
    ("train --reward strange_envs:far", "reward: index 99 is out of bounds"),
    ("train --reward :f", "reward = ':f': allowed: learned, or module:function"),
    ("train --termination python", "termination: it was a Python function; go on with pdml.Agent.load"),
    # train: directories and files
    ("train --run-dir done", "run-dir = 'done': already holds a run; choose another directory"),
    ("train --run-dir file/run", "run-dir = 'file/run': 'file' is a file, a directory is needed"),
    ("train --run-dir file", "run-dir = 'file': 'file' is a file, a directory is needed"),
    ("train --resume", "--resume needs --run-dir"),
    ("train --resume --run-dir done --method pdml", "run-dir = 'done': its run has "),
    ("train --config nowhere.json", "config = 'nowhere.json': cannot be read"),
    ("train --config empty", "config = 'empty': cannot be read"),
    ("train --config notjson/config.json", "not a configuration written by this package"),
    ("train --config binary/config.json", "config = 'binary/config.json': cannot be read"),
    ("train --config later/config.json", "format 99, this version reads format 2"),
    ("train --config unknown/config.json", "unknown field sedd (did you mean seed?)"),
    ("train --config done/config.json --env Hopper-v5", "the values of 'done/config.json' belong to"),
    ("train --config python/config.json", "was a Python object"),
    # resume
    ("resume", "the following arguments are required: RUN"),
    ("resume nowhere", "run = 'nowhere': no run there (it has no config.json)"),
    ("resume file", "run = 'file': no run there"),
    ("resume empty", "run = 'empty': no run there"),
    ("resume done", "run = 'done': is done at 80 steps; go further with --steps"),
    ("resume done --steps 80", "run = 'done': is done at 80 steps; go further with --steps"),
    ("resume done --steps 70", "steps = 70: the run is meant to have 80; give more"),
    ("resume done --steps few", "steps = 'few': must be a whole number"),
    ("resume done --step 90", "'--step': pdml resume has no such argument (did you mean steps?)"),
    ("resume done --seed 3", "'--seed': pdml resume has no such argument"),
    ("resume locked", "run-dir = 'locked': another process or agent is running it"),
    ("resume bare", "run = 'bare': cannot go on, it has no checkpoint yet; begin it anew"),
    ("resume python", "run = 'python': its environment is a Python object; use pdml.Agent.load(path, env=...)"),
    ("resume notjson", "config = 'notjson/config.json': not a configuration written by this package"),
    ("resume outside", "batch_size = 0: must lie in [2, inf)"),
    ("resume flat", "config = 'flat/config.json': agent must be a group of fields"),
    ("resume mistyped", "steps = 'many': must be a whole number"),
    ("resume wordless", "termination = None: must be a word"),
    # eval
    ("eval", "the following arguments are required: RUN"),
    ("eval nowhere", "run = 'nowhere': no run there"),
    ("eval done --episodes 0", "episodes = '0': must be a whole number in [1, "),
    ("eval done --episode 3", "'--episode': pdml eval has no such argument (did you mean episodes?)"),
    ("eval done --seed -1", "seed = '-1': must be a whole number in [0, 4294967295]"),
    ("eval spoilt", "'spoilt/policy.safetensors' cannot be read as a file of this package"),
    ("eval nopolicy", "'nopolicy/policy.safetensors' cannot be read: there is no such file"),
    ("eval foreign", "run = 'foreign': its policy does not belong to its configuration"),
    ("eval python", "env = 'python:Point': was a Python object"),
    ("eval later", "config = 'later/config.json': format 99, this version reads format 2"),
    # check
    ("check", "the following arguments are required: ENV"),
    ("check Pendulum-v1 --steps 0", "steps = '0': must be a whole number in [1, "),
    ("check Pendulum-v1 --step 5", "'--step': pdml check has no such argument (did you mean steps?)"),
    # list, bench
    ("list", "the following arguments are required: what"),
    ("list method", "invalid choice: 'method'"),
    ("list methods --all", "'--all': pdml list has no such argument"),
    ("bench --method pmdl", "method = 'pmdl': unknown (did you mean pdml?)"),
    ("bench --threads 0", "threads = '0': must be a whole number in [1, "),
    ("bench --jsn", "'--jsn': pdml bench has no such argument (did you mean json?)"),
    # figure, report, video, analyse
    ("figure curve done", "figure = 'curve': unknown (did you mean curves?); allowed: "),
    ("figure curves", "the following arguments are required: RUN"),
    ("figure curves nowhere", "run = 'nowhere': no run there or below (no config.json)"),
    ("figure curves notjson", "config = 'notjson/config.json': not a configuration"),
    ("figure curves done --at soon", "at = 'soon': must be a whole number"),
    ("figure thresholds done --threshold high", "threshold = 'high': must be a number"),
    ("figure weights done", "none of the runs keeps the weights of its blocks"),
    ("figure curves done --out file", "out = 'file': cannot be written (File exists)"),
    ("report nowhere", "run = 'nowhere': no run there or below"),
    ("report", "the following arguments are required: RUN"),
    ("report done --no-frames --out file/report.html", "out = 'file/report.html': cannot be written (File exists)"),
    ("video nowhere", "run = 'nowhere': no run there"),
    ("video done --episodes 1.5", "episodes = '1.5': must be a whole number"),
    ("video python", "env = 'python:Point': was a Python object"),
    ("video done --out file", "out = 'file': cannot be written (File exists)"),
    ("analyse", "the following arguments are required: what"),
    ("analyse all done", "invalid choice: 'all'"),
    ("analyse tsne", "pdml analyse tsne needs a run: pdml analyse tsne RUN"),
    ("analyse converged done", "run = 'done': method 'sac' has no model"),
    ("analyse converged done --out x", "--out belongs to pdml analyse theory"),
    ("analyse theory done", "pdml analyse theory looks at random MDPs, not at a run"),
    ("analyse tsne done", "run = 'done': keeps no policies yet; they come with --archive-at, and of methods with a"),
    ("analyse tsne nowhere", "run = 'nowhere': no run there"),
]


@pytest.mark.parametrize(("words", "sentence"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_a_mistake_on_the_command_line(words, sentence, capsys, monkeypatch):
    if "dm_control" in words:
        monkeypatch.setitem(sys.modules, "shimmy", None)  # as if it were not installed
    code = cli.main(words.split())
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("pdml: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert code == 2


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
        found = {"own": new(), "asked": new(SPACES), "lent": new(Point())}
    yield found
    for agent in found.values():
        agent.close()


class Other:
    pass


def raising():
    raise OSError("no robot\nis plugged in")


INPUTS = [
    # what is learned
    (lambda a: new(None), "env = None: must be an id, an environment, a function that makes one, or a pair of spaces"),
    (lambda a: new(5), "env = 5: must be an id, an environment, a function"),
    (lambda a: new(Other), "env: the function returned Other, not a gymnasium.Env"),
    (lambda a: new(Other()), "must be an id, an environment, a function that makes one"),
    (lambda a: new(lambda: "Hopper-v5"), "env: the function returned str, not a gymnasium.Env"),
    (lambda a: new(lambda size: Point(size)), "env: the function failed (TypeError: "),
    (lambda a: new(raising), "env: the function failed (OSError: no robot is plugged in)"),
    (lambda a: new((1, 2)), "env: a pair must be (observation space, action space)"),
    (lambda a: new((*SPACES, SPACES[0])), "env: a pair must be (observation space, action space)"),
    (lambda a: new([*SPACES]), "must be an id, an environment"),
    (lambda a: new((SPACES[0], Discrete(3))), "env = 'spaces': its action space is Discrete"),
    (lambda a: new(gymnasium.make("CartPole-v1")), "env = 'CartPoleEnv': its action space is Discrete"),
    (
        lambda a: new(gymnasium.make_vec("Pendulum-v1", 2)),
        "env: is a vector of environments; one environment is needed",
    ),
    (lambda a: new("Hoper-v5"), "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
    (lambda a: new("strange_envs:Words-v0"), "part 'a': its observation space is Text"),
    (lambda a: new("python:Point"), "env = 'python:Point': was a Python object"),
    (lambda a: new(eval_env=Point()), "eval_env: goes with an environment as env only"),
    (lambda a: new("Pendulum-v1", eval_env=Point()), "eval_env: goes with an environment as env only"),
    (lambda a: (lambda env: new(env, eval_env=env))(Point()), "eval_env: must be another environment than env"),
    (lambda a: new(Point(), eval_env=Point(3)), "eval_env: its spaces are not those of env"),
    (lambda a: new(Point(), eval_env=Point), "eval_env: must be an environment, as env is"),
    (lambda a: new(Point(), eval_env="Pendulum-v1"), "eval_env: must be an environment, as env is"),
    # settings
    (lambda a: new(method="scaffold"), "method = 'scaffold': unknown; allowed: pdml, mbpo"),
    (lambda a: new(method="SAC"), "method = 'SAC': unknown (did you mean sac?)"),
    (lambda a: new(method=None), "method = 'None': unknown; allowed: pdml"),
    (lambda a: new(method=["sac"]), "method = '['sac']': unknown (did you mean sac?)"),
    (lambda a: new(preset="papers"), "preset = 'papers': unknown (did you mean paper?)"),
    (lambda a: new(seed=-1), "seed = -1: must lie in [0, 4294967295]"),
    (lambda a: new(seed=1.0), "seed = 1.0: must be a whole number"),
    (lambda a: new(seed=None), "seed = None: must be a whole number"),
    (lambda a: new(seed=True), "seed = True: must be a whole number"),
    (lambda a: new(batch_sise=4), "batch_sise: unknown setting (did you mean batch_size?)"),
    (lambda a: new(learning_rate=0.1), "learning_rate: unknown setting (did you mean agent.learning_rate or "),
    (lambda a: new(agent={"gama": 0.9}), "agent.gama: unknown setting (did you mean agent.gamma?)"),
    (lambda a: new(agent=256), "agent = 256: is a group; give its settings as a dict"),
    (lambda a: new(agent={"gamma": "high"}), "agent.gamma = 'high': must be a number"),
    (lambda a: new(agent={3: 4}), "agent.3: unknown setting"),
    (lambda a: new(agent={"hidden_sizes": 256}), "agent.hidden_sizes = 256: must be a comma-separated list"),
    (lambda a: new(batch_size={"a": 1}), "batch_size = {'a': 1}: must be a whole number"),
    (lambda a: new(batch_size=np.zeros(3)), "batch_size = array([0., 0., 0.]): must be a whole number"),
    (lambda a: new(batch_size=1), "batch_size = 1: must lie in [2, inf)"),
    (lambda a: new(steps=100), "steps: is what learn is given"),
    (lambda a: new(env="Pendulum-v1", total_steps=100), "total_steps: unknown setting"),
    (lambda a: new(dynamics={"patience": 3}), "dynamics.patience: method 'sac' has no such option"),
    (lambda a: new(termination=lambda o, a, n: n[:, 0] > 0), "termination: method 'sac' has no such option"),
    (lambda a: new(method="mbpo", mixture={"rate": 0.1}), "mixture.rate: method 'mbpo' has no such option"),
    (lambda a: new(method="mbpo", reward=3), "reward = 3: must be a word"),
    (lambda a: new(method="mbpo", reward=lambda o, a, n: n), "reward: returns shape (5, 2) for 5 steps"),
    (lambda a: new(method="mbpo", reward=lambda o, a, n: np.abs(n[:, 0])), "write it with jax.numpy instead of numpy"),
    (lambda a: new(method="mbpo", reward=lambda o, a, n: None), "reward: "),
    (lambda a: new(method="mbpo", termination=lambda o, n: n[:, 0] > 0), "termination: fails on batches"),
    (lambda a: new(method="mbpo", termination="ends"), "termination = 'ends': allowed: never, learned, or module:"),
    (lambda a: new(run_dir="done"), "run-dir = 'done': already holds a run"),
    (lambda a: new(run_dir="file/x"), "run-dir = 'file/x': 'file' is a file"),
    (lambda a: new(run_dir=5), "run_dir = 5: must be a path"),
    # prior
    (lambda a: new(prior=prior(reward=None)), "prior: has no reward; obs, action, reward, next_obs, terminated are"),
    (lambda a: new(prior=prior(rewards=np.zeros(8))), "prior: unknown field rewards (did you mean reward?)"),
    (lambda a: new(prior=prior(reward=np.zeros(7))), "prior.reward: has 7 rows, prior.obs has 8"),
    (lambda a: new(prior=prior(obs=np.zeros((8, 3)))), "prior.obs: has shape (8, 3); (2,) or (n, 2) is needed"),
    (lambda a: new(prior=prior(next_obs=np.full((8, 2), np.nan))), "prior.next_obs: has numbers that are not finite"),
    (lambda a: new(prior=prior(reward=["high"] * 8)), "prior.reward: must be an array of numbers"),
    (lambda a: new(prior=prior(terminated=[[1], [1, 2]])), "prior.terminated: must be an array of numbers"),
    (lambda a: new(prior=prior(40), replay_capacity=40), "prior: 40 rows do not fit into replay_capacity = 40"),
    (lambda a: new(prior=prior(0)), "prior: has no rows"),
    (lambda a: new(prior=[1, 2]), "prior: must be a dict of arrays"),
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
    (lambda a: a["own"].learn(10, Callback), "callback = <class 'pdml.api.Callback'>: must be a pdml.Callback"),
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
    (lambda a: Agent.load("bare"), "run = 'bare': cannot go on, it has no checkpoint yet"),
    (lambda a: Agent.load("python", env=lambda: Point(3)), "env: 3 observed numbers and 1 in an action do not fit"),
    (lambda a: Agent.load("done", env=Point), "do not fit the run 'done', which has 4 and 1"),
    (lambda a: Agent.load("python", env=5), "env = 5: must be an id, an environment"),
    (lambda a: Agent.load("unwhole"), "run = 'unwhole': cannot go on, none of its 2 checkpoints is whole; begin it"),
    (lambda a: a["own"].save("done"), "run-dir = 'done': already holds a run"),
    (lambda a: a["own"].save("file"), "run-dir = 'file': 'file' is a file"),
    (lambda a: a["own"].policy.save("empty"), "'empty' cannot be written: it is a directory"),
    (lambda a: a["own"].policy.save("nowhere/p.safetensors"), "cannot be written: there is no directory 'nowhere'"),
    (lambda a: Policy.load("nowhere"), "'nowhere' cannot be read: there is no such file"),
    (lambda a: Policy.load("empty"), "'empty/policy.safetensors' cannot be read: there is no such file"),
    (lambda a: Policy.load("file"), "'file' cannot be read as a file of this package"),
    (lambda a: Policy.load("done/config.json"), "cannot be read as a file of this package"),
    (lambda a: Policy.load("arrays.safetensors"), "'arrays.safetensors' is not a policy"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("call", "sentence"), INPUTS, ids=[sentence for _, sentence in INPUTS])
def test_a_mistake_in_python(call, sentence, agents):
    with pytest.raises(UserError) as caught:
        call(agents)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_observed_must_be_numbers(place, tmp_path):
    agent = new(SPACES, run_dir=tmp_path / "run")
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


def test_the_table_is_long_enough():
    assert len(COMMANDS) + len(INPUTS) >= 60
    assert len(dict(COMMANDS)) == len(COMMANDS)
    assert {words.partition(" ")[0] for words, _ in COMMANDS} >= {
        *("train", "resume", "eval", "check", "list", "bench", "figure", "report", "video", "analyse")
    }
    assert not list(Path().glob("runs"))
