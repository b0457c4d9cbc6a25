"""The loop: blocks and weights stay together, counts are the paper's, saving is exact, nothing recompiles."""

import jax
import numpy as np
import pytest
from tiny import everything, go, start, tiny_of, with_world

from pdml.config.schema import METHODS, change
from pdml.config.validate import check
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, generator, key
from pdml.core.stopwatch import Stopwatch
from pdml.envs.evaluation import evaluate
from pdml.envs.gym import begin, make_env
from pdml.envs.termination_fns import RULES, by_rule
from pdml.runs import checkpoint
from pdml.training import loop
from pdml.training.loop import init, jitted, train
from pdml.training.methods import RECIPES


def assert_same(first, second):
    (a, note_a), (b, note_b) = everything(first), everything(second)
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name
    assert note_a == note_b


@pytest.mark.parametrize(
    ("method", "stop", "target_norm"),
    [
        *((method, 113, "none") for method in METHODS),
        ("pdml", 45, "none"),
        ("pdml", 100, "none"),
        ("maper-mbpo", 100, "none"),
        ("pdml-dhmbpo", 100, "none"),
        ("pdml", 113, "delta"),
        ("ampo", 113, "direct"),
    ],
)
def test_save_load_and_go_on_equals_an_unbroken_run_bit_for_bit(method, stop, target_norm, tmp_path):
    config = change(tiny_of(method), {"dynamics.target_norm": target_norm})
    unbroken = go(config)
    checkpoint.save(stopped(config, stop), config, tmp_path / "state.safetensors")
    env, layout, parts = start(config)
    loaded = checkpoint.load(tmp_path / "state.safetensors", config, layout, parts, env).state
    assert_same(train(loaded, env, parts, config, Stopwatch()), unbroken)


class StopError(Exception):
    pass


def stopped(config, stop):
    held = []

    def after(state):
        held[:] = [state]
        if state.step == stop:
            raise StopError

    with pytest.raises(StopError):
        go(config, after_step=after)
    return held[0]


def test_runs_that_differ_in_their_length_only_share_what_is_compiled(tiny):
    longer, other = (start(change(tiny, changes))[2] for changes in ({"steps": 300}, {"seed": 1}))
    assert start(tiny)[2] is longer
    assert start(tiny)[2].improve is not other.improve


@pytest.mark.parametrize("method", ["pdml", "pdml-dhmbpo"])
def test_each_block_gets_the_weight_of_the_policy_that_closed_it(method):
    """At call m the last F rows carry w_m, the F before them w_{m-1} with the shift of snapshot m-1, and so on."""
    tiny = tiny_of(method)
    env, layout, parts = start(tiny)
    seen = []

    def spy(context):
        weights = parts.recipe.world.weighting(context)
        seen.append((context, weights, state.history.count, context.shifts()))
        return weights

    state = init(tiny, layout, parts, begin(env, tiny.seed, 0))
    spied = with_world(parts, weighting=spy)
    train(state, env, spied, tiny, Stopwatch())
    assert len(seen) == (5 if method == "pdml" else 6)  # steps 60, 80, 100, 120, 140; a lesson ends the last block too
    rate = tiny.mixture.rate
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


def test_an_epoch_has_four_fits_and_twenty_updates_a_step(tiny):
    config = change(
        tiny, {"steps": 1060, "model_every": 250, "epoch_steps": 1000, "updates_per_step": 20, "eval_every": 1000}
    )
    config = change(config, {"batch_size": 4, "dynamics.max_epochs": 1, "agent.hidden_sizes": (4,)})
    env, layout, parts = start(config)
    fits = []

    dynamics = parts.recipe.world.dynamics

    def fit(*args):
        fits.append(args[-1])
        return dynamics.fit(*args)

    counted = with_world(parts, dynamics=dynamics._replace(fit=fit))
    state = train(init(config, layout, counted, begin(env, config.seed, 0)), env, counted, config, Stopwatch())
    assert fits == [60, 310, 560, 810]
    assert int(np.asarray(state.agent.critic_opt[0].count)) == 20_000
    assert int(np.asarray(state.agent.actor_opt[0].count)) == 20_000


def test_pdml_and_mbpo_are_one_until_the_weights_begin():
    before = [go(change(tiny_of(m), {"steps": 100})) for m in ("pdml", "mbpo")]  # weights begin at step 100
    for a, b in zip(jax.tree.leaves(before[0].agent), jax.tree.leaves(before[1].agent), strict=True):
        assert np.array_equal(a, b)
    after = [go(change(tiny_of(m), {"steps": 121})) for m in ("pdml", "mbpo")]
    leaves = zip(jax.tree.leaves(after[0].model.network), jax.tree.leaves(after[1].model.network), strict=True)
    assert not all(np.array_equal(a, b) for a, b in leaves)


def compilations(config):
    """Run and count, evaluating twice with different numbers of episodes still running."""
    jax.clear_caches()
    env, layout, parts = start(config)
    mode, lengths, envs = jax.jit(parts.recipe.agent.mode), [], [make_env(config.env) for _ in range(3)]

    def after(state):
        lengths.append(state.log.metrics.get("imagined/horizon"))
        if state.step in (config.steps - 30, config.steps - 10):
            evaluate(envs, lambda obs, time: np.asarray(mode(state.agent.actor, obs)), 0, state.step, 3)

    state = train(init(config, layout, parts, begin(env, config.seed, 0)), env, parts, config, Stopwatch(), after)
    functions = {"act": parts.act, "improve": parts.improve, "imagine": parts.imagine, "resize": parts.resize}
    functions |= parts.recipe.world.dynamics.jitted | {"mode": mode}
    functions |= {"outputs": state.history._evaluate, "shift": state.history._shift}
    return {name: function._cache_size() for name, function in functions.items()}, lengths


def test_every_function_compiles_once_a_run(tiny):
    """Over changes of horizon and of the ring's size, a short last block and minibatch, and two evaluations."""
    growing = {"rollouts.first_epoch": 1, "rollouts.last_epoch": 5, "rollouts.longest": 3, "rollouts.max_rows": 200}
    counts, lengths = compilations(change(tiny, {"steps": 290, **growing}))
    assert {1.0, 2.0, 3.0} <= set(lengths)
    assert counts == dict.fromkeys(counts, 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_traced_or_compiled_after_the_first_blocks(method):
    config, counted, seen = tiny_of(method), [], {}
    _, layout, wired = start(config)
    fresh = jitted(config, layout, RECIPES[method](config, layout, by_rule(RULES["InvertedPendulum"])))
    assert fresh.improve is not wired.improve

    def listen(event, duration, **rest):
        if event.startswith("/jax/core/compile"):
            counted.append(event)

    def after(state):
        seen[state.step] = len(counted)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        go(config, fresh, after)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert seen[101] > 0
    assert seen[160] == seen[121]  # mixtures begin at step 100


@pytest.mark.slow
def test_the_fit_compiles_once_more_when_its_capacity_doubles(tiny):
    counts, _ = compilations(change(tiny, {"warmup_steps": 4060, "steps": 4130}))  # 4096 rows are passed at a fit
    doubled = {"train_epoch", "holdout_error"}
    assert counts == {name: 2 if name in doubled else 1 for name in counts}


@pytest.mark.slow
def test_time_limits_are_stored_without_a_terminal():
    state = go(change(tiny_of("sac"), {"env": "Pusher-v5", "warmup_steps": 230, "steps": 240}))
    rows = state.replay.stored().rows
    assert not rows[:, -1].any()
    jumps = np.abs(rows[1:, :23] - rows[:-1, 24 + 7 : -1]).max(axis=1) > 0
    assert np.flatnonzero(jumps).tolist() == [99, 199]  # a new episode begins, and the row before it is no terminal


def test_buffers_overwritten_while_an_update_runs_do_not_reach_it(tiny):
    env, layout, parts = start(tiny)
    state = init(tiny, layout, parts, begin(env, tiny.seed, 0))

    def improve(*args):
        result = parts.improve(*args)
        kept = state.replay._rows.copy(), state.history._snapshots.copy()
        state.replay._rows[:], state.history._snapshots[:] = np.nan, np.nan
        jax.block_until_ready(result)
        state.replay._rows[:], state.history._snapshots[:] = kept
        return result

    overwritten = train(state, env, parts._replace(improve=improve), tiny, Stopwatch())
    assert_same(overwritten, go(tiny))


def test_real_ring_may_be_smaller_than_the_run(tiny):
    config = change(tiny, {"steps": 220, "replay_capacity": 50})
    state = go(config)
    assert state.replay.size == 50
    assert np.isfinite(np.asarray(state.agent.log_alpha))
    shares = state.log.metrics["weights/newest_share"]
    assert 0.0 < shares < 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("pdml", {"real_ratio": 0.0, "rollouts.batch": 41}),
        ("pdml", {"dynamics.num_members": 1, "dynamics.num_elites": 1, "model_every": 50}),
        ("pdml", {"dynamics.holdout": "fixed", "warmup_steps": 4, "steps": 60, "rollouts.max_rows": 7}),
        ("pdml", {"mixture.shift": "monte-carlo", "mixture.reservoir": 1}),
        ("maper-mbpo", {"real_ratio": 0.0}),
        ("maper-mbpo", {"replay_capacity": 50, "steps": 220, "rollouts.max_rows": 77}),
        ("maper-mbpo-model", {"dynamics.num_members": 1, "dynamics.num_elites": 1}),
        ("recall-mbpo", {"dynamics.holdout": "fixed", "warmup_steps": 4, "steps": 60, "priority.share": 0.01}),
        ("redq", {"agent.num_critics": 1, "agent.subset": 1}),
        ("per-mbpo", {"replay_capacity": 50, "steps": 220}),
    ],
)
def test_unusual_sizes_run_through(method, changes):
    state = go(change(tiny_of(method), changes))
    assert np.isfinite(np.asarray(state.agent.log_alpha))
    assert state.imagined is None or int(state.imagined.size) > 0


@pytest.mark.slow
def test_a_run_may_be_continued_to_more_steps_than_were_planned(tiny, tmp_path):
    longer = change(tiny, {"rollouts.first_epoch": 1, "rollouts.last_epoch": 3, "rollouts.longest": 3})
    shorter = change(longer, {"steps": 100})
    checkpoint.save(go(shorter), shorter, tmp_path / "state.safetensors")
    env, layout, parts = start(longer)
    loaded = checkpoint.load(tmp_path / "state.safetensors", longer, layout, parts, env).state
    assert_same(train(loaded, env, parts, longer, Stopwatch()), go(longer))


def test_warmup_is_uniform_in_the_action_space(tiny):
    state = go(change(tiny, {"steps": 901, "warmup_steps": 900}))
    actions = state.replay.stored().rows[:900, 4]
    assert actions.min() < -0.97
    assert actions.max() > 0.97
    assert abs(actions.mean()) < 3 / np.sqrt(3 * 900)


def test_draws_depend_on_seed_purpose_step_and_nothing_else():
    assert generator(1, Purpose.STARTS, 7).random() == generator(1, Purpose.STARTS, 7).random()
    others = [
        (2, Purpose.STARTS, 7, 0),
        (1, Purpose.HOLDOUT, 7, 0),
        (1, Purpose.STARTS, 8, 0),
        (1, Purpose.STARTS, 7, 1),
    ]
    draws = {generator(*address).random() for address in [(1, Purpose.STARTS, 7, 0), *others]}
    assert len(draws) == 5
    keys = {
        jax.random.key_data(key(*a)).tolist()[1]
        for a in [(1, Purpose.ACT, 7), (1, Purpose.ACT, 8), (1, Purpose.IMAGINE, 7), (2, Purpose.ACT, 7)]
    }
    assert len(keys) == 4


@pytest.mark.parametrize("call", [0, 2])
def test_a_model_that_diverges_stops_the_run_with_its_name(tiny, call):
    env, layout, parts = start(tiny)
    calls = []

    def imagine(model, actor, ring, *rest):
        calls.append(1)
        factor = np.float32(np.nan if len(calls) > call else 1.0)
        return parts.imagine(model, jax.tree.map(lambda leaf: leaf * factor, actor), ring, *rest)

    with pytest.raises(Diverged, match="model has diverged"):
        train(
            init(tiny, layout, parts, begin(env, tiny.seed, 0)), env, parts._replace(imagine=imagine), tiny, Stopwatch()
        )


def test_tiny_configuration_is_a_valid_one(tiny):
    assert check(tiny) is tiny
    assert loop.BlockLog().sums == {}
