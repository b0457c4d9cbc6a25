"""A directory with runs and modules of many kinds, which mistakes must leave as it was."""

import json
import shutil
import sys

import gymnasium
import jaxtyping
import numpy as np
import pytest
from still_point import small_agent
from tiny import tiny_of

from pdml.config.fields import change
from pdml.runs.device import available_threads
from pdml.runs.lease import Lease
from pdml.runs.policy import Policy
from pdml.runs.session import start_run
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

CALLBACKS = """
import pdml


class Count(pdml.Callback):
    def __init__(self, first, every=10):
        if every < 1:
            raise ValueError("every:\\nat least 1")


class Other:
    pass


made = Count(1)
"""

BROKEN_MODULE = "import gymnasium\nraise RuntimeError('half of it\\nis missing')\n"

STUDIES = {
    "malformed": 'envs = ["Hopper-v5"]\nseeds = 0-7\n',
    "key": 'envs = ["Hopper-v5"]\nmethods = ["sac"]\nseed = 3\n',
    "field": 'envs = ["Hopper-v5"]\nmethods = ["sac"]\n[settings]\n"agent.gama" = 0.9\n',
    "layerless": 'envs = ["Hopper-v5"]\nmethods = ["sac"]\n[settings]\n"agent.hidden_sizes" = ""\n',
    "method": 'envs = ["Hopper-v5"]\nmethods = ["pmdl"]\n',
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with runs of many kinds, and modules."""
    root = tmp_path_factory.mktemp("place")
    (root / "broken_envs.py").write_text(BROKEN_MODULE)
    (root / "strange_envs.py").write_text(MODULE)
    (root / "strange_calls.py").write_text(CALLBACKS)
    (root / "file").write_text("")
    (root / "empty").mkdir()
    small = {"steps": 80, "updates_per_step": 1, "eval_every": 80, "eval_episodes": 1}
    start_run(change(tiny_of("sac"), small), root / "done", available_threads(), "pdml train")
    for name in ("locked", "bare", "unwhole", "spoilt", "foreign", "nopolicy", "nobest"):
        shutil.copytree(root / "done", root / name)
        (root / name / "DONE").unlink()
    shutil.rmtree(root / "bare" / "checkpoints")
    for file in (root / "unwhole" / "checkpoints").iterdir():
        file.write_bytes(b"garbage")
    (root / "spoilt" / "policy.safetensors").write_bytes(b"garbage")
    (root / "nopolicy" / "policy.safetensors").unlink()
    (root / "nobest" / "best_policy.safetensors").unlink()
    (root / "spoilt" / "best_policy.safetensors").write_bytes(b"garbage")
    foreign = Policy(((np.zeros((3, 2), np.float32), np.zeros(2, np.float32)),), np.array([-1.0]), np.array([1.0]), 1)
    foreign.save(root / "foreign" / "policy.safetensors")
    kept = json.loads((root / "done" / "config.json").read_text())
    changed = {
        "notjson": "{",
        "later": json.dumps({**kept, "format": 99}),
        "unknown": json.dumps({**kept, "sedd": 1}),
        "mistyped": json.dumps({**kept, "steps": "many"}),
        "outside": json.dumps({**kept, "batch_size": 0}),
        "layerless": json.dumps({**kept, "agent": {**kept["agent"], "hidden_sizes": []}}),
        "flat": json.dumps({**kept, "agent": 3}),
        "wordless": json.dumps({**kept, "termination": None}),
    }
    for name, text in changed.items():
        shutil.copytree(root / "done", root / name)
        (root / name / "config.json").write_text(text)
    (root / "binary").mkdir()
    (root / "binary" / "config.json").write_bytes(b"\xff\xfe\x00")
    agent = small_agent(run_dir=root / "python")
    agent.save()
    agent.close()
    for name, text in STUDIES.items():
        (root / f"{name}.toml").write_text(text)
    write_arrays(root / "arrays.safetensors", {"x": np.zeros(3)}, {"step": 0})
    lease = Lease(root / "locked")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root))
        before = set(gymnasium.registry)
        yield root
        for name in set(gymnasium.registry) - before:
            del gymnasium.registry[name]
    for name in ("strange_envs", "strange_calls", "broken_envs"):
        sys.modules.pop(name, None)
    lease.free()


@pytest.fixture(autouse=True)
def unchanged(place, monkeypatch):
    """Work in that directory as a user does, without the tests' checks of types, and leave it as it was."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    before = listing(place)
    yield
    assert listing(place) == before


def listing(place):
    """Return the files with their sizes and times; a lease changes whenever a run is tried to be resumed."""
    files = (path for path in place.rglob("*") if not {"__pycache__", "lease"} & set(path.parts))
    return {path: (path.stat().st_size, path.stat().st_mtime_ns if path.is_file() else 0) for path in files}
