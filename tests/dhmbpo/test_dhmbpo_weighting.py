"""DHMBPO with PDML's weights: what they change, and what they do not."""

import numpy as np
import pytest
from tiny import blank_state, everything, go, start, tiny_of, with_model

from pdml.config.fields import change
from pdml.core.stopwatch import Stopwatch
from pdml.training.loop import Training, train
from pdml.weighting.policy_history import actor_from_flat, actor_shape, flat_actor


@pytest.mark.slow
def test_without_weights_the_policy_adapted_learner_is_the_plain_one_bit_for_bit():
    plain, adapted = tiny_of("dhmbpo"), change(tiny_of("pdml-dhmbpo"), {"weigh": "none"})
    (arrays, _), (others, _) = (everything(go(settings)) for settings in (plain, adapted))
    compared = [name for name in arrays if not name.startswith("history.") or name == "history.snapshots"]
    assert len(compared) > 30
    assert "history.snapshots" in compared
    for name in compared:
        assert np.array_equal(arrays[name], others[name]), name


@pytest.mark.slow
def test_each_arm_learns_something_else():
    """Weights begin with the fit and the updates at step 100."""
    found = set()
    for arm in ("none", "model", "starts", "both"):
        state = go(change(tiny_of("pdml-dhmbpo"), {"weigh": arm, "steps": 101}))
        found.add(np.asarray(state.agent.actor.layers[0].w).tobytes())
    assert len(found) == 4


def test_snapshots_are_the_policies_that_acted_with_the_normaliser_they_had():
    acted = {}

    def after(state, step):
        acted.setdefault(max(0, 1 + (state.step - 60) // 20), flat_actor(state.agent.actor))

    state = go(tiny_of("pdml-dhmbpo"), after_step=after)
    assert state.history.count == 6
    for number in range(6):
        assert np.array_equal(state.history.snapshot(number), acted[number])
    shape = actor_shape(state.agent.actor)
    means = {np.asarray(actor_from_flat(shape, acted[i]).normaliser.mean).tobytes() for i in range(1, 7)}
    assert len(means) == 6  # of all transitions up to then


def test_distribution_rollouts_start_in_real_states_by_their_weights():
    settings, seen = tiny_of("pdml-dhmbpo"), []
    env, layout, parts = start(settings)
    weighting = parts.model.weighting

    def weigh(context):
        seen.append(weighting(context))
        return seen[-1]

    def run(agent, model, buffer, real_states, step, pending_steps):
        states = state.replay.stored().rows[:, : layout.obs_size]
        number = {row.tobytes(): i for i, row in enumerate(states)}
        assert len(number) == len(states) == step
        drawn = real_states((100, 200), np.random.default_rng(0)).reshape(-1, 4)
        found = [number[row.tobytes()] for row in drawn]
        shares = np.bincount(found, minlength=step) / 20_000
        np.testing.assert_allclose(shares, seen[-1].starts, atol=0.006)
        blocks = state.replay.stored().block
        np.testing.assert_allclose(*(np.bincount(blocks, x) for x in (shares, seen[-1].starts)), atol=0.012)
        return agent, buffer, {}

    parts = with_model(parts, weighting=weigh)
    phase = parts.recipe.update_phase._replace(run=run)
    parts = parts._replace(recipe=parts.recipe._replace(update_phase=phase))
    state = blank_state(settings, parts, env)
    train(state, env, Training(settings.learning, parts, Stopwatch()), settings.run.steps)
    assert len(seen) == 6
    assert seen[-1].starts.max() > 1.5 * seen[-1].starts.min()
