"""Runs so small that they take a second and still pass through every part."""

import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from pdml.config.defaults import defaults
from pdml.config.fields import change, leaves
from pdml.config.methods import METHODS
from pdml.config.schema import Settings
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.envs.env_spec import spaces_of
from pdml.envs.episode import begin_episode
from pdml.envs.gym import make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.runs.checkpoint import load_checkpoint, save_checkpoint, saved_checkpoints
from pdml.runs.ledger import Ledger
from pdml.runs.tensor_file import read_arrays
from pdml.training.diagnostics import FreshReservoir
from pdml.training.loop import Training, train
from pdml.training.methods import RECIPES, wire
from pdml.training.recipe import Parts, compiled
from pdml.training.state import TrainState, initial_state, saved_state

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


def tiny_of(method: str) -> Settings:
    """A run of a method that takes a second and still passes through every part."""
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    changes = TINY | TINY_DOUBLE if METHODS[method].is_double_horizon else TINY
    return change(
        defaults("InvertedPendulum-v5", method), {name: value for name, value in changes.items() if name in read}
    )


QUICK = ("pdml", "sac")
"""Methods that `make check` tests where all are tested: the default, and one without a model."""


def each_method(methods=METHODS):
    """Return the methods as parameters of a test; all but a few are marked slow."""
    return [method if method in QUICK else pytest.param(method, marks=pytest.mark.slow) for method in methods]


def assert_same_run(one: Path, other: Path) -> None:
    """The last checkpoints of two runs are the same, but for the clock."""
    (arrays, note), (others, noted) = (read_arrays(saved_checkpoints(path)[0]) for path in (one, other))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, others[name], equal_nan=array.dtype.kind == "f"), name
    assert repr({**note, "files": None}) == repr({**noted, "files": None})  # a text, since nan is not nan


def known_of(settings):
    """Return the known parts of the environment: its rule of termination."""
    return by_rule(RULES[settings.learning.env.rpartition("-")[0]])


def start(settings):
    """Return an environment and the compiled parts of a method."""
    config = settings.learning
    env, layout = make_env(config.env), spaces_of(config.env).layout
    return env, layout, wire(config, layout, known_of(settings))


def new_parts(settings):
    """Return parts of a method that nothing has been compiled for yet."""
    config, layout = settings.learning, spaces_of(settings.learning.env).layout
    return compiled(config, layout, RECIPES[METHODS[config.method].recipe](config, layout, known_of(settings)))


def blank_state(settings, parts, env):
    """Return the state before the first step."""
    config, episode = settings.learning, begin_episode(env, settings.learning.seed, 0)
    return initial_state(config, spaces_of(config.env).layout, parts.recipe, episode, settings.run.steps)


def go(settings, parts=None, after_step=lambda state, step: None):
    """Train without a directory; return the state at the end."""
    env, _, wired = start(settings)
    training = Training(settings.learning, parts or wired, Stopwatch())
    return train(blank_state(settings, parts or wired, env), env, training, settings.run.steps, after_step)


def with_model(parts, **changes):
    """Replace parts of the model of compiled parts."""
    return parts._replace(recipe=parts.recipe._replace(model=parts.recipe.model._replace(**changes)))


def everything(state):
    """Return all of a state: arrays, and the rest as text."""
    arrays, note = saved_state(state)
    return arrays, json.dumps(note)


def assert_same_state(first, second):
    """Two states are the same, bit for bit."""
    (arrays, note), (others, noted) = everything(first), everything(second)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, others[name]), name
    assert note == noted


SAVED_AT = (45, 100, 113)
"""Steps at which `record_run` saves: in the warm-up, between two blocks, inside a block."""


class TinyRun(NamedTuple):
    """An unbroken run, for all tests that only read it."""

    settings: Settings
    layout: Layout
    parts: Parts
    state: TrainState
    """At the end; not to be changed."""
    checkpoints: dict[int, Path]
    """By the step at which they were saved."""
    compilations: dict[int, int]
    """By step: how many programs had been traced or compiled by then."""

    def arrays_at(self, step):
        """Return the arrays of a checkpoint."""
        return read_arrays(self.checkpoints[step])[0]

    def resume_at(self, step):
        """Load a checkpoint and train to the end; return the state."""
        config, env = self.settings.learning, make_env(self.settings.learning.env)
        state = load_checkpoint(self.checkpoints[step], self.settings, self.layout, self.parts.recipe, env).state
        return train(state, env, Training(config, self.parts, Stopwatch()), self.settings.run.steps)


def record_run(settings, folder):
    """Train with parts of its own, save on the way, and count what is compiled."""
    layout, parts, events, compilations = spaces_of(settings.learning.env).layout, new_parts(settings), [], {}
    checkpoints = {step: folder / f"step_{step:08d}.safetensors" for step in SAVED_AT}

    def listen(event, duration, **rest):
        if event.startswith("/jax/core/compile"):
            events.append(event)

    def after_step(state, step):
        if state.step in checkpoints:
            save_checkpoint(state, Ledger(FreshReservoir(layout.width)), settings, checkpoints[state.step])
        compilations[state.step] = len(events)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        state = go(settings, parts, after_step)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return TinyRun(settings, layout, parts, state, checkpoints, compilations)
