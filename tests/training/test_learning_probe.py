"""A small task that every method must solve through the whole loop."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_of

from pdml.config.fields import change, leaves
from pdml.config.methods import METHODS
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.envs.episode import begin_episode
from pdml.envs.termination_fns import by_rule
from pdml.training.loop import Training, train
from pdml.training.methods import wire
from pdml.training.state import initial_state


class Probe(gymnasium.Env):
    """Two steps per episode: the first action must undo 0.8 times the first observation, the second step pays for it.

    The observation is (phase, x); without the dynamics and without bootstrapping there is nothing to learn.
    """

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = np.array([0.0, self.np_random.uniform(-1.0, 1.0)])
        return self.obs, {}

    def step(self, action):
        phase, x = self.obs
        if phase == 0.0:
            self.obs = np.array([1.0, action[0] - 0.8 * x])
            return self.obs, 0.0, False, False, {}
        self.obs = np.array([2.0, 0.0])
        return self.obs, -float(x**2), True, False, {}


def beyond(obs):
    return obs[:, 0] > 1.5


CHANGES = {
    "warmup_steps": 300,
    "steps": 600,
    "model_every": 50,
    "epoch_steps": 200,
    "agent.tau": 0.05,
    "batch_size": 64,
    "agent.hidden_sizes": (32, 32),
    "agent.learning_rate": 3e-3,
    "agent.temperature": 1e-3,
    "agent.num_critics": 4,
    "dynamics.hidden_sizes": (32, 32),
    "dynamics.weight_decay": (1e-5, 1e-5, 1e-5),
    "dynamics.max_epochs": 20,
    "rollouts.batch": 400,
    "mixture.first_block": 4,
    "double.dropout": (0.0, 0.0),
}

UPDATES = {"redq": 20, "dhmbpo": 4, "pdml-dhmbpo": 4}
"""Updates per step where they are not 8. Double-horizon updates take longer to compile than to compute here."""


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_solves_the_probe_through_the_whole_loop(method):
    changes = CHANGES | {"updates_per_step": UPDATES.get(method, 8)}
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    settings = change(tiny_of(method), {name: value for name, value in changes.items() if name in read})
    config, layout, env = settings.learning, Layout(2, 1), Probe()
    parts = wire(config, layout, by_rule(beyond))
    state = initial_state(config, layout, parts.recipe, begin_episode(env, 0, 0), settings.run.steps)
    train(state, env, Training(config, parts, Stopwatch()), settings.run.steps)
    obs = jnp.asarray([[0.0, x] for x in (-0.8, -0.4, 0.4, 0.8)])
    found = np.asarray(parts.recipe.agent.mode(state.agent.actor, obs))[:, 0]
    wanted = 0.8 * np.asarray(obs)[:, 1]
    assert np.mean((found - wanted) ** 2) < 0.25 * np.mean(wanted**2)  # what is lost, beside doing nothing
