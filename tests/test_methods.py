"""Recipes: what equals MBPO, what composes, and a probe that every method must solve through the whole loop."""

import functools
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import tiny_of
from test_algorithm import go, start, with_world

from pdml import adaptation, agents, losses, maper, mixing, weighting
from pdml.algorithm import _due, init, train, wire
from pdml.config import METHODS, MODEL_BASED, change, leaves
from pdml.dynamics import ensemble
from pdml.methods import RECIPES, mbpo, nothing
from pdml.timing import Stopwatch
from pdml.transition import Layout


def learned(state):
    return jax.tree.leaves((state.agent, state.model.network, state.imagined))


def assert_same_learning(first, second):
    for a, b in zip(learned(first), learned(second), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("ampo", {"ampo.first_steps": 0, "ampo.last_steps": 0}),
        ("ampo", {"ampo.stop_epoch": -1}),
        ("pdml", {"weigh": "none"}),
        ("decay-mbpo", {"weigh": "none"}),
        ("per-mbpo", {"priority.exponent": 0.0}),
        ("recall-mbpo", {"priority.share": 1.0}),
        ("maper-mbpo-model", {"priority.exponent": 0.0}),
    ],
)
def test_a_method_whose_change_is_switched_off_equals_mbpo(method, changes):
    assert_same_learning(go(change(tiny_of(method), changes)), go(tiny_of("mbpo")))


def test_one_purpose_of_the_weights_at_a_time_is_neither_mbpo_nor_pdml():
    networks = [go(tiny_of(m)).model.network for m in ("mbpo", "pdml", "pdml-model-only", "pdml-starts-only")]
    firsts = [np.asarray(network.members[0][0].w).tobytes() for network in networks]
    assert len(set(firsts)) == 4


def test_every_method_has_its_recipe_its_line_and_its_page():
    pages = {path.stem for path in (Path(__file__).parent.parent / "docs" / "methods").glob("*.md")} - {"index"}
    assert list(RECIPES) == list(METHODS)
    assert pages == set(METHODS)


WEIGHTINGS = {
    "uniform": lambda c: weighting.uniform(),
    "pdml": lambda c: weighting.policy_mixture(c.mixture),
    "decay": lambda c: weighting.exponential_decay(c.mixture),
    "per": lambda c: weighting.temporal_difference(c.priority),
    "recall": lambda c: weighting.highest_values(c.priority),
    "maper-model": lambda c: weighting.temporal_difference_and_model(c.priority),
}


@functools.cache
def composed(loss, agent):
    """Wire one of nine combinations of model and agent; weightings are exchanged later."""
    config = change(tiny_of("vagram" if loss == "vagram" else "ampo" if loss == "ampo" else "pdml"), {"steps": 100})
    config = change(config, {"mixture.first_block": 2, "mixture.reservoir": 96, "agent.num_critics": 3})
    env, layout, _ = start(config)
    dynamics = ensemble(config, layout, losses.vagram(config, layout) if loss == "vagram" else losses.nll(config))
    parts = {
        "dynamics": adaptation.adapted(config, dynamics) if loss == "ampo" else dynamics,
        "agent": {"sac": agents.sac, "redq": agents.redq, "maper": maper.maper}[agent](config, layout),
        "mix": mixing.Prioritised if agent == "maper" else mixing.Uniform,
        "refine": adaptation.adapt(config, layout) if loss == "ampo" else nothing,
    }
    rule = lambda obs: jnp.abs(obs[:, 1]) > 0.2  # noqa: E731
    return config, env, layout, wire(config, layout, rule, mbpo(config, layout, rule, **parts))


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["sac", "redq", "maper"])
@pytest.mark.parametrize("loss", ["nll", "vagram", "ampo"])
def test_every_weighting_works_with_every_model_and_agent(loss, agent):
    config, env, layout, parts = composed(loss, agent)
    networks = {}
    for name, build in WEIGHTINGS.items():
        wired = with_world(parts, weighting=build(config))
        state = train(init(config, layout, wired, env), env, wired, config, Stopwatch())
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.agent, state.model)))
        assert int(state.imagined.size) > 0
        networks[name] = np.asarray(state.model.network.members[0][0].w).tobytes()
    # Mixtures begin with the second block, scores with the first: within two blocks only scores have acted.
    assert len(set(networks.values())) == len(WEIGHTINGS) - 2


class Probe(gymnasium.Env):
    """One step an episode: the best action is 0.8 times the observation."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs = self.np_random.uniform(-1.0, 1.0, 1)
        return self.obs, {}

    def step(self, action):
        reward = -float((action[0] - 0.8 * self.obs[0]) ** 2)
        return np.zeros(1), reward, True, False, {}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_solves_a_probe_through_the_whole_loop(method):
    changes = {
        "warmup_steps": 150,
        "steps": 550,
        "model_every": 50,
        "epoch_steps": 200,
        "updates_per_step": 20 if method == "redq" else 8,
        "batch_size": 64,
        "agent.hidden_sizes": (32, 32),
        "agent.learning_rate": 3e-3,
        "agent.temperature": 1e-3,
        "agent.num_critics": 4,
        "dynamics.hidden_sizes": (32, 32),
        "dynamics.max_epochs": 20,
        "rollouts.batch": 400,
        "mixture.first_block": 4,
    }
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    config = change(tiny_of(method), {name: value for name, value in changes.items() if name in read})
    layout = Layout(1, 1)
    parts = wire(config, layout, lambda obs: jnp.ones(len(obs), bool))
    env = Probe()
    state = train(init(config, layout, parts, env), env, parts, config, Stopwatch())
    obs = jnp.asarray([[-0.8], [-0.4], [0.4], [0.8]])
    np.testing.assert_allclose(np.asarray(parts.recipe.agent.mode(state.agent.actor, obs)), 0.8 * obs, atol=0.2)


def test_model_free_methods_learn_from_real_rows_only_and_keep_no_model():
    for method, updates in (("sac", 1), ("redq", 2)):
        config = change(tiny_of(method), {"updates_per_step": updates})
        state = go(config)
        assert state.model is None
        assert state.imagined is None
        assert state.history.count == 0
        assert config.real_rows == config.batch_size
        assert int(state.agent.critic_opt[0].count) == updates * 100
        assert not any(name.startswith(("model", "imagined", "weights")) for name in state.log.metrics)


def test_throttle_gives_the_updates_that_mbpo_pytorch_makes():
    """5000, 10000, 15000 and then all 20000 updates an epoch."""
    config = change(tiny_of("mbpo"), {"warmup_steps": 5000, "steps": 9000, "updates_per_step": 20, "epoch_steps": 1000})
    for throttle, expected in ((5.0, [5000, 10_000, 15_000, 20_000]), (0.0, [20_000] * 4)):
        throttled = change(config, {"throttle": throttle})
        env, layout, parts = start(throttled)
        state, made = init(throttled, layout, parts, env), []
        for epoch in range(4):
            for step in range(1000):
                state.step = 5000 + 1000 * epoch + step
                _due(state, throttled)
            made.append(state.epoch_updates)
        np.testing.assert_allclose(made, expected, atol=20)


def test_a_throttled_run_makes_fewer_updates_and_reports_their_mean():
    state = go(change(tiny_of("mbpo"), {"throttle": 0.5, "epoch_steps": 1000}))
    assert int(state.agent.critic_opt[0].count) == 2 * 25  # 100 steps, half an update a step, two at a time
    assert state.log.improved == 5
    entropy = state.log.sums["agent/entropy"] / state.log.improved
    assert -3.0 < entropy < 3.0


@pytest.mark.slow
def test_released_settings_run_with_every_method():
    for method in MODEL_BASED:
        config = change(tiny_of(method), {"steps": 100})
        released = {
            "agent.temperature": 0.2,
            "agent.scaled_log_prob": True,
            "rollouts.deterministic": True,
            "rollouts.reward_penalty": 1.0,
            "dynamics.train_bounds": False,
            "dynamics.restore_best": False,
            "time_limit_terminates": True,
        }
        state = go(change(config, released))
        assert np.exp(np.asarray(state.agent.log_alpha)) == pytest.approx(0.2)
        np.testing.assert_allclose(np.asarray(state.model.network.bounds.lower), -10.0)


@pytest.mark.slow
def test_time_limits_may_be_stored_as_terminals():
    base = {"env": "Pusher-v5", "warmup_steps": 230, "steps": 240, "time_limit_terminates": True}
    rows = go(change(tiny_of("mbpo"), base)).replay.stored().rows
    assert np.flatnonzero(rows[:, -1]).tolist() == [99, 199]
