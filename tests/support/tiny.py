"""Runs so small that they take a second and still pass through every part."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from pdml.config.schema import DOUBLE, Config, change, defaults, leaves
from pdml.core.pytree import flatten
from pdml.core.stopwatch import Stopwatch
from pdml.envs.env_spec import spaces_of
from pdml.envs.gym import begin, make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.runs.checkpoint import saved
from pdml.runs.tensor_file import read_arrays
from pdml.training.loop import init, train, wire

TINY = {
    "steps": 160,
    "warmup_steps": 60,
    "model_every": 20,
    "epoch_steps": 40,
    "updates_per_step": 2,
    "batch_size": 32,
    "eval_every": 40,
    "eval_episodes": 2,
    "agent.hidden_sizes": (16,),
    "dynamics.num_members": 3,
    "dynamics.num_elites": 2,
    "dynamics.hidden_sizes": (16,),
    "dynamics.weight_decay": (1e-5, 1e-5),
    "dynamics.batch_size": 32,
    "dynamics.max_epochs": 4,
    "rollouts.batch": 40,
    "mixture.first_block": 2,
    "mixture.reservoir": 96,
    "ampo.first_steps": 2,
    "ampo.last_steps": 2,
    "ampo.batch_size": 16,
    "vagram.mse_steps": 40,
}

TINY_DOUBLE = {
    "dynamics.num_members": 2,
    "dynamics.patience": 2,
    "agent.num_critics": 3,
    "double.far": 3,
    "double.near": 2,
    "double.refresh": 15,
    "double.retain": 2,
    "double.dropout": (0.01,),
    "double.first_factor": 2,
}


def tiny_of(method: str) -> Config:
    """A run of a method that takes a second and still passes through every part."""
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    changes = TINY | TINY_DOUBLE if method in DOUBLE else TINY
    return change(
        defaults("InvertedPendulum-v5", method), {name: value for name, value in changes.items() if name in read}
    )


def assert_same_run(one: Path, other: Path) -> None:
    """The last checkpoints of two runs are the same, but for the clock."""
    (arrays, note), (others, noted) = (read_arrays(saved(path)[0]) for path in (one, other))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, others[name], equal_nan=array.dtype.kind == "f"), name
    assert repr({**note, "files": None}) == repr({**noted, "files": None})  # a text, since nan is not nan


def start(config):
    env, layout = make_env(config.env), spaces_of(config.env).layout
    parts = wire(config, layout, by_rule(RULES[config.env.rpartition("-")[0]]))
    return env, layout, parts


def go(config, parts=None, after_step=lambda state: None):
    env, layout, wired = start(config)
    parts = parts or wired
    return train(init(config, layout, parts, begin(env, config.seed, 0)), env, parts, config, Stopwatch(), after_step)


def with_world(parts, **changes):
    """Replace parts of the model of wired parts."""
    return parts._replace(recipe=parts.recipe._replace(world=parts.recipe.world._replace(**changes)))


def everything(state):
    arrays = flatten(state.agent, "agent") | flatten(state.model, "model") | flatten(state.imagined, "imagined")
    arrays |= {f"replay.{k}": v for k, v in state.replay.arrays().items()}
    arrays |= {f"history.{k}": v for k, v in state.history.arrays().items()}
    arrays |= {f"mixing.{k}": v for k, v in state.mixing.arrays().items()}
    arrays |= {"episode.obs": state.episode.obs, "episode.actions": np.array(state.episode.actions)}
    arrays |= {"episode": np.array([state.episode.number, state.episode.total, state.evaluation_steps])}
    note = {
        "step": state.step,
        "log": dataclasses.asdict(state.log),
        "recent": state.recent,
        "updates": state.epoch_updates,
    }
    return arrays, json.dumps(note)
