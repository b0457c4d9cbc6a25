"""What a new state takes over from another one: the same policy, the same predictions, and nothing that differs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tiny import blank_state, start, tiny_of

from pdml.config.fields import change
from pdml.training.state import restored_state, saved_state
from pdml.training.transfer import FRESH_IF_ABSENT, fitting_tree, take_agent, take_model

OBS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
ACTION = jnp.linspace(-1.0, 1.0, 6).reshape(6, 1)


def two_states(method):
    """Return a state whose normalisers are those of some data, and a new one of another seed."""
    settings = tiny_of(method)
    env, _, parts = start(settings)
    old, new = (blank_state(change(settings, {"seed": seed}), parts, env) for seed in (1, 0))
    moved = replace(old.model.normaliser, mean=old.model.normaliser.mean + 0.5)
    old.model = replace(old.model, normaliser=moved)
    if method == "dhmbpo":
        old.agent = replace(old.agent, actor=replace(old.agent.actor, normaliser=moved), bounded=jnp.ones(()))
    return settings, parts, old, new


@pytest.mark.parametrize("method", ["pdml", "dhmbpo"])
def test_policy_and_model_are_the_same_in_both_families(method):
    settings, parts, old, new = two_states(method)
    arrays = saved_state(old)[0]
    agent, means = parts.recipe.agent, parts.model.dynamics.means

    def acts(state):
        return np.asarray(agent.mode(state.agent.actor, OBS))

    def predicts(state):
        return np.asarray(means(state.model, OBS, ACTION))

    assert not np.array_equal(acts(old), acts(new))
    take_agent(new, arrays, settings.learning)
    take_model(new, arrays)
    assert np.array_equal(acts(old), acts(new))
    assert np.array_equal(predicts(old), predicts(new))
    assert new.warm_started
    if method == "dhmbpo":  # the first update phase gives it the normaliser of the new data
        renewed, _ = parts.recipe.update_phase.begin(new.agent, replace(new.model, normaliser=blank_normaliser(new)))
        assert np.allclose(agent.mode(renewed.actor, OBS), acts(old), atol=1e-5)


def blank_normaliser(state):
    return replace(state.model.normaliser, mean=state.model.normaliser.mean - 2.0)


def test_a_temperature_that_the_settings_fix_stays():
    settings, _, old, new = two_states("pdml")
    old.agent = replace(old.agent, log_alpha=jnp.asarray(-3.0, jnp.float32))
    fixed = change(settings, {"agent.temperature": 0.1}).learning
    mine = float(new.agent.log_alpha)
    take_agent(new, saved_state(old)[0], fixed)
    assert float(new.agent.log_alpha) == mine
    take_agent(new, saved_state(old)[0], settings.learning)
    assert float(new.agent.log_alpha) == -3.0


def model(*parts):
    """Return a tree with some parts, each of its own number, as arrays have them."""
    return {part: np.full(2, float(i)) for i, part in enumerate(parts)}


def taken(mine, saved):
    names = tuple(f"model['{name.removeprefix('model.')}']" for name in FRESH_IF_ABSENT)
    arrays = {f"model['{name}']": array for name, array in saved.items()}
    return fitting_tree(mine, arrays, "model", names)


def test_what_only_one_model_has_stays_as_it_is_here():
    both = taken(model("network", "ending"), {"network": np.full(2, 7.0), "ending": np.full(2, 8.0)})
    assert (float(both["network"][0]), float(both["ending"][0])) == (7.0, 8.0)
    mine = taken(model("network", "ending"), {"network": np.full(2, 7.0)})
    assert (float(mine["network"][0]), float(mine["ending"][0])) == (7.0, 1.0)
    theirs = taken(model("network"), {"network": np.full(2, 7.0), "adaptation": np.full(2, 8.0)})
    assert set(theirs) == {"network"}


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="the saved state has no entry model"):
        taken(model("network", "targets"), {"network": np.full(2, 7.0)})
    with pytest.raises(ValueError, match=r"it also has model\['targets'\]"):
        taken(model("network"), {"network": np.full(2, 7.0), "targets": np.full(2, 7.0)})
    with pytest.raises(ValueError, match=r"is float64\(3,\), expected float64\(2,\)"):
        taken(model("network"), {"network": np.full(3, 7.0)})


def test_a_checkpoint_from_before_runs_could_start_from_others_is_of_none():
    settings = tiny_of("sac")
    env, _, parts = start(settings)
    arrays, note = saved_state(blank_state(settings, parts, env))
    del note["warm_started"], note["prior_learned"]
    restored = restored_state(blank_state(settings, parts, env), arrays, note)
    assert (restored.warm_started, restored.prior_learned) == (False, 0)
