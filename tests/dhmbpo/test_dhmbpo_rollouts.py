"""Training rollouts and their returns by hand, and the states that distribution rollouts keep."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import (
    GAMMA,
    LAYOUT,
    MEMBERS,
    NEVER,
    ROWS,
    STEPS,
    agent_state,
    endless_rollout,
    linear_model,
    noise_for,
    small_config,
)

from pdml.dhmbpo.learner import empty_state_buffer
from pdml.dhmbpo.networks import freeze
from pdml.dhmbpo.rollouts import (
    StepRules,
    TrainingRollout,
    actor_head,
    distribution_rollouts,
    soft_return,
    training_rollout,
)
from pdml.dhmbpo.updates import actor_loss, choose_critics, critic_target, scaled_values


def by_hand(state, model, obs, noise):
    """Follow the policy step by step, in numpy, where nothing terminates and nothing is noisy."""
    (layer,) = model.network.members
    w, b, s = np.asarray(layer.w[0], np.float64), np.asarray(layer.b[0], np.float64), np.asarray(obs, np.float64)
    rewards, logs = [], []
    for t in range(STEPS + 1):
        mean, log_std = (np.asarray(x, np.float64) for x in actor_head(state.actor, jnp.asarray(s, jnp.float32)))
        eps = np.asarray(noise.action[t], np.float64)
        u = mean + np.exp(log_std) * eps
        logs.append((-0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2))[:, 0])
        a = np.tanh(u)
        if t < STEPS:
            y = np.concatenate([s, a], axis=1) @ w + b
            rewards.append(y[:, 0])
            s = s + y[:, 1:]
    return np.array(rewards), np.array(logs), s, a


@pytest.mark.slow
def test_the_return_of_a_training_rollout_is_the_one_by_hand():
    state, model = agent_state(alpha=0.3), linear_model()
    obs, noise = jax.random.normal(jax.random.key(9), (ROWS, 2)), noise_for(STEPS + 1)
    rollout = endless_rollout(state.actor, model, obs, noise)
    rewards, logs, last_obs, last_action = by_hand(state, model, obs, noise)
    np.testing.assert_allclose(rollout.reward, rewards, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rollout.last_obs, last_obs, rtol=1e-4, atol=1e-5)
    x = jnp.asarray(last_obs, jnp.float32), jnp.asarray(last_action, jnp.float32)
    pair = choose_critics(state.critics, jnp.asarray([2, 0]))
    least = np.clip(np.asarray(scaled_values(state.critics, state, *x))[[0, 2]].min(axis=0), -5.0, 9.0)
    discount = GAMMA ** np.arange(STEPS + 1)
    expected = (discount[:STEPS, None] * rewards).sum(axis=0) - 0.3 * (discount[1:, None] * logs[1:]).sum(axis=0)
    expected += discount[STEPS] * least
    np.testing.assert_allclose(critic_target(state, pair, rollout, GAMMA), expected, rtol=1e-3)
    every = np.asarray(scaled_values(state.critics, state, *x)).mean(axis=0)
    objective = (discount[:, None] * (np.concatenate([rewards, every[None]]) - 0.3 * logs)).sum(axis=0)
    np.testing.assert_allclose(float(actor_loss(state, rollout, GAMMA)), -objective.mean(), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_gradient_through_the_model_is_that_of_finite_differences(alpha, frozen):
    state, model = agent_state(alpha), linear_model(noise=0.2)
    if frozen:
        model = replace(model, network=replace(model.network, members=freeze(model.network.members)))
    obs, noise = jax.random.normal(jax.random.key(9), (ROWS, 2)), noise_for(STEPS + 1)

    @jax.jit
    def loss(layers):
        moved = replace(state.actor, layers=layers)
        return actor_loss(state, training_rollout(moved, model, NEVER, obs, noise), GAMMA)

    grads = jax.grad(loss)(state.actor.layers)
    leaves, structure = jax.tree.flatten(state.actor.layers)
    step = 3e-3
    for number in range(4):
        keys = jax.random.split(jax.random.key(number), len(leaves))
        way = structure.unflatten([jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)])
        ahead, back = (
            float(loss(jax.tree.map(lambda p, d, s=s: p + s * d, state.actor.layers, way))) for s in (step, -step)
        )
        along = sum(float((g * d).sum()) for g, d in zip(jax.tree.leaves(grads), jax.tree.leaves(way), strict=True))
        assert abs(along) > 0.01
        assert (ahead - back) / (2 * step) == pytest.approx(along, rel=2e-2, abs=1e-3)


def test_a_terminated_row_contributes_its_last_reward_and_nothing_after():
    """Row 0 ends at its second step: two rewards count. Row 1 ends at none."""
    alive = jnp.asarray([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    reward = jnp.asarray([[1.0, 1.0], [2.0, 2.0], [jnp.nan, 4.0]])
    log_prob = jnp.asarray([[0.5, 0.5], [0.25, 0.25], [jnp.inf, 0.125], [jnp.nan, 1.0]])
    rollout = TrainingRollout(reward, log_prob, alive, jnp.zeros((2, 1)), jnp.zeros((2, 2)), jnp.zeros((2, 1)))
    found = np.asarray(soft_return(rollout, jnp.asarray([jnp.nan, 10.0]), jnp.asarray(2.0), 0.5, first_entropy=0.0))
    assert found[0] == pytest.approx(1.0 + 0.5 * (2.0 - 0.5))
    assert found[1] == pytest.approx(1.0 + 0.5 * 1.5 + 0.25 * 3.75 + 0.125 * 8.0)
    finite = rollout._replace(reward=jnp.nan_to_num(reward), log_prob=jnp.nan_to_num(log_prob, posinf=9.0))

    def total(rollout, last):
        return soft_return(rollout, last, jnp.asarray(2.0), 0.5, first_entropy=1.0).sum()

    slopes, last = jax.grad(total, argnums=(0, 1))(finite, jnp.asarray([7.0, 10.0]))
    np.testing.assert_array_equal(slopes.reward, [[1.0, 1.0], [0.5, 0.5], [0.0, 0.25]])
    np.testing.assert_array_equal(slopes.log_prob, [[-2.0, -2.0], [-1.0, -1.0], [0.0, -0.5], [0.0, -0.25]])
    np.testing.assert_array_equal(last, [0.0, 0.125])


def test_a_rollout_continues_after_a_termination_but_is_not_alive():
    model, state = linear_model(), agent_state()
    obs = jnp.asarray([[0.0, 0.0], [5.0, 0.0]] * (ROWS // 2))
    ends = StepRules(lambda model, obs, action, next_obs: (obs[:, 0] > 3.0).astype(jnp.float32))
    rollout = training_rollout(state.actor, model, ends, obs, noise_for(4))
    assert np.asarray(rollout.alive)[:, 1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert np.asarray(rollout.alive)[:, 0].tolist() == [1.0, 1.0, 1.0, 1.0]


def roll_out(termination, starts, wanted, seed=0):
    sizes = {"batch_size": ROWS, "dynamics.num_members": MEMBERS, "double.far": 3, "double.retain": 2}
    config = small_config(sizes)
    rollouts = jax.jit(distribution_rollouts(config, LAYOUT, StepRules(termination)))
    buffer = empty_state_buffer(config, LAYOUT, 0)
    return rollouts(agent_state().actor, linear_model(), buffer, starts, np.int32(wanted), jax.random.key(seed))


@pytest.mark.slow
def test_distribution_rollouts_keep_their_start_and_all_states_before_a_termination():
    starts = jnp.asarray(np.arange(4 * ROWS * 2).reshape(4, ROWS, 2) / 100.0, jnp.float32)
    buffer, counts = roll_out(NEVER.termination, starts, wanted=3 * ROWS)
    assert (int(counts.rows), int(counts.terminated), int(counts.batches)) == (4 * ROWS, 0, 1)
    assert int(buffer.size) == 4 * ROWS
    np.testing.assert_allclose(buffer.rows[:ROWS], starts[0])

    def at_once(model, obs, action, next_obs):
        return jnp.ones(len(obs))

    buffer, counts = roll_out(at_once, starts, wanted=3 * ROWS)
    assert (int(counts.rows), int(counts.terminated), int(counts.batches)) == (3 * ROWS, 3 * ROWS, 3)
    np.testing.assert_allclose(buffer.rows[: 3 * ROWS], starts[:3].reshape(-1, 2))  # the starts, and nothing after
    _, counts = roll_out(at_once, starts[:2], wanted=3 * ROWS)
    assert int(counts.batches) == 2  # no more starts
