"""Double-horizon learning: returns and gradients by hand, the counts of its loop, its model's fit, and whole runs."""

import csv
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats
from tiny import TINY, TINY_DOUBLE, everything, go, start, tiny_of

from pdml.cli import main
from pdml.config.schema import change, defaults, get
from pdml.config.validate import check, read_config
from pdml.core.errors import UserError
from pdml.core.nets import Layer, silu
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.dhmbpo import learner
from pdml.dhmbpo.learner import (
    DoubleState,
    Opts,
    Updates,
    actor_loss,
    critic_target,
    double_agent,
    empty,
    follow_bounds,
    ring_rows,
    some,
    turns,
    updates,
    values,
)
from pdml.dhmbpo.model import (
    ADAM,
    Draws,
    FitRows,
    SmoothModel,
    SmoothNetwork,
    chance,
    imagined_step,
    judge,
    likelihood_loss,
    member_means,
    prepare,
    slopes,
    standardised,
)
from pdml.dhmbpo.networks import (
    Dropout,
    dropped_silu,
    freeze,
    init_he,
    init_orthogonal,
    kept_units,
    layer_norm,
    smooth_mlp,
)
from pdml.dhmbpo.rollouts import Knowledge, Near, SmoothActor, draw, far_rollout, head, near_rollout, soft_return
from pdml.envs.gym import begin
from pdml.envs.termination_fns import RULES, by_rule
from pdml.models.ensemble import Normaliser
from pdml.runs.session import run, spaces_of
from pdml.training.loop import add_prior, init, jitted, train
from pdml.training.methods import RECIPES
from pdml.weighting.policy_history import flatten, form_of, restored

LAYOUT = Layout(2, 1)
NEVER = Knowledge(lambda model, obs, action, next_obs: jnp.zeros(len(obs)))
GAMMA = 0.9
STEPS, ROWS, MEMBERS = 5, 8, 2


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def linear_model(members=MEMBERS, noise=0.0, **changes):
    """A model without hidden layers: reward and change of state are linear in state and action."""
    w = jnp.asarray([[0.3, -0.1, 0.2], [0.5, 0.2, -0.3], [0.1, 0.4, 0.6]])
    layer = Layer(w, jnp.asarray([0.2, 0.05, -0.1]))
    log_std = jnp.full((members, 3), jnp.log(noise) if noise else -40.0)
    plain = {
        "network": SmoothNetwork(stack([(layer,)] * members), log_std),
        "normaliser": Normaliser(jnp.zeros(2), jnp.ones(2)),
        "targets": Normaliser(jnp.zeros(3), jnp.ones(3)),
    }
    return SmoothModel(**(plain | changes))


def constant_model(outputs, log_std):
    """A model whose members each say one thing always."""
    members = stack([(Layer(jnp.zeros((3, 3)), jnp.asarray(output, jnp.float32)),) for output in outputs])
    return linear_model(network=SmoothNetwork(members, jnp.asarray(log_std, jnp.float32)))


def agent_state(alpha=0.0, critics=3, seed=0):
    keys = jax.random.split(jax.random.key(seed), critics + 1)
    networks = stack([init_he(k, (3, 16, 1)) for k in keys[1:]])
    normaliser = Normaliser(jnp.asarray([0.1, -0.2]), jnp.asarray([2.0, 0.5]))
    return DoubleState(
        actor=SmoothActor(init_orthogonal(keys[0], (2, 16, 2)), normaliser),
        critics=networks,
        target_critics=networks,
        log_alpha=jnp.log(jnp.asarray(alpha or 1e-30)),
        bounds=jnp.asarray([-5.0, 9.0]),
        bounded=jnp.ones(()),
    )


def drawn_for(steps, rows=ROWS, members=MEMBERS, seed=3):
    config = change(defaults("Hopper-v5", "dhmbpo"), {"batch_size": rows, "dynamics.num_members": members})
    return draw(config, LAYOUT, steps, jax.random.key(seed))


def at(drawn, t):
    return jax.tree.map(lambda leaf: leaf[t], drawn)


def by_hand(state, model, obs, drawn):
    """Follow the policy step by step, in numpy, where nothing ends and nothing is noisy."""
    (layer,) = model.network.members
    w, b, s = np.asarray(layer.w[0], np.float64), np.asarray(layer.b[0], np.float64), np.asarray(obs, np.float64)
    rewards, logs = [], []
    for t in range(STEPS + 1):
        mean, log_std = (np.asarray(x, np.float64) for x in head(state.actor, jnp.asarray(s, jnp.float32)))
        noise = np.asarray(drawn.action[t], np.float64)
        u = mean + np.exp(log_std) * noise
        logs.append((-0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(u) ** 2))[:, 0])
        a = np.tanh(u)
        if t < STEPS:
            y = np.concatenate([s, a], axis=1) @ w + b
            rewards.append(y[:, 0])
            s = s + y[:, 1:]
    return np.array(rewards), np.array(logs), s, a


def test_the_return_of_a_near_rollout_is_the_one_by_hand():
    state, model = agent_state(alpha=0.3), linear_model()
    obs, drawn = jax.random.normal(jax.random.key(9), (ROWS, 2)), drawn_for(STEPS + 1)
    near = near_rollout(state.actor, model, NEVER, obs, drawn)
    rewards, logs, last_obs, last_action = by_hand(state, model, obs, drawn)
    np.testing.assert_allclose(near.reward, rewards, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(near.last_obs, last_obs, rtol=1e-4, atol=1e-5)
    x = jnp.asarray(last_obs, jnp.float32), jnp.asarray(last_action, jnp.float32)
    pair = some(state.critics, jnp.asarray([2, 0]))
    least = np.clip(np.asarray(values(state.critics, state, *x))[[0, 2]].min(axis=0), -5.0, 9.0)
    discount = GAMMA ** np.arange(STEPS + 1)
    expected = (discount[:STEPS, None] * rewards).sum(axis=0) - 0.3 * (discount[1:, None] * logs[1:]).sum(axis=0)
    expected += discount[STEPS] * least
    np.testing.assert_allclose(critic_target(state, pair, near, GAMMA), expected, rtol=1e-3)
    every = np.asarray(values(state.critics, state, *x)).mean(axis=0)
    objective = (discount[:, None] * (np.concatenate([rewards, every[None]]) - 0.3 * logs)).sum(axis=0)
    np.testing.assert_allclose(float(actor_loss(state, near, GAMMA)), -objective.mean(), rtol=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.1])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_gradient_through_the_model_is_that_of_finite_differences(alpha, frozen):
    state, model = agent_state(alpha), linear_model(noise=0.2)
    if frozen:
        model = replace(model, network=replace(model.network, members=freeze(model.network.members)))
    obs, drawn = jax.random.normal(jax.random.key(9), (ROWS, 2)), drawn_for(STEPS + 1)

    @jax.jit
    def loss(layers):
        moved = replace(state.actor, layers=layers)
        return actor_loss(state, near_rollout(moved, model, NEVER, obs, drawn), GAMMA)

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


def test_an_update_moves_the_actor_by_the_gradient_of_its_loss_with_the_critics_already_moved():
    """Adam's first step is the sign of the gradient, times the learning rate."""
    config = change(tiny_of("dhmbpo"), {"batch_size": ROWS, "double.near": STEPS, "agent.num_critics": 3})
    state, model, rate = agent_state(alpha=0.1), linear_model(noise=0.2), config.agent.learning_rate
    obs, draws = jax.random.normal(jax.random.key(9), (ROWS, 2)), jax.random.key(5)
    opts = Opts(*(optax.adam(rate).init(part) for part in (state.actor.layers, state.critics, state.log_alpha)))
    after, _, metrics = updates(config, LAYOUT, NEVER).everything(state, opts, model, obs, draws)
    drawn = draw(config, LAYOUT, STEPS + 1, jax.random.split(draws)[0])

    def loss(layers):
        near = near_rollout(replace(state.actor, layers=layers), model, NEVER, obs, drawn)
        moved = replace(after, log_alpha=state.log_alpha)  # critics and bounds after their step
        return actor_loss(moved, near, config.agent.gamma)

    value, grads = jax.value_and_grad(loss)(state.actor.layers)
    assert float(metrics["agent/actor_loss"]) == pytest.approx(float(value), rel=1e-4)
    for old, new, grad in zip(
        *(jax.tree.leaves(t) for t in (state.actor.layers, after.actor.layers, grads)), strict=True
    ):
        large = np.abs(grad) > 1e-4
        assert large.any()
        np.testing.assert_allclose((new - old)[large], -rate * np.sign(grad)[large], rtol=0.02)
    slope = float(jnp.exp(state.log_alpha)) * (float(metrics["agent/entropy"]) - config.agent.target_entropy)
    assert float(after.log_alpha - state.log_alpha) == pytest.approx(-rate * np.sign(slope), rel=0.02)
    fixed = updates(change(config, {"agent.temperature": 0.1}), LAYOUT, NEVER).everything(
        state, opts, model, obs, draws
    )
    assert float(fixed[0].log_alpha) == float(state.log_alpha)


def test_the_critics_alone_move_towards_the_bounded_target_and_nothing_else_does():
    config = change(
        tiny_of("dhmbpo"),
        {
            "batch_size": ROWS,
            "double.near": STEPS,
            "double.critic_dropout": 0.0,
            "agent.num_critics": 3,
            "agent.tau": 0.1,
        },
    )
    state, model, rate = agent_state(alpha=0.1), linear_model(noise=0.2), config.agent.learning_rate
    state = replace(state, target_critics=jax.tree.map(lambda leaf: 0.5 * leaf, state.critics))
    obs, draws = jax.random.normal(jax.random.key(9), (ROWS, 2)), jax.random.key(5)
    opts = Opts(*(optax.adam(rate).init(part) for part in (state.actor.layers, state.critics, state.log_alpha)))
    after, _, metrics = updates(config, LAYOUT, NEVER).critics(state, opts, model, obs, draws)
    assert after.actor is state.actor
    assert after.log_alpha is state.log_alpha
    step_key, critic_key = jax.random.split(draws)
    near = near_rollout(state.actor, model, NEVER, obs, draw(config, LAYOUT, STEPS + 1, step_key))
    bounded = replace(state, bounds=after.bounds)
    chosen = jax.random.permutation(jax.random.split(critic_key)[0], 3)[:2]
    target = critic_target(bounded, some(state.target_critics, chosen), near, config.agent.gamma)

    def loss(critics):
        return jnp.square(values(critics, bounded, obs, near.action) - target[None]).mean(axis=1).sum()

    value, grads = jax.value_and_grad(loss)(state.critics)
    assert float(metrics["agent/critic_loss"]) == pytest.approx(float(value), rel=1e-4)
    trees = (state.critics, after.critics, grads, state.target_critics, after.target_critics)
    for old, new, grad, target_old, target_new in zip(*map(jax.tree.leaves, trees), strict=True):
        large = np.abs(grad) > 1e-3
        assert large.reshape(3, -1).any(axis=1).all()  # each critic learns
        np.testing.assert_allclose((new - old)[large], -rate * np.sign(grad)[large], rtol=0.02)
        np.testing.assert_allclose(target_new, target_old + 0.1 * (new - target_old), rtol=1e-5, atol=1e-6)


def test_values_at_the_end_of_a_rollout_are_held_within_the_bounds():
    state, model = agent_state(), linear_model()
    obs, drawn = 3.0 * jax.random.normal(jax.random.key(9), (ROWS, 2)), drawn_for(STEPS + 1)
    near = near_rollout(state.actor, model, NEVER, obs, drawn)
    found = np.asarray(values(state.critics, state, near.last_obs, near.last_action)).min(axis=0)
    assert ((found < -5.0) | (found > 9.0)).any()
    rewards = (GAMMA ** np.arange(STEPS)[:, None] * np.asarray(near.reward)).sum(axis=0)
    expected = rewards + GAMMA**STEPS * np.clip(found, -5.0, 9.0)
    np.testing.assert_allclose(critic_target(state, state.critics, near, GAMMA), expected, rtol=1e-4, atol=1e-4)


def test_a_terminated_row_contributes_its_last_reward_and_nothing_after():
    """Row 0 ends at its second step: two rewards count. Row 1 ends at none."""
    alive = jnp.asarray([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    reward = jnp.asarray([[1.0, 1.0], [2.0, 2.0], [jnp.nan, 4.0]])
    log_prob = jnp.asarray([[0.5, 0.5], [0.25, 0.25], [jnp.inf, 0.125], [jnp.nan, 1.0]])
    near = Near(reward, log_prob, alive, jnp.zeros((2, 1)), jnp.zeros((2, 2)), jnp.zeros((2, 1)))
    found = np.asarray(soft_return(near, jnp.asarray([jnp.nan, 10.0]), jnp.asarray(2.0), 0.5, first=0.0))
    assert found[0] == pytest.approx(1.0 + 0.5 * (2.0 - 0.5))
    assert found[1] == pytest.approx(1.0 + 0.5 * 1.5 + 0.25 * 3.75 + 0.125 * 8.0)
    finite = near._replace(reward=jnp.nan_to_num(reward), log_prob=jnp.nan_to_num(log_prob, posinf=9.0))

    def total(near, last):
        return soft_return(near, last, jnp.asarray(2.0), 0.5, first=1.0).sum()

    slopes, last = jax.grad(total, argnums=(0, 1))(finite, jnp.asarray([7.0, 10.0]))
    np.testing.assert_array_equal(slopes.reward, [[1.0, 1.0], [0.5, 0.5], [0.0, 0.25]])
    np.testing.assert_array_equal(slopes.log_prob, [[-2.0, -2.0], [-1.0, -1.0], [0.0, -0.5], [0.0, -0.25]])
    np.testing.assert_array_equal(last, [0.0, 0.125])


def test_a_rollout_goes_on_behind_the_end_of_its_episode_but_is_not_alive():
    model, state = linear_model(), agent_state()
    obs = jnp.asarray([[0.0, 0.0], [5.0, 0.0]] * (ROWS // 2))
    ends = Knowledge(lambda model, obs, action, next_obs: (obs[:, 0] > 3.0).astype(jnp.float32))
    near = near_rollout(state.actor, model, ends, obs, drawn_for(4))
    assert np.asarray(near.alive)[:, 1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert np.asarray(near.alive)[:, 0].tolist() == [1.0, 1.0, 1.0, 1.0]


def test_the_bounds_of_values_are_copied_first_and_follow_slowly_then():
    config = defaults("Hopper-v5", "dhmbpo")
    reward = jnp.linspace(0.0, 1.0, 500).reshape(5, 100)
    near = Near(
        reward, jnp.zeros((6, 100)), jnp.ones((6, 100)), jnp.zeros((100, 1)), jnp.zeros((100, 2)), jnp.zeros((100, 1))
    )
    state = follow_bounds(replace(agent_state(), bounded=jnp.zeros(())), near, config)
    np.testing.assert_allclose(state.bounds, [0.01 * 200, 0.99 * 200], rtol=1e-3)
    again = follow_bounds(state, near._replace(reward=reward + 1.0), config)
    np.testing.assert_allclose(again.bounds - state.bounds, [3e-4 * 200] * 2, rtol=1e-2)


def test_each_network_steps_as_many_rows_as_the_others_at_every_step():
    model = constant_model([[k, 0.0, 0.0] for k in range(8)], np.full((8, 3), -40.0))
    drawn, seen = drawn_for(6, rows=256, members=8), set()
    for t in range(6):
        reward, _ = imagined_step(model, jnp.zeros((256, 2)), jnp.zeros((256, 1)), at(drawn.model, t))
        assert np.bincount(np.asarray(reward).astype(int), minlength=8).tolist() == [32] * 8
        seen.add(np.asarray(reward).tobytes())
    assert len(seen) == 6  # dealt anew


def test_noise_is_that_of_the_network_whose_mean_it_is_added_to():
    stds = (1.0, 0.1, 0.01, 0.001)
    model = constant_model([[k, 0.0, 0.0] for k in range(4)], np.log([[std] * 3 for std in stds]))
    drawn = drawn_for(1, rows=4000, members=4)
    reward, next_obs = imagined_step(model, jnp.zeros((4000, 2)), jnp.zeros((4000, 1)), at(drawn.model, 0))
    for k, std in enumerate(stds):
        assert np.asarray(next_obs)[np.asarray(reward) == k].std() == pytest.approx(std, rel=0.1)


def test_means_are_in_the_units_of_reward_and_state():
    targets = Normaliser(jnp.asarray([5.0, 1.0, -1.0]), jnp.asarray([10.0, 0.1, 0.2]))
    normaliser = Normaliser(jnp.asarray([1.0, 2.0]), jnp.asarray([3.0, 4.0]))
    model = linear_model(targets=targets, normaliser=normaliser)
    obs, action = np.array([[0.7, -0.4]] * 2), np.array([[0.25]] * 2)
    (layer,) = model.network.members
    x = np.concatenate([(obs - [1.0, 2.0]) / [3.0, 4.0], action], axis=1)
    expected = np.asarray(targets.mean) + np.asarray(targets.scale) * (
        x @ np.asarray(layer.w[0]) + np.asarray(layer.b[0])
    )
    given = jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32)
    np.testing.assert_allclose(member_means(model, *given), np.stack([expected] * 2), rtol=1e-5)
    reward, next_obs = imagined_step(model, *given, Draws(jnp.asarray([1, 0]), jnp.zeros((2, 2))))
    np.testing.assert_allclose(reward, expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(next_obs, obs + expected[:, 1:], rtol=1e-5)


def test_updates_and_far_rollouts_are_counted_as_published():
    config = defaults("Hopper-v5", "dhmbpo")
    for owed, expected in ((5000, 5000), (1000, 1000)):
        found = turns(config, owed)
        assert sum(count for alone, count in found if alone) == 250
        assert sum(count for alone, count in found if not alone) == expected
        assert {count for alone, count in found if not alone} == {20}  # a far rollout before each
    assert sum(count for alone, count in turns(change(config, {"updates_per_step": 2}), 1000) if not alone) == 2000
    assert all(not alone for alone, _ in turns(change(config, {"double.critic_share": 0.0}), 1000))
    assert ring_rows(config) == 51_200


def test_lessons_make_the_updates_and_far_rollouts_that_they_plan(monkeypatch):
    made = Counter()

    def counted(name, function):
        def call(*args):
            jax.debug.callback(lambda: made.update([name]))
            return function(*args)

        return call

    def counting_updates(*args):
        return Updates(**{name: counted(name, update) for name, update in updates(*args)._asdict().items()})

    monkeypatch.setattr(learner, "updates", counting_updates)
    monkeypatch.setattr(learner, "far_rollout", lambda *args: counted("far", far_rollout(*args)))
    config = change(tiny_of("dhmbpo"), {"double.refresh": 7, "double.critic_share": 0.25, "steps": 80})
    layout = spaces_of(config.env).layout
    wired = jitted(config, layout, RECIPES["dhmbpo"](config, layout, by_rule(RULES["InvertedPendulum"])))
    state = go(config, wired)
    jax.effects_barrier()
    assert config.updates_per_step == 2
    assert made == {"critics": 2 * 5, "everything": 120 + 40, "far": (1 + 18) + (1 + 6)}  # the last turns are short
    assert 0 < int(state.imagined.size) <= len(state.imagined.rows) == ring_rows(config)


def test_the_first_lesson_makes_up_for_the_warm_up_and_for_rows_from_before():
    config, owed = tiny_of("dhmbpo"), []
    env, layout, parts = start(config)

    def teach(agent, model, ring, starts, step, count):
        owed.append((step, count))
        return agent, ring, {}

    parts = parts._replace(recipe=parts.recipe._replace(lesson=parts.recipe.lesson._replace(teach=teach)))
    train(init(config, layout, parts, begin(env, 0, 0)), env, parts, config, Stopwatch())
    assert owed == [(60, 60), *((step, 20) for step in range(80, 161, 20))]
    owed.clear()
    state = init(config, layout, parts, begin(env, 0, 0))
    add_prior(state, np.random.default_rng(0).random((30, layout.width), np.float32))
    train(state, env, parts, change(config, {"warmup_steps": 10, "steps": 31}), Stopwatch())
    assert owed == [(10, 40), (30, 20)]


def test_a_run_has_learned_from_its_last_block_and_reports_the_warm_up(tmp_path):
    config = change(tiny_of("dhmbpo"), {"steps": 90, "eval_every": 20})
    state = run(config, tmp_path, 1, "test")
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["60", "80", "90"]
    assert float(rows[0]["agent/value"]) != float(rows[1]["agent/value"])
    assert rows[1]["agent/value"] == rows[2]["agent/value"]  # nothing is learned from a block that has not ended
    with (tmp_path / "evaluations.csv").open() as file:
        assert sorted({int(row["step"]) for row in csv.DictReader(file)}) == [60, 80]
    assert len(state.imagined.rows) == ring_rows(config)
    assert sorted(path.name for path in (tmp_path / "blocks").iterdir()) == [
        "step_00000060.safetensors",
        "step_00000080.safetensors",
    ]


@pytest.mark.slow
def test_states_of_the_last_model_are_dropped_on_request():
    long = {"double.retain": 50, "steps": 81}
    kept, cleared = (go(change(tiny_of("dhmbpo"), long | {"double.clear": clear})) for clear in (False, True))
    last = cleared.log.metrics["imagined/rows"]
    assert int(cleared.imagined.size) == last
    assert int(kept.imagined.size) > last


@pytest.mark.slow
def test_ends_may_be_learned(tmp_path):
    run(change(tiny_of("dhmbpo"), {"termination": "learned", "steps": 81}), tmp_path, 1, "test")
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["ending/terminal_rows"]) > 0 for row in rows)
    assert sum(float(row["imagined/terminated"]) for row in rows) > 0


def far_of(config, ending, starts, wanted, seed=0):
    known = Knowledge(ending)
    far = jax.jit(far_rollout(config, LAYOUT, known))
    return far(
        agent_state().actor, linear_model(), empty(config, LAYOUT), starts, np.int32(wanted), jax.random.key(seed)
    )


def small(**more):
    sizes = {"batch_size": ROWS, "dynamics.num_members": MEMBERS, "double.far": 3, "double.retain": 2}
    return change(
        defaults("Hopper-v5", "dhmbpo"), sizes | {name.replace("__", "."): value for name, value in more.items()}
    )


def test_far_rollouts_keep_their_start_and_all_states_before_an_end():
    starts = jnp.asarray(np.arange(4 * ROWS * 2).reshape(4, ROWS, 2) / 100.0, jnp.float32)
    ring, counts = far_of(small(), NEVER.ending, starts, wanted=3 * ROWS)
    assert (int(counts.rows), int(counts.terminated), int(counts.batches)) == (4 * ROWS, 0, 1)
    assert int(ring.size) == 4 * ROWS
    np.testing.assert_allclose(ring.rows[:ROWS], starts[0])

    def at_once(model, obs, action, next_obs):
        return jnp.ones(len(obs))

    ring, counts = far_of(small(), at_once, starts, wanted=3 * ROWS)
    assert (int(counts.rows), int(counts.terminated), int(counts.batches)) == (3 * ROWS, 3 * ROWS, 3)
    np.testing.assert_allclose(ring.rows[: 3 * ROWS], starts[:3].reshape(-1, 2))  # the starts, and nothing after
    _, counts = far_of(small(), at_once, starts[:2], wanted=3 * ROWS)
    assert int(counts.batches) == 2  # no more starts


def rows_of(count, seed=0, noise=0.01, number=None):
    """Steps of a linear system in episodes of ten steps, each beginning far away."""
    drawn = np.random.default_rng(seed)
    obs = np.zeros((count, 2), np.float32)
    action = drawn.uniform(-1, 1, (count, 1)).astype(np.float32)
    change_ = np.concatenate([action, 0.1 * action], axis=1) + noise * drawn.standard_normal((count, 2))
    state = np.zeros(2)
    next_obs = np.zeros_like(obs)
    for t in range(count):
        state = 50.0 * drawn.standard_normal(2) if t % 10 == 0 else state
        obs[t] = state
        next_obs[t] = state = (state + change_[t]).astype(np.float32)
    reward = 3.0 + 2.0 * action
    rows = np.concatenate([obs, action, reward, next_obs, np.zeros((count, 1))], axis=1).astype(np.float32)
    return RealRows(rows, np.zeros(count, np.int32), np.arange(count) if number is None else number, np.array([count]))


def fit_config(**more):
    sizes = {
        "dynamics.num_members": 2,
        "dynamics.hidden_sizes": (16,),
        "dynamics.weight_decay": (0.0, 0.0),
        "dynamics.batch_size": 64,
        "dynamics.max_epochs": 30,
        "dynamics.patience": 10,
        "double.dropout": (0.0,),
        "double.first_factor": 1,
        "double.epoch_batches": 3,
    }
    return change(
        defaults("Hopper-v5", "dhmbpo"), sizes | {name.replace("__", "."): value for name, value in more.items()}
    )


def test_scales_are_those_of_steps_without_the_jumps_between_episodes():
    real = rows_of(500)
    data = prepare(real, np.ones(500) / 500, fit_config(), LAYOUT, 500)
    changes = real.rows[:, 4:6] - real.rows[:, :2]
    np.testing.assert_allclose(data.targets.scale[1:], changes.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(data.targets.mean[0], real.rows[:, 3].mean(), rtol=1e-4)
    jumps = np.diff(real.rows[:, :2], axis=0)  # what the published code takes for changes
    assert (jumps.std(axis=0) > 10 * np.asarray(data.targets.scale[1:])).all()
    np.testing.assert_allclose(data.normaliser.scale, real.rows[:, :2].std(axis=0), rtol=1e-4)


def test_rows_are_held_out_once_and_for_all_and_count_the_same_for_good():
    early, late = (prepare(rows_of(n), np.ones(n), fit_config(), LAYOUT, n) for n in (300, 600))
    assert [row for row in late.holdout if row < 300] == list(early.holdout)
    assert len(late.holdout) / 600 == pytest.approx(0.2, abs=0.06)
    np.testing.assert_array_equal(late.rows.counted[:300], early.rows.counted[:300])
    counted = np.asarray(late.rows.counted[:600])
    assert counted.mean() == pytest.approx(1.0, abs=0.1)
    assert counted.var() == pytest.approx(1.0, abs=0.3)
    assert abs(np.corrcoef(counted.T)[0, 1]) < 0.1
    moved = rows_of(300)._replace(number=np.arange(300, 600))  # the older ones are no longer stored
    np.testing.assert_array_equal(
        prepare(moved, np.ones(300), fit_config(), LAYOUT, 600).rows.counted[:300], late.rows.counted[300:600]
    )


def test_minibatches_go_through_all_rows_or_follow_the_weights():
    real, config = rows_of(500), fit_config()
    data = prepare(real, np.full(500, 0.002), config, LAYOUT, 500)
    training = np.setdiff1d(np.arange(500), data.holdout)
    assert data.num_batches == 3
    drawn = np.concatenate([next(data.minibatches)[: data.num_batches].ravel() for _ in range(9)])
    counts = np.bincount(drawn, minlength=500)
    assert set(counts[training]) <= {len(drawn) // len(training), len(drawn) // len(training) + 1}
    assert not counts[data.holdout].any()
    weights = np.where(np.arange(500) < 250, 1.0, 3.0)
    data = prepare(real, weights, config, LAYOUT, 500)
    drawn = np.concatenate([next(data.minibatches)[: data.num_batches].ravel() for _ in range(60)])
    assert not np.isin(drawn, data.holdout).any()
    late = (training >= 250).mean()
    assert (drawn >= 250).mean() == pytest.approx(3 * late / (3 * late + 1 - late), abs=0.005)
    expected = len(drawn) * weights[training] / weights[training].sum()
    assert abs(np.bincount(drawn, minlength=500)[training] - expected).max() < 1.5 * len(drawn) / len(training)


def fitted(config, real, seed=0):
    dynamics = standardised(config, LAYOUT)
    before = dynamics.init(jax.random.key(seed))
    after, metrics = dynamics.fit(before, real, np.ones(len(real.rows)), None, len(real.rows))
    return dynamics, before, after, metrics


def test_a_fit_learns_each_entry_by_its_own_scale():
    real = rows_of(600)
    dynamics, before, after, metrics = fitted(fit_config(dynamics__max_epochs=150, dynamics__patience=60), real)
    y = np.concatenate([real.rows[:, 3:4], real.rows[:, 4:6] - real.rows[:, :2]], axis=1)

    def error(model):
        means = dynamics.means(model, jnp.asarray(real.rows[:, :2]), jnp.asarray(real.rows[:, 2:3]))
        return (np.square(np.asarray(means).mean(axis=0) - y).mean(axis=0) / y.var(axis=0)).max()

    assert error(after) < 0.1 < error(before)
    assert 0 < metrics["model/best_epoch"] <= metrics["model/epochs"]
    assert metrics["model/noise"] < 1.0


def test_a_fit_that_gains_nothing_for_certain_keeps_the_old_networks():
    config = fit_config(double__significance=1e-300)
    _, before, after, metrics = fitted(config, rows_of(300))
    assert metrics["model/best_epoch"] == 0.0
    assert metrics["model/epochs"] == 30.0
    for old, new in zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True):
        np.testing.assert_array_equal(old, new)
    assert not np.array_equal(before.targets.scale, after.targets.scale)


def test_a_fit_stops_when_nothing_is_gained_and_the_first_has_more_patience():
    noise = rows_of(300)
    noise.rows[:, 3:6] = np.random.default_rng(1).standard_normal((300, 3))
    noise.rows[:, 4:6] += noise.rows[:, :2]
    config = fit_config(dynamics__max_epochs=200, dynamics__patience=4, double__judge_every=2)
    assert fitted(config, noise)[3]["model/capped"] == 0.0
    first = change(config, {"double.first_factor": 3, "dynamics.max_epochs": 5, "dynamics.patience": 5})
    assert fitted(change(first, {"warmup_steps": 300}), rows_of(300))[3]["model/epochs"] == 15.0
    assert fitted(change(first, {"warmup_steps": 299}), rows_of(300))[3]["model/epochs"] == 5.0


def test_the_paired_test_is_that_of_the_textbook():
    drawn = np.random.default_rng(0)
    for count in (20, 999, 3000):
        best, found = drawn.standard_normal(count), drawn.standard_normal(count) - 0.03
        p = stats.ttest_rel(best, found, alternative="greater").pvalue
        assert chance(best, found) == pytest.approx(p, rel=1e-6 if count < 1000 else 0.01)
        assert chance(best, best) == 1.0
        assert chance(best, best - 0.5) < 1e-9


def test_the_loss_is_the_weighted_likelihood_by_hand():
    network = linear_model(noise=0.5).network
    drawn = np.random.default_rng(0)
    x, y = (jnp.asarray(drawn.standard_normal((4, 3)), jnp.float32) for _ in range(2))
    counted = jnp.asarray(drawn.exponential(size=(4, MEMBERS)), jnp.float32)
    rest = jax.random.key(0), x, y, jnp.zeros(()), ()
    mean = np.asarray(x) @ np.asarray(network.members[0].w[0]) + np.asarray(network.members[0].b[0])
    row = (0.5 * np.square(mean - y) / 0.25 + np.log(0.5)).sum(axis=1)
    for k in range(MEMBERS):
        found = likelihood_loss(jax.tree.map(lambda leaf, k=k: leaf[k], network), counted[:, k], *rest)
        assert float(found) == pytest.approx((np.asarray(counted)[:, k] * row).mean(), rel=1e-5)


def test_noise_on_rewards_and_dropout_enter_the_loss():
    network, count = linear_model(noise=0.5).network, 20_000
    member, counted, zeros = jax.tree.map(lambda leaf: leaf[0], network), jnp.ones(count), jnp.zeros((count, 3))
    plain, noisy = (
        float(likelihood_loss(member, counted, jax.random.key(0), zeros, zeros, jnp.asarray(noise), ()))
        for noise in (0.0, 0.3)
    )
    assert noisy - plain == pytest.approx(0.5 * 0.3**2 / 0.25, rel=0.05)
    deep, rows = SmoothNetwork(init_he(jax.random.key(0), (3, 8, 3)), member.log_std), zeros[:64]
    x = jax.random.normal(jax.random.key(1), (64, 3))
    one, other, without = (
        float(likelihood_loss(deep, counted[:64], jax.random.key(seed), x, rows, jnp.zeros(()), (rate,)))
        for rate, seed in ((0.5, 0), (0.5, 1), (0.0, 0))
    )
    assert len({one, other, without}) == 3


def test_members_that_are_alike_part_by_their_own_draws_alone():
    network = SmoothNetwork(stack([init_he(jax.random.key(0), (3, 8, 3))] * MEMBERS), jnp.zeros((MEMBERS, 3)))
    batch = FitRows(*(jax.random.normal(jax.random.key(k), (64, 3)) for k in (1, 2)), jnp.ones((64, MEMBERS)))
    for noise, rate, alike in ((0.0, 0.0, True), (0.3, 0.0, False), (0.0, 0.5, False)):
        found = slopes(network, batch, jnp.asarray(noise), (rate,), jax.random.key(3)).members[0].w
        assert np.array_equal(found[0], found[1]) == alike


def test_a_step_of_the_model_is_adams_and_the_decay_of_each_layer():
    config = fit_config(dynamics__weight_decay=(0.1, 0.3), double__noise_decay=0.2, double__reward_noise=0.0)
    dynamics = standardised(config, LAYOUT)
    before = dynamics.init(jax.random.key(0)).network
    before = replace(before, log_std=before.log_std + 0.5)
    drawn = np.random.default_rng(0)
    rows = FitRows(*(jnp.asarray(drawn.random((64, n)), jnp.float32) for n in (3, 3, 2)))
    chosen = np.tile(np.arange(64, dtype=np.int32), (3, 1))

    def total(network):
        parts = [jax.tree.map(lambda leaf, k=k: leaf[k], network) for k in range(MEMBERS)]
        rest = jax.random.key(1), rows.x, rows.y, jnp.zeros(()), (0.0,)
        return sum(likelihood_loss(part, rows.counted[:, k], *rest) for k, part in enumerate(parts))

    grads = jax.grad(total)(before)
    zero, draws = np.float32(0.0), jax.random.key(2)
    copies = jax.tree.map(jnp.array, before)
    after, _ = dynamics.jitted["train_epoch"](copies, ADAM.init(before), rows, chosen, np.int32(1), zero, draws)
    rate = config.dynamics.learning_rate
    parts = [(0.1, before.members[0], after.members[0], grads.members[0])]
    parts += [(0.3, before.members[1], after.members[1], grads.members[1])]
    parts += [(0.2, before.log_std, after.log_std, grads.log_std)]
    for decay, *trees in parts:
        for old, new, grad in zip(*map(jax.tree.leaves, trees), strict=True):
            expected = old - rate * (grad / (jnp.abs(grad) + 1e-8) + decay * old)
            np.testing.assert_allclose(new, expected, atol=2e-6)


def test_layer_norm_and_its_gradient_are_those_of_the_formula():
    def plain(x, eps):
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + eps)

    x, g = (jax.random.normal(jax.random.key(k), (2, 5, 16)) for k in (0, 1))
    for eps in (1.0, 0.01):
        (y, pull), (expected, pull_plain) = (jax.vjp(lambda x, f=f, eps=eps: f(x, eps), x) for f in (layer_norm, plain))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(pull(g)[0], pull_plain(g)[0], rtol=1e-4, atol=1e-5)
    same = layer_norm(jnp.full((1, 16), 300.0), 1e-5)  # rounding must not make a negative variance
    assert np.isfinite(same).all()


def test_dropout_leaves_its_share_out_and_passes_gradients_where_it_does_not():
    shape, rate, draws = (3, 200, 256), 0.05, jnp.uint32(7)
    kept = np.asarray(kept_units(shape, rate, draws))
    assert kept.mean() == pytest.approx(0.95, abs=0.003)
    assert abs(kept.mean(axis=(0, 1)) - 0.95).max() < 0.05  # no unit and no row is preferred
    assert abs(kept.mean(axis=2) - 0.95).max() < 0.09
    assert not np.array_equal(kept, kept_units(shape, rate, jnp.uint32(8)))
    rows = kept.reshape(600, 256) - 0.95
    assert abs(np.corrcoef(rows.T) - np.eye(256)).max() < 0.25
    x = jax.random.normal(jax.random.key(0), shape)
    y, pull = jax.vjp(lambda x: dropped_silu(x, rate, draws), x)
    factor = jnp.asarray(kept / 0.95, jnp.float32)
    expected, pull_plain = jax.vjp(lambda x: silu(x * factor), x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pull(jnp.ones(shape))[0], pull_plain(jnp.ones(shape))[0], rtol=1e-5, atol=1e-6)


def test_networks_in_one_are_the_networks_one_by_one_frozen_or_not():
    keys = jax.random.split(jax.random.key(0), 3)
    networks, eps = [init_he(k, (4, 16, 16, 2), bias=0.5) for k in keys], (1.0, 0.1)
    x = jax.random.normal(jax.random.key(1), (3, 6, 4))
    alone = jnp.stack([smooth_mlp(network, x[k], eps) for k, network in enumerate(networks)])
    for params in (stack(networks), freeze(stack(networks))):
        np.testing.assert_allclose(smooth_mlp(params, x, eps), alone, rtol=1e-5, atol=1e-5)
    slopes = [
        jax.grad(lambda x, p=p: smooth_mlp(p, x, eps).sum())(x) for p in (stack(networks), freeze(stack(networks)))
    ]
    np.testing.assert_allclose(*slopes, rtol=1e-4, atol=1e-5)
    dropped = smooth_mlp(stack(networks), x, eps, Dropout((0.5, 0.5), jnp.uint32(1)))
    assert not np.allclose(dropped, alone)


def layers_by_hand(layers, x, eps=None):
    """Layers in numpy: SiLU, and before each layer but the first a norm of the row, with its eps."""
    for i, layer in enumerate(layers):
        if i and eps is not None:
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + eps[i - 1])
        x = x @ np.asarray(layer.w, np.float64) + np.asarray(layer.b, np.float64)
        x = x / (1.0 + np.exp(-x)) if i < len(layers) - 1 else x
    return x


def member_of(networks, k):
    return jax.tree.map(lambda leaf: leaf[k], networks)


def test_networks_are_those_published():
    """The model's norms have eps 1, 0.1 and 0.01, the critics' 1e-5; the policy has none, and never less noise."""
    config, layout = defaults("Hopper-v5", "dhmbpo"), Layout(11, 3)
    drawn = np.random.default_rng(0)
    obs, action = drawn.standard_normal((6, 11)), drawn.uniform(-1, 1, (6, 3))
    x, inputs = np.concatenate([obs, action], axis=1), (jnp.asarray(obs, jnp.float32), jnp.asarray(action, jnp.float32))
    model = standardised(config, layout).init(jax.random.key(0))
    assert [layer.w.shape for layer in model.network.members] == [
        (8, 14, 256),
        (8, 256, 256),
        (8, 256, 256),
        (8, 256, 12),
    ]
    found = member_means(model, *inputs)
    for k in range(8):
        expected = layers_by_hand(member_of(model.network.members, k), x, (1.0, 0.1, 0.01))
        np.testing.assert_allclose(found[k], expected, rtol=1e-3, atol=1e-4)
    state = double_agent(config, layout).init(jax.random.key(0))
    mean, raw = np.split(layers_by_hand(state.actor.layers, obs), 2, axis=1)
    for got, expected in zip(head(state.actor, inputs[0]), (mean, np.log(np.log1p(np.exp(raw)) + 1e-5)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    low = jax.tree.map(jnp.zeros_like, state.actor.layers[-1])
    silent = replace(state.actor, layers=(*state.actor.layers[:-1], low._replace(b=jnp.full(6, -100.0))))
    np.testing.assert_allclose(np.exp(head(silent, inputs[0])[1]), 1e-5, rtol=1e-4)
    state = replace(state, bounds=jnp.asarray([-4.0, 10.0]))
    np.testing.assert_allclose(values(state.critics, state, *inputs), np.full((5, 6), 3.0), rtol=1e-6)  # the centre
    keys = jax.random.split(jax.random.key(1), 5)
    critics = stack([init_he(k, (14, 256, 256, 256, 1)) for k in keys])
    for k in range(5):
        expected = 7.0 * layers_by_hand(member_of(critics, k), x, (1e-5,) * 3)[:, 0] + 3.0
        np.testing.assert_allclose(values(critics, state, *inputs)[k], expected, rtol=1e-3, atol=1e-3)


def test_less_noise_than_a_thousandth_is_not_paid_for():
    """Below it the logarithm stands still, and the error alone pulls at the noise."""
    member = member_of(linear_model(noise=1e-4).network, 0)
    x, y = jnp.ones((1, 3)), jnp.zeros((1, 3))
    gap = np.asarray(member.members[0].w).sum(axis=0) + np.asarray(member.members[0].b)

    def loss(log_std):
        return likelihood_loss(
            replace(member, log_std=log_std), jnp.ones(1), jax.random.key(0), x, y, jnp.zeros(()), ()
        )

    value, slope = jax.value_and_grad(loss)(member.log_std)
    assert float(value) == pytest.approx((0.5 * gap**2 * 1e8 + np.log(1e-3)).sum(), rel=1e-4)
    np.testing.assert_allclose(slope, -(gap**2) * 1e8, rtol=1e-4)
    np.testing.assert_allclose(jax.grad(loss)(jnp.full(3, np.log(0.01))), 1.0 - gap**2 * 1e4, rtol=1e-4)


def test_held_out_rows_are_scored_by_mean_spread_and_noise():
    outputs, stds = np.array([[1.0, 0.0, 2.0], [3.0, 0.5, -1.0]]), np.array([[0.5, 1.0, 2.0], [2.0, 1.0, 0.5]])
    network = constant_model(outputs, np.log(stds)).network
    y = np.array([[1.5, 0.0, 0.0], [0.0, 1.0, 2.0]])
    variance = outputs.var(axis=0, ddof=1) + np.sqrt(stds.prod(axis=0)) ** 2
    expected = (0.5 * (y - outputs.mean(axis=0)) ** 2 / variance + 0.5 * np.log(variance)).sum(axis=1)
    np.testing.assert_allclose(judge(network, jnp.zeros((2, 3)), jnp.asarray(y, jnp.float32)), expected, rtol=1e-5)


def test_critics_learn_with_units_left_out():
    found = set()
    for rate in (0.0, 0.5):
        config = change(tiny_of("dhmbpo"), {"batch_size": ROWS, "double.critic_dropout": rate})
        state, adam = agent_state(), optax.adam(1e-3)
        opts = Opts(*(adam.init(part) for part in (state.actor.layers, state.critics, state.log_alpha)))
        obs = jax.random.normal(jax.random.key(9), (ROWS, 2))
        _, _, told = updates(config, LAYOUT, NEVER).critics(state, opts, linear_model(), obs, jax.random.key(0))
        found.add(round(float(told["agent/critic_loss"]), 4))
    assert len(found) == 2


def test_initial_weights_have_the_published_spread():
    layers = init_he(jax.random.key(0), (100, 400, 50), bias=0.5, last=0.0)
    assert float(layers[0].w.std()) == pytest.approx((2 / 100) ** 0.5, rel=0.03)
    assert float(layers[0].b.std()) == pytest.approx(0.5 / 100**0.5, rel=0.1)
    assert not layers[1].w.any()
    square = init_orthogonal(jax.random.key(0), (32, 32))[0].w
    np.testing.assert_allclose(square @ square.T, np.eye(32), atol=1e-5)


def test_the_policy_stays_the_same_within_a_block():
    seen = {}

    def after(state):
        seen[state.step] = np.asarray(state.agent.actor.layers[0].w).tobytes()

    go(tiny_of("dhmbpo"), after_step=after)
    assert len({seen[step] for step in range(60, 80)}) == 1
    assert len({seen[step] for step in (59, 60, 80, 100, 120, 140, 160)}) == 7  # the last one too has been learned from


def test_without_weights_the_policy_adapted_learner_is_the_plain_one_bit_for_bit():
    plain, adapted = tiny_of("dhmbpo"), change(tiny_of("pdml-dhmbpo"), {"weigh": "none"})
    (arrays, _), (others, _) = (everything(go(config)) for config in (plain, adapted))
    compared = [name for name in arrays if not name.startswith("history.") or name == "history.snapshots"]
    assert len(compared) > 30
    assert "history.snapshots" in compared
    for name in compared:
        assert np.array_equal(arrays[name], others[name]), name


@pytest.mark.slow
def test_each_arm_learns_something_else():
    found = {
        arm: everything(go(change(tiny_of("pdml-dhmbpo"), {"weigh": arm})))[0]["agent.actor.layers[0].w"].tobytes()
        for arm in ("none", "model", "starts", "both")
    }
    assert len(set(found.values())) == 4


def test_snapshots_are_the_policies_that_acted_with_the_normaliser_they_had():
    acted = {}

    def after(state):
        acted.setdefault(max(0, 1 + (state.step - 60) // 20), flatten(state.agent.actor))

    state = go(tiny_of("pdml-dhmbpo"), after_step=after)
    assert state.history.count == 6
    for number in range(6):
        assert np.array_equal(state.history.snapshot(number), acted[number])
    means = {np.asarray(restored(form_of(state.agent.actor), acted[i]).normaliser.mean).tobytes() for i in range(1, 7)}
    assert len(means) == 6  # of all rows up to then


def test_far_rollouts_begin_in_real_states_by_their_weights():
    config, seen = tiny_of("pdml-dhmbpo"), []
    env, layout, parts = start(config)
    world = parts.recipe.world

    def weigh(context):
        seen.append(world.weighting(context))
        return seen[-1]

    def teach(agent, model, ring, starts, step, owed):
        states = state.replay.stored().rows[:, : layout.obs_size]
        number = {row.tobytes(): i for i, row in enumerate(states)}
        assert len(number) == len(states) == step
        found = [number[row.tobytes()] for row in starts((100, 200), np.random.default_rng(0)).reshape(-1, 4)]
        shares = np.bincount(found, minlength=step) / 20_000
        np.testing.assert_allclose(shares, seen[-1].starts, atol=0.006)
        blocks = state.replay.stored().block
        np.testing.assert_allclose(*(np.bincount(blocks, x) for x in (shares, seen[-1].starts)), atol=0.012)
        return agent, ring, {}

    recipe = parts.recipe._replace(world=world._replace(weighting=weigh))
    parts = parts._replace(recipe=recipe._replace(lesson=recipe.lesson._replace(teach=teach)))
    state = init(config, layout, parts, begin(env, 0, 0))
    train(state, env, parts, config, Stopwatch())
    assert len(seen) == 6
    assert seen[-1].starts.max() > 1.5 * seen[-1].starts.min()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 33}, "batch_size = 33: must be a multiple of dynamics.num_members = 2"),
        ({"double.dropout": (0.1, 0.1)}, "double.dropout has 2 entries: must have one a hidden layer of the model, 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        check(change(tiny_of("dhmbpo"), changes))


PUBLISHED = {
    "warmup_steps": 5000,
    "model_every": 1000,
    "updates_per_step": 1,
    "batch_size": 256,
    "replay_capacity": 1_000_000,
    "agent.hidden_sizes": (256, 256, 256),
    "agent.learning_rate": 3e-4,
    "agent.gamma": 0.995,
    "agent.tau": 0.005,
    "agent.temperature": None,
    "agent.first_temperature": 0.1,
    "agent.target_entropy": -3.0,
    "agent.num_critics": 5,
    "agent.subset": 2,
    "dynamics.num_members": 8,
    "dynamics.hidden_sizes": (256, 256, 256),
    "dynamics.learning_rate": 1e-3,
    "dynamics.weight_decay": (2.5e-4, 5e-4, 7.5e-4, 1e-3),
    "dynamics.batch_size": 2048,
    "dynamics.holdout_ratio": 0.2,
    "dynamics.holdout_max": 12_288,
    "dynamics.patience": 124,
    "dynamics.max_epochs": 621,
    "double.far": 20,
    "double.near": 5,
    "double.refresh": 20,
    "double.retain": 10,
    "double.clear": False,
    "double.critic_share": 0.25,
    "double.critic_dropout": 1e-3,
    "double.bound_quantile": 0.01,
    "double.bound_rate": 3e-4,
    "double.dropout": (0.0075, 0.005, 0.0025),
    "double.noise_decay": 1e-2,
    "double.reward_noise": 1e-3,
    "double.epoch_batches": 6,
    "double.judge_every": 1,
    "double.significance": 0.1,
    "double.first_factor": 5,
}
"""On Hopper [Kubo et al. 2025, its configuration files]."""


def test_the_published_profile_is_the_published_one(tmp_path):
    config = defaults("Hopper-v5", "dhmbpo", "published")
    assert {name: get(config, name) for name in PUBLISHED} == PUBLISHED
    ours = defaults("Hopper-v5", "dhmbpo")
    other = {name for name in PUBLISHED if get(ours, name) != PUBLISHED[name]}
    assert other == {f"dynamics.{name}" for name in ("batch_size", "holdout_max", "patience", "max_epochs")} | {
        "double.judge_every"
    }
    small = {name: value for name, value in TINY_DOUBLE.items() if not name.startswith("dynamics.pat")}
    small |= {
        name: TINY[name] for name in ("warmup_steps", "model_every", "agent.hidden_sizes", "dynamics.hidden_sizes")
    }
    small |= {"steps": 61, "eval_episodes": 0, "dynamics.weight_decay": (1e-3, 1e-3), "dynamics.max_epochs": 3}
    words = [
        f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in small.items()
    ]
    first = ["train", "--env", "Hopper-v5", "--method", "dhmbpo", "--preset", "published"]
    assert main([*first, *words, "--run-dir", str(tmp_path / "run")]) == 0
    assert read_config(tmp_path / "run" / "config.json") == change(config, small)
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert next(row["model/epochs"] for row in csv.DictReader(file)) == "6.0"  # twice as many in the first fit
    walker = defaults("Walker2d-v5", "dhmbpo", "published").dynamics
    assert (walker.patience, walker.max_epochs) == (144, 722)
    with pytest.raises(UserError, match="preset = 'published': is for dhmbpo, pdml-dhmbpo; method is 'pdml'"):
        defaults("Hopper-v5", "pdml", "published")
