"""Settings that hold an update phase back, a normaliser that changes nothing, and what a phase did, by hand."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from double_parts import LAYOUT, MEMBERS, NEVER, ROWS, STEPS, agent_state, linear_model, small_config
from tiny import tiny_of

from pdml.config.fields import change
from pdml.core.nets import Layer
from pdml.core.transition import Layout
from pdml.data.model_buffer import append, blank_buffer
from pdml.dhmbpo.learner import double_horizon_agent, update_phase
from pdml.dhmbpo.measures import action_change, measure_phase, return_steps
from pdml.dhmbpo.renewal import renew_normaliser
from pdml.dhmbpo.rollouts import NormalisedActor, StepRules, TrainingRollout, actor_head
from pdml.dhmbpo.updates import (
    guarded_actor_step,
    new_optimisers,
    policy_divergence,
    scaled_values,
    update_bounds,
    updates,
)
from pdml.models.ensemble import Normaliser

OBS = jax.random.normal(jax.random.key(9), (ROWS, 2))
SIZES = {"batch_size": ROWS, "double.near": STEPS, "dynamics.num_members": MEMBERS, "agent.num_critics": 3}


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def close(one, other, **tolerances):
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerances)


def shifted(actor, by):
    """The same policy with its mean, before the tanh, moved."""
    last = actor.layers[-1]
    return replace(actor, layers=(*actor.layers[:-1], Layer(last.w, last.b + jnp.asarray([by, 0.0]))))


def gradient_like(actor, size=3.0):
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, size), actor.layers)


# folding


@pytest.mark.parametrize("averaged", [False, True])
def test_a_new_normaliser_changes_neither_actions_nor_values(averaged):
    state = agent_state()
    if averaged:
        state = replace(state, trained=jax.tree.map(lambda leaf: 1.1 * leaf, state.actor.layers))
    renewed = renew_normaliser(state, Normaliser(jnp.asarray([1.5, -3.0]), jnp.asarray([0.7, 4.0])))
    np.testing.assert_array_equal(renewed.actor.normaliser.mean, [1.5, -3.0])
    action = jnp.linspace(-1.0, 1.0, ROWS)[:, None]
    for name in ("actor", "trained_actor"):
        close(actor_head(getattr(state, name), OBS), actor_head(getattr(renewed, name), OBS), atol=1e-5)
    for name in ("critics", "target_critics"):
        values = [scaled_values(getattr(each, name), each, OBS, action) for each in (state, renewed)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)


def test_before_the_first_update_the_networks_stay_as_they_were_initialised():
    state = replace(agent_state(), bounded=jnp.zeros(()))
    renewed = renew_normaliser(state, Normaliser(jnp.asarray([1.5, -3.0]), jnp.asarray([0.7, 4.0])))
    assert renewed.actor.layers is state.actor.layers
    assert renewed.critics is state.critics
    assert renewed.target_critics is state.target_critics
    assert renewed.actor.normaliser.mean.tolist() == [1.5, -3.0]


# the step of the actor


@pytest.mark.slow
def test_a_gradient_beyond_the_limit_is_scaled_to_it():
    """Compared after two steps, since Adam's first step does not depend on the gradient's length."""
    config = small_config(SIZES | {"double.actor_clip": 0.5})
    state = agent_state()
    opts, adam = new_optimisers(config, state), optax.adam(config.agent.learning_rate)
    layers, opt = state.actor.layers, adam.init(state.actor.layers)
    for size in (3.0, 3e-3):  # the second is short enough to pass as it is
        grads = gradient_like(state.actor, size)
        state, opts, _ = guarded_actor_step(config)(state, opts, grads, OBS)
        norm = np.sqrt(sum((leaf**2).sum() for leaf in leaves(grads)))
        assert (norm > 0.5) == (size == 3.0)
        with jax.numpy_dtype_promotion("standard"):
            steps, opt = adam.update(gradient_like(state.actor, size * min(1.0, 0.5 / norm)), opt)
        layers = optax.apply_updates(layers, steps)
    close(state.actor.layers, layers, atol=1e-6)


def test_the_divergence_of_two_policies_is_that_of_their_gaussians():
    """Equal deviations: (shift / deviation)^2 / 2."""
    actor = agent_state().actor
    _, log_std = actor_head(actor, OBS)
    expected = (0.5 * np.square(0.3 / np.exp(np.asarray(log_std)))).mean()
    assert float(policy_divergence(actor, shifted(actor, 0.3), OBS)) == pytest.approx(expected, rel=1e-4)
    assert float(policy_divergence(actor, actor, OBS)) == pytest.approx(0.0, abs=1e-6)


def test_a_policy_within_the_bound_follows_its_loss_and_one_beyond_it_comes_back():
    config = small_config(SIZES | {"double.kl_bound": 0.1})
    start = replace(agent_state(), collecting=agent_state().actor)
    far = replace(start, actor=shifted(start.actor, 3.0))
    grads, move = gradient_like(start.actor), jax.jit(guarded_actor_step(config))
    within, opts, is_beyond = move(start, new_optimisers(config, start), grads, OBS)
    close(within.actor.layers, jax.tree.map(lambda leaf: leaf - 3e-4, start.actor.layers), atol=1e-6)  # Adam's first
    close(opts.actor[0].mu, jax.tree.map(lambda leaf: 0.1 * leaf, grads), rtol=1e-5)
    assert not is_beyond
    back, opts, is_beyond = move(far, new_optimisers(config, far), grads, OBS)
    before, after = (float(policy_divergence(start.actor, each.actor, OBS)) for each in (far, back))
    assert 0.1 < after < before
    assert is_beyond
    slope = jax.grad(lambda layers: policy_divergence(start.actor, replace(far.actor, layers=layers), OBS))(
        far.actor.layers
    )
    factor = 0.1 * optax.tree.norm(grads) / optax.tree.norm(slope)
    close(opts.actor[0].mu, jax.tree.map(lambda leaf: factor * leaf, slope), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_reported_gradient_is_that_before_clipping():
    state, model, found = agent_state(), linear_model(noise=0.2), {}
    for limit in (0.0, 1e-3):
        config = small_config(SIZES | {"double.actor_clip": limit})
        update = jax.jit(updates(config, LAYOUT, NEVER).all_networks)
        metrics = update(state, new_optimisers(config, state), model, OBS, jax.random.key(5))[2]
        found[limit] = float(metrics["agent/actor_gradient"])
    assert found[1e-3] == pytest.approx(found[0.0], rel=1e-5)
    assert found[0.0] > 1e-3


def test_the_acting_policy_is_the_average_of_the_trained_one():
    config = small_config(SIZES | {"double.actor_average": 0.25})
    state = agent_state()
    state = replace(state, trained=state.actor.layers)
    moved, _, _ = guarded_actor_step(config)(state, new_optimisers(config, state), gradient_like(state.actor), OBS)
    close(moved.trained, jax.tree.map(lambda leaf: leaf - 3e-4, state.trained), atol=1e-6)
    expected = jax.tree.map(lambda old, new: old + 0.25 * (new - old), state.actor.layers, moved.trained)
    close(moved.actor.layers, expected, atol=1e-7)


# critics


@pytest.mark.slow
def test_critic_only_updates_have_rollouts_of_their_own_length():
    state, model, found = agent_state(), linear_model(noise=0.2), {}
    for steps in (0, STEPS, 2):
        config = small_config(SIZES | {"double.critic_near": steps})
        update = jax.jit(updates(config, LAYOUT, NEVER).critics_only)
        found[steps] = update(state, new_optimisers(config, state), model, OBS, jax.random.key(5))[2]
    assert float(found[0]["agent/critic_loss"]) == float(found[STEPS]["agent/critic_loss"])
    assert float(found[0]["agent/critic_loss"]) != float(found[2]["agent/critic_loss"])


@pytest.mark.parametrize(("reward", "bounds"), [(1.0, [0.0, 200.0]), (-1.0, [-200.0, 0.0])])
def test_bounds_may_include_the_value_of_an_ended_episode(reward, bounds):
    config = small_config({"double.zero_bounds": True})
    ones = jnp.ones((6, 100))
    rollout = TrainingRollout(
        reward * ones[:5], 0.0 * ones, ones, jnp.zeros((100, 1)), jnp.zeros((100, 2)), jnp.zeros((100, 1))
    )
    state = update_bounds(replace(agent_state(), bounded=jnp.zeros(())), rollout, config)
    np.testing.assert_allclose(state.bounds, bounds, rtol=1e-3)


def test_of_long_rollouts_the_first_near_steps_decide_the_bounds():
    config = small_config({"double.near": 5})
    reward, ones = jnp.concatenate([jnp.ones((5, 100)), jnp.full((15, 100), 9.0)]), jnp.ones((21, 100))
    rollout = TrainingRollout(reward, 0.0 * ones, ones, jnp.zeros((100, 1)), jnp.zeros((100, 2)), jnp.zeros((100, 1)))
    state = update_bounds(replace(agent_state(), bounded=jnp.zeros(())), rollout, config)
    np.testing.assert_allclose(state.bounds, [200.0, 200.0], rtol=1e-3)


# update phases


def small_phase(**changes):
    """An update phase in a linear model, and the agent before it."""
    settings = change(tiny_of("dhmbpo"), {name.replace("__", "."): value for name, value in changes.items()})
    config, layout = settings.learning, Layout(2, 1)
    agent = double_horizon_agent(config, layout).init(jax.random.key(0))
    phase = update_phase(config, layout, NEVER)
    buffer = blank_buffer(4000, 2, capacity=4000)

    def starts(shape, rng):
        return rng.normal(size=(*shape, 2)).astype(np.float32)

    def run(agent, step, model=None):
        model = linear_model(members=config.dynamics.num_members, noise=0.1) if model is None else model
        agent, _, metrics = phase.run(agent, model, buffer_copy(), starts, step, 4)
        return agent, metrics

    def buffer_copy():
        return jax.tree.map(jnp.copy, buffer)

    return agent, run


@pytest.mark.slow
def test_moments_are_kept_from_phase_to_phase_only_where_asked():
    agent, run = small_phase(double__keep_moments=True)
    after, _ = run(agent, 1)
    counts = [int(leaf) for leaf in jax.tree.leaves(after.moments.actor) if leaf.dtype == jnp.int32]
    again, _ = run(after, 2)
    later = [int(leaf) for leaf in jax.tree.leaves(again.moments.actor) if leaf.dtype == jnp.int32]
    assert counts == [8]  # two updates for each of four steps
    assert later == [16]
    plain, run = small_phase()
    assert plain.moments == ()
    assert run(plain, 1)[0].moments == ()


@pytest.mark.slow
def test_only_a_policy_that_has_collected_a_block_bounds_the_next_one():
    free, run_free = small_phase()
    bounded, run_bounded = small_phase(double__kl_bound=1e-9)
    free, first_free = run_free(free, 1)
    bounded, first_bounded = run_bounded(bounded, 1)
    assert first_bounded["agent/divergence"] == pytest.approx(first_free["agent/divergence"], rel=1e-4)
    assert bounded.collecting == ()  # it is only needed within a phase
    _, second_free = run_free(free, 2)
    _, second_bounded = run_bounded(bounded, 2)
    assert second_bounded["agent/divergence"] < 0.5 * second_free["agent/divergence"]
    assert first_bounded["agent/held_back"] == 0.0
    assert 0.0 < second_bounded["agent/held_back"] < 1.0  # not the first update, which begins at the bound's policy
    assert "agent/held_back" not in second_free


@pytest.mark.slow
def test_a_phase_reports_how_far_it_moved_the_policy():
    agent, run = small_phase()
    agent, _ = run(agent, 1)
    before = jax.tree.map(jnp.copy, agent.actor)
    after, metrics = run(agent, 2)
    assert metrics["agent/renewal_change"] < 1e-5
    assert 0.0 < metrics["agent/action_change"] < 2.0
    assert metrics["agent/divergence"] > 0.0
    assert float(action_change(before, after.actor, OBS)) > 0.0


# the bias of values


@pytest.mark.slow
def test_the_bias_of_values_is_the_critics_value_minus_the_soft_return_of_the_model():
    """A reward of 2 at every step, and critics whose value is 300."""
    config = small_config(SIZES | {"agent.gamma": 0.9})
    network = replace(
        linear_model().network, members=(Layer(jnp.zeros((2, 3, 3)), jnp.asarray([[2.0, 0.0, 0.0]] * 2)),)
    )
    model = linear_model(network=network)
    state = agent_state(alpha=0.0)
    constant = (*state.critics[:-1], Layer(0.0 * state.critics[-1].w, jnp.full_like(state.critics[-1].b, 1.0)))
    state = replace(state, critics=constant, bounds=jnp.asarray([100.0, 300.0]))
    buffer = append(blank_buffer(ROWS, 2, capacity=ROWS), OBS, jnp.asarray(ROWS, jnp.int32))
    steps = return_steps(0.9)
    assert 0.9**steps <= 0.01 < 0.9 ** (steps - 1)
    summed = 2.0 * (1.0 - 0.9**steps) / 0.1
    for rules, expected in (
        (NEVER, 300.0 - summed),
        (StepRules(lambda model, obs, action, next_obs: jnp.ones(len(obs))), 300.0 - 2.0),
    ):
        measure = jax.jit(partial(measure_phase, config, LAYOUT, rules))
        found = measure(state.actor, state.actor, state, model, buffer, jax.random.key(1))
        assert float(found["agent/value_bias"]) == pytest.approx(expected, rel=1e-4)
    assert return_steps(0.0) == 1
    assert return_steps(0.9999) == 1000


@pytest.mark.slow
def test_a_model_that_diverges_in_long_rollouts_does_not_end_a_phase():
    agent, run = small_phase()
    grows = linear_model(targets=Normaliser(jnp.zeros(3), jnp.asarray([1.0, 1e3, 1e3])))
    _, metrics = run(agent, 1, model=grows)
    assert not np.isfinite(metrics["agent/value_bias"])
    assert np.isfinite(metrics["agent/action_change"])


@pytest.mark.slow
def test_the_bias_counts_the_entropy_of_all_actions_but_the_first():
    config = small_config(SIZES | {"agent.gamma": 0.5})
    model, state = linear_model(), agent_state(alpha=0.5)
    blank = Normaliser(jnp.zeros(2), jnp.ones(2))
    flat = (Layer(jnp.zeros((2, 2)), jnp.asarray([0.0, -20.0])),)  # almost no deviation: a large log-probability
    state = replace(state, actor=NormalisedActor(flat, blank))
    buffer = append(blank_buffer(ROWS, 2, capacity=ROWS), OBS, jnp.asarray(ROWS, jnp.int32))
    ends = {1: 1.0, 0: 0.0}
    found = {}
    for ended, probability in ends.items():
        rules = StepRules(
            lambda model, obs, action, next_obs, p=probability: jnp.full(len(obs), p),
            lambda obs, action, next_obs: jnp.zeros(len(obs)),
        )
        measure = jax.jit(partial(measure_phase, config, LAYOUT, rules))
        found[ended] = float(
            measure(state.actor, state.actor, state, model, buffer, jax.random.key(1))["agent/value_bias"]
        )
    log_prob = float(jnp.log(1e5)) - 0.5 * float(jnp.log(2.0 * jnp.pi))  # at least; the noise takes off a little
    entropies = 0.5 * sum(0.5**t for t in range(1, return_steps(0.5)))
    assert found[0] - found[1] == pytest.approx(entropies * log_prob, rel=0.1)
