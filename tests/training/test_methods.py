"""Recipes: what equals MBPO, what composes, and a probe that every method must solve through the whole loop."""

import functools
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import go, start, tiny_of, with_world

from pdml.agents import maper, sac
from pdml.config.schema import METHODS, MODEL_BASED, PRESETS, STEPWISE, change, leaves
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.data import minibatches
from pdml.envs.gym import begin
from pdml.envs.termination_fns import by_rule
from pdml.models import ampo, losses
from pdml.models.fit import ensemble
from pdml.training.loop import _due, init, jitted, train, wire
from pdml.training.methods import RECIPES, mbpo, nothing
from pdml.weighting import by_policy


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
    assert_same_learning(go(change(tiny_of(method), changes)), tiny_run("mbpo", 160))


@functools.cache
def tiny_run(method, steps=121):
    return go(change(tiny_of(method), {"steps": steps}))


def test_every_model_based_method_learns_something_of_its_own():
    """So each recipe names its parts: none equals MBPO or another method, in its model or in its agent."""
    learned_bytes = {}
    for method in MODEL_BASED:
        state = tiny_run(method)
        leaves_of = jax.tree.leaves((state.model.network.members[0], state.agent.actor))
        learned_bytes[method] = b"".join(np.asarray(leaf).tobytes() for leaf in leaves_of)
    assert len(set(learned_bytes.values())) == len(MODEL_BASED)


def test_recipes_have_the_parts_that_leave_a_trace():
    assert isinstance(tiny_run("maper-mbpo").mixing, minibatches.Prioritised)
    assert tiny_run("maper-mbpo").log.metrics["agent/head_loss"] > 0
    assert tiny_run("maper-mbpo").agent.critics[0][-1].b.shape == (6,)
    assert isinstance(tiny_run("per-mbpo").mixing, minibatches.Uniform)
    assert tiny_run("ampo").log.metrics["model/adaptation_steps"] == 2
    np.testing.assert_allclose(np.asarray(tiny_run("vagram").model.network.bounds.upper), 0.5)  # no likelihood, no pull
    assert "weights/mixture_shift" in tiny_run("pdml").log.metrics
    assert "weights/mixture_shift" not in tiny_run("decay-mbpo").log.metrics
    kept = tiny_run("recall-mbpo").log.metrics["weights/effective_size"]
    assert kept == pytest.approx(np.ceil(120 / 4))


def test_the_next_fit_of_ampo_starts_from_the_adapted_features():
    """With a fit that moves nothing and adaptation in the first block only, the second shows what it began with."""
    still = {"dynamics.learning_rate": 1e-12, "epoch_steps": 20}
    first, second = (
        go(change(tiny_of("ampo"), still | {"ampo.stop_epoch": 0, "steps": steps})).model.network.members
        for steps in (61, 81)
    )
    untouched = go(change(tiny_of("mbpo"), still | {"steps": 61})).model.network.members
    for a, b, c in zip(jax.tree.leaves(first), jax.tree.leaves(second), jax.tree.leaves(untouched), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-7)
        assert a.shape[-1] == 10 or not np.allclose(np.asarray(a), np.asarray(c), atol=1e-5)  # 10: the output layer


def test_every_method_has_its_recipe_its_line_and_its_page():
    pages = {path.stem for path in (Path(__file__).parents[2] / "docs" / "methods").glob("*.md")} - {"index"}
    assert list(RECIPES) == list(METHODS)
    assert pages == set(METHODS)


WEIGHTINGS = {
    "uniform": lambda c: by_policy.uniform(),
    "pdml": lambda c: by_policy.policy_mixture(c.mixture),
    "decay": lambda c: by_policy.exponential_decay(c.mixture),
    "per": lambda c: by_policy.temporal_difference(c.priority),
    "recall": lambda c: by_policy.highest_values(c.priority),
    "maper-model": lambda c: by_policy.temporal_difference_and_model(c.priority),
}


@functools.cache
def composed(loss, agent):
    """Wire one of nine combinations of model and agent; weightings are exchanged later."""
    config = change(tiny_of("vagram" if loss == "vagram" else "ampo" if loss == "ampo" else "pdml"), {"steps": 121})
    config = change(config, {"mixture.first_block": 2, "mixture.reservoir": 96, "agent.num_critics": 3})
    env, layout, _ = start(config)
    dynamics = ensemble(config, layout, losses.vagram(config, layout) if loss == "vagram" else losses.nll(config))
    heads = maper.train_heads(config, layout)
    parts = {
        "dynamics": ampo.adapted(config, dynamics) if loss == "ampo" else dynamics,
        "agent": {"sac": sac.sac, "redq": sac.redq, "maper": maper.maper}[agent](config, layout),
        "mix": minibatches.Prioritised if agent == "maper" else minibatches.Uniform,
        "refine": ampo.adapt(config, layout) if loss == "ampo" else heads if agent == "maper" else nothing,
    }
    rule = by_rule(lambda obs: jnp.abs(obs[:, 1]) > 0.2)
    return config, env, layout, jitted(config, layout, mbpo(config, layout, rule, **parts))


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["sac", "redq", "maper"])
@pytest.mark.parametrize("loss", ["nll", "vagram", "ampo"])
def test_every_weighting_works_with_every_model_and_agent(loss, agent):
    config, env, layout, parts = composed(loss, agent)
    networks = {}
    for name, build in WEIGHTINGS.items():
        wired = with_world(parts, weighting=build(config))
        state = train(init(config, layout, wired, begin(env, 0, 0)), env, wired, config, Stopwatch())
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.agent, state.model)))
        assert int(state.imagined.size) > 0
        networks[name] = np.asarray(state.model.network.members[0][0].w).tobytes()
    assert len(set(networks.values())) == len(WEIGHTINGS)  # in the fourth fit all have their own weights


class Probe(gymnasium.Env):
    """Two steps an episode: the first action must undo 0.8 times the first observation, the second step pays for it.

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


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_solves_a_probe_through_the_whole_loop(method):
    changes = {
        "warmup_steps": 300,
        "steps": 900,
        "model_every": 50,
        "epoch_steps": 200,
        "updates_per_step": 20 if method == "redq" else 8,
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
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    config = change(tiny_of(method), {name: value for name, value in changes.items() if name in read})
    layout = Layout(2, 1)
    parts = wire(config, layout, by_rule(lambda obs: obs[:, 0] > 1.5))
    env = Probe()
    state = train(init(config, layout, parts, begin(env, 0, 0)), env, parts, config, Stopwatch())
    obs = jnp.asarray([[0.0, x] for x in (-0.8, -0.4, 0.4, 0.8)])
    found = np.asarray(parts.recipe.agent.mode(state.agent.actor, obs))[:, 0]
    np.testing.assert_allclose(found, 0.8 * np.asarray(obs)[:, 1], atol=0.25)


def test_model_free_methods_learn_from_real_rows_only_and_keep_no_model():
    for method, updates in (("sac", 1), ("redq", 2)):
        config = change(tiny_of(method), {"updates_per_step": updates})
        state = go(config)
        assert state.model is None
        assert state.imagined is None
        assert state.history.count == 0
        assert state.mixing.choose(state.replay, 0).real.shape == (updates, config.batch_size)
        assert int(state.agent.critic_opt[0].count) == updates * 100
        assert not any(name.startswith(("model", "imagined", "weights")) for name in state.log.metrics)


def test_throttle_gives_the_updates_that_mbpo_pytorch_makes():
    """5000, 10000, 15000 and then all 20000 updates an epoch."""
    config = change(tiny_of("mbpo"), {"warmup_steps": 5000, "steps": 9000, "updates_per_step": 20, "epoch_steps": 1000})
    for throttle, expected in ((5.0, [5000, 10_000, 15_000, 20_000]), (0.0, [20_000] * 4)):
        throttled = change(config, {"throttle": throttle})
        env, layout, parts = start(throttled)
        state, made = init(throttled, layout, parts, begin(env, 0, 0)), []
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
@pytest.mark.parametrize("method", STEPWISE)
def test_the_released_preset_runs_with_every_method(method):
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    released = {name: value for name, value in PRESETS["released"].items() if name in read}
    state = go(change(tiny_of(method), released | {"steps": 121}))
    assert np.exp(np.asarray(state.agent.log_alpha)) == pytest.approx(0.2)
    if state.model is not None:
        np.testing.assert_allclose(np.asarray(state.model.network.bounds.lower), -10.0)


@pytest.mark.slow
def test_time_limits_may_be_stored_as_terminals():
    base = {"env": "Pusher-v5", "warmup_steps": 230, "steps": 240, "time_limit_terminates": True}
    rows = go(change(tiny_of("sac"), base)).replay.stored().rows
    assert np.flatnonzero(rows[:, -1]).tolist() == [99, 199]
