"""The loop: blocks and weights stay together, counts are the paper's, and what it must survive."""

import jax
import numpy as np
import pytest
from tiny import assert_same_state, blank_state, go, start, tiny_of, with_model

from pdml.config.fields import change
from pdml.config.validate import check
from pdml.core.errors import Diverged
from pdml.core.stopwatch import Stopwatch
from pdml.envs.gym import make_env
from pdml.models.rollouts import RolloutStats
from pdml.training import loop
from pdml.training.loop import Training, train
from pdml.training.state import BlockLog


def test_runs_that_differ_in_their_length_only_share_what_is_compiled(tiny):
    longer, other = (start(change(tiny, changes))[2] for changes in ({"steps": 300}, {"seed": 1}))
    assert start(tiny)[2] is longer
    assert start(tiny)[2].improve is not other.improve


@pytest.mark.parametrize("method", ["pdml", pytest.param("pdml-dhmbpo", marks=pytest.mark.slow)])
def test_each_block_gets_the_weight_of_the_policy_that_closed_it(method, tiny_run):
    """At call m the last F rows carry w_m, the F before them w_{m-1} with the shift of snapshot m-1, and so on."""
    settings, parts, seen = tiny_run(method).settings, tiny_run(method).parts, []
    env = make_env(settings.learning.env)
    state = blank_state(settings, parts, env)

    def spy(context):
        weights = parts.model.weighting(context)
        seen.append((context, weights, state.history.count, context.shifts()))
        return weights

    training = Training(settings.learning, with_model(parts, weighting=spy), Stopwatch())
    train(state, env, training, settings.run.steps)
    assert len(seen) == (5 if method == "pdml" else 6)  # 60, 80, 100, 120, 140; DHMBPO learns from the last block too
    rate = settings.learning.mixture.rate
    for m, (context, weights, snapshots, shifts) in enumerate(seen):
        assert snapshots == m + 1
        assert context.block.tolist() == [0] * 60 + [1 + i // 20 for i in range(20 * m)]
        if m < 2:
            np.testing.assert_allclose(weights.model, 1 / len(weights.model))
            continue
        u = 1 / np.maximum(shifts[1:m].astype(np.float64), 1e-3)
        u = u / u.sum()
        w = np.concatenate([[u[0]], u, [max(rate / (1 - rate), u.max())]])
        for block in range(m + 1):
            rows = weights.model[context.block == block]
            np.testing.assert_allclose(rows, w[block] / w.sum() / (60 if block == 0 else 20), rtol=1e-6)


@pytest.mark.slow
def test_an_epoch_has_four_fits_and_twenty_updates_per_step(tiny_run):
    """The loop at the paper's intervals, with parts that only count what they are asked for."""
    run, asked = tiny_run("pdml"), []
    changes = {"model_every": 250, "epoch_steps": 1000, "updates_per_step": 20, "rollouts.max_rows": 80}
    settings = change(run.settings, {"steps": 1060, **changes})
    fits, zero = [], np.zeros((), np.int32)

    def fit(model, real, weights, agent, step):
        fits.append(step)
        return model, {}

    def improve(agent, buffer, batches, *rest):
        asked.append(len(batches))
        return agent, {}, None

    parts = with_model(run.parts, dynamics=run.parts.model.dynamics._replace(fit=fit))
    parts = parts._replace(
        improve=improve, rollouts=lambda m, a, buffer, *rest: (buffer, RolloutStats(zero + 1, zero, zero))
    )
    go(settings, parts)
    assert fits == [60, 310, 560, 810]
    assert asked == [20] * 1000


def test_every_minibatch_is_one_step_of_both_optimisers(tiny_run):
    run = tiny_run("pdml")
    assert run.settings.learning.updates_per_step == 2
    assert int(np.asarray(run.state.agent.critic_opt[0].count)) == 2 * 100
    assert int(np.asarray(run.state.agent.actor_opt[0].count)) == 2 * 100


def test_pdml_and_mbpo_are_one_until_the_weights_begin(tiny_run):
    """Weights begin with the fit at step 100."""
    before, after = ([tiny_run(method).arrays_at(step) for method in ("pdml", "mbpo")] for step in (100, 113))
    agent = [name for name in before[0] if name.startswith("agent.")]
    assert {name for name in before[1] if name.startswith("agent.")} == set(agent)
    assert agent
    assert all(np.array_equal(before[0][name], before[1][name]) for name in agent)
    network = [name for name in after[0] if name.startswith("model.network.")]
    assert network
    assert not all(np.array_equal(after[0][name], after[1][name]) for name in network)


@pytest.mark.parametrize("terminates", [False, True])
def test_time_limits_are_stored_as_terminals_only_on_request(terminates):
    """All steps belong to the warm-up, so nothing is compiled."""
    changes = {"env": "Pusher-v5", "warmup_steps": 230, "steps": 230, "time_limit_terminates": terminates}
    rows = go(change(tiny_of("sac"), changes)).replay.stored().rows
    jumps = np.abs(rows[1:, :23] - rows[:-1, 24 + 7 : -1]).max(axis=1) > 0
    assert np.flatnonzero(jumps).tolist() == [99, 199]  # a new episode begins
    assert np.flatnonzero(rows[:, -1]).tolist() == ([99, 199] if terminates else [])


@pytest.mark.slow
def test_buffers_overwritten_while_an_update_runs_do_not_reach_it(tiny_run):
    run = tiny_run("pdml")
    env = make_env(run.settings.learning.env)
    state = blank_state(run.settings, run.parts, env)

    def improve(*args):
        result = run.parts.improve(*args)
        kept = state.replay._rows.copy(), state.history._snapshots.copy()
        state.replay._rows[:], state.history._snapshots[:] = np.nan, np.nan
        jax.block_until_ready(result)
        state.replay._rows[:], state.history._snapshots[:] = kept
        return result

    training = Training(run.settings.learning, run.parts._replace(improve=improve), Stopwatch())
    assert_same_state(train(state, env, training, run.settings.run.steps), run.state)


def test_the_replay_buffer_may_be_smaller_than_the_run(tiny_run):
    run = tiny_run("pdml")
    state = go(change(run.settings, {"steps": 220, "replay_capacity": 50}), run.parts)
    assert state.replay.size == 50
    assert np.isfinite(np.asarray(state.agent.log_alpha))
    shares = state.log.metrics["weights/newest_share"]
    assert 0.0 < shares < 1.0


ALONE = {"dynamics.num_members": 1, "dynamics.num_elites": 1, "model_every": 50}
FEW = {"dynamics.holdout": "fixed", "warmup_steps": 4, "steps": 60, "rollouts.max_rows": 7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("pdml", {"real_ratio": 0.0, "rollouts.batch": 41, "mixture.shift": "monte-carlo", "mixture.reservoir": 1}),
        ("pdml", ALONE),
        ("maper-mbpo-model", ALONE),
        ("pdml", FEW),
        ("recall-mbpo", FEW | {"priority.share": 0.01}),
        ("maper-mbpo", {"real_ratio": 0.0, "rollouts.max_rows": 77}),
        ("maper-mbpo", {"replay_capacity": 50, "steps": 220}),
        ("per-mbpo", {"replay_capacity": 50, "steps": 220}),
        ("redq", {"agent.num_critics": 1, "agent.subset": 1}),
    ],
)
def test_unusual_sizes_run_through(method, changes):
    state = go(change(tiny_of(method), changes))
    assert np.isfinite(np.asarray(state.agent.log_alpha))
    assert state.model_buffer is None or int(state.model_buffer.size) > 0


def test_the_warm_up_is_uniform_in_the_action_space(tiny_run):
    run = tiny_run("pdml")
    state = go(change(run.settings, {"steps": 900, "warmup_steps": 900}), run.parts)
    actions = state.replay.stored().rows[:900, 4]
    assert len(actions) == 900
    assert actions.min() < -0.97
    assert actions.max() > 0.97
    assert abs(actions.mean()) < 3 / np.sqrt(3 * 900)


@pytest.mark.parametrize("call", [0, 2])
def test_a_model_that_diverges_stops_the_run_with_its_name(call, tiny_run):
    run, calls = tiny_run("pdml"), []

    def rollouts(model, actor, buffer, *rest):
        calls.append(1)
        factor = np.float32(np.nan if len(calls) > call else 1.0)
        return run.parts.rollouts(model, jax.tree.map(lambda leaf: leaf * factor, actor), buffer, *rest)

    with pytest.raises(Diverged, match="model has diverged"):
        go(run.settings, run.parts._replace(rollouts=rollouts))


def throttled_updates(run, throttle):
    """Return the updates of each of four epochs; only their number is counted."""
    changes = {"warmup_steps": 5000, "updates_per_step": 20, "epoch_steps": 1000, "throttle": throttle}
    settings = change(run.settings, changes)
    parts = run.parts._replace(improve=lambda agent, *rest: (agent, {}, None))
    training = Training(settings.learning, parts, Stopwatch())
    state, made = blank_state(settings, parts, make_env(settings.learning.env)), []
    zero = np.zeros(4, np.float32)
    state.replay.add(zero, zero[:1], 0.0, zero, False, 0)
    for epoch in range(4):
        for step in range(1000):
            state.step = 5000 + 1000 * epoch + step + 1
            loop.improve(state, training)
        made.append(state.epoch_updates)
    return made


@pytest.mark.slow
def test_throttle_gives_the_updates_that_mbpo_pytorch_makes(tiny_run):
    """5000, 10000, 15000 and then all 20000 updates per epoch."""
    for throttle, expected in ((5.0, [5000, 10_000, 15_000, 20_000]), (0.0, [20_000] * 4)):
        np.testing.assert_allclose(throttled_updates(tiny_run("mbpo"), throttle), expected, atol=20)


def test_a_throttled_run_makes_fewer_updates_and_reports_their_mean(tiny_run):
    run = tiny_run("mbpo")
    changes = {"throttle": 0.5, "epoch_steps": 1000, "rollouts.max_rows": 80}
    state = go(change(run.settings, changes), run.parts)
    assert int(state.agent.critic_opt[0].count) == 2 * 25  # 100 steps, half an update per step, two at a time
    assert state.log.improved == 5
    entropy = state.log.sums["agent/entropy"] / state.log.improved
    assert -3.0 < entropy < 3.0


def test_the_tiny_configuration_is_a_valid_one(tiny):
    assert check(tiny) is tiny
    assert BlockLog().sums == {}
