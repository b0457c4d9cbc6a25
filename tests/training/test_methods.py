"""Recipes: what equals MBPO, what each method has of its own, and what every record names."""

from pathlib import Path

import jax
import numpy as np
import pytest
from tiny import go, tiny_of, with_model

from pdml.config.fields import change, leaves
from pdml.config.methods import METHODS, PRESETS
from pdml.data.minibatches import PrioritisedMinibatches, UniformMinibatches
from pdml.training.loop import LEARNERS
from pdml.training.methods import RECIPES

MODEL_BASED = [name for name, method in METHODS.items() if method.has_model]


def learned(state):
    return jax.tree.leaves((state.agent, state.model.network, state.model_buffer))


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        pytest.param("ampo", {"ampo.first_steps": 0, "ampo.last_steps": 0}, marks=pytest.mark.slow),
        pytest.param("ampo", {"ampo.stop_epoch": -1}, marks=pytest.mark.slow),
        ("pdml", {"weigh": "none"}),
        pytest.param("decay-mbpo", {"weigh": "none"}, marks=pytest.mark.slow),
        pytest.param("per-mbpo", {"priority.exponent": 0.0}, marks=pytest.mark.slow),
        pytest.param("recall-mbpo", {"priority.share": 1.0}, marks=pytest.mark.slow),
        pytest.param("maper-mbpo-model", {"priority.exponent": 0.0}, marks=pytest.mark.slow),
    ],
)
def test_a_method_whose_change_is_switched_off_equals_mbpo(method, changes, tiny_run):
    state = go(change(tiny_of(method), changes))
    for a, b in zip(learned(state), learned(tiny_run("mbpo").state), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.slow
def test_every_model_based_method_learns_something_of_its_own(tiny_run):
    """So each recipe names its parts: none equals MBPO or another method, in its model or in its agent."""
    learned_bytes = {}
    for method in MODEL_BASED:
        state = tiny_run(method).state
        leaves_of = jax.tree.leaves((state.model.network.members[0], state.agent.actor))
        learned_bytes[method] = b"".join(np.asarray(leaf).tobytes() for leaf in leaves_of)
    assert len(set(learned_bytes.values())) == len(MODEL_BASED)


def test_maper_has_prioritised_minibatches_and_critics_with_model_heads(tiny_run):
    state = tiny_run("maper-mbpo").state
    assert isinstance(state.minibatches, PrioritisedMinibatches)
    assert state.log.metrics["agent/head_loss"] > 0
    assert state.agent.critics[0][-1].b.shape == (6,)


def test_weightings_leave_their_trace(tiny_run):
    assert isinstance(tiny_run("per-mbpo").state.minibatches, UniformMinibatches)
    assert "weights/mixture_shift" in tiny_run("pdml").state.log.metrics
    assert "weights/mixture_shift" not in tiny_run("decay-mbpo").state.log.metrics
    kept = tiny_run("recall-mbpo").state.log.metrics["weights/effective_size"]
    assert kept == pytest.approx(np.ceil(140 / 4))  # a quarter of the rows of the last fit


@pytest.mark.slow
def test_vagram_leaves_the_bounds_of_the_variance_alone(tiny_run):
    bounds = tiny_run("vagram").state.model.network.bounds
    np.testing.assert_allclose(np.asarray(bounds.upper), 0.5)  # no likelihood, no pull


@pytest.mark.slow
def test_the_next_fit_of_ampo_starts_from_the_adapted_features(tiny_run):
    """That a fit starts from the weights it is given is tested in tests/models/test_fit.py."""
    run, given, adapted, steps = tiny_run("ampo"), [], [], []
    dynamics, refine = run.parts.model.dynamics, run.parts.model.refine

    def fit(model, *rest):
        given.append(jax.tree.map(np.array, model.network.members))  # copies: the fit consumes its argument
        return dynamics.fit(model, *rest)

    def spy(model, *rest):
        before = jax.tree.map(np.array, model.network.members)
        model, agent, metrics = refine(model, *rest)
        steps.append(metrics["model/adaptation_steps"])
        adapted.append((before, jax.tree.map(np.array, model.network.members)))
        return model, agent, metrics

    go(run.settings, with_model(run.parts, dynamics=dynamics._replace(fit=fit), refine=spy))
    assert len(given) == 5
    assert steps == [2, 2, 2, 2, 0]  # the fifth block is in epoch 2, adaptation stops after epoch 1
    for (before, after), next_given in zip(adapted[:-1], given[1:], strict=True):
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(next_given), strict=True):
            assert np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
            assert np.array_equal(a, b) == (a.shape[-1] == 10)  # 10: the output layer


def test_every_record_names_a_recipe_and_a_learner_that_exist():
    assert {method.recipe for method in METHODS.values()} == set(RECIPES)
    assert {method.learner for method in METHODS.values()} == set(LEARNERS)


def test_every_method_has_a_page_and_every_page_a_method():
    pages = {path.stem for path in (Path(__file__).parents[2] / "docs" / "methods").glob("*.md")} - {"index"}
    assert pages == set(METHODS)


@pytest.mark.parametrize("method", ["sac", pytest.param("redq", marks=pytest.mark.slow)])
def test_model_free_methods_learn_from_real_transitions_only_and_keep_no_model(method, tiny_run):
    state, config = tiny_run(method).state, tiny_run(method).settings.learning
    assert config.updates_per_step == 2
    assert state.model is None
    assert state.model_buffer is None
    assert state.history.count == 0
    assert state.minibatches.choose(state.replay, 0).real.shape == (2, config.batch_size)
    assert int(state.agent.critic_opt[0].count) == 2 * 100
    assert not any(name.startswith(("model", "imagined", "weights")) for name in state.log.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.is_double_horizon])
def test_the_released_preset_runs_with_every_method(method):
    read = {leaf.name for leaf in leaves() if method in leaf.methods}
    released = {name: value for name, value in PRESETS["released"].changes.items() if name in read}
    state = go(change(tiny_of(method), released | {"steps": 121}))
    assert np.exp(np.asarray(state.agent.log_alpha)) == pytest.approx(0.2)
    if state.model is not None:
        np.testing.assert_allclose(np.asarray(state.model.network.bounds.lower), -10.0)
