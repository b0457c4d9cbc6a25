"""Diagnoses: errors of the model by hand, fresh steps that are never learned from, and what a run writes of them."""

import csv
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import new_parts, tiny_of

from pdml.config.fields import change
from pdml.core.nets import Layer
from pdml.core.transition import Layout
from pdml.envs.gym import make_env
from pdml.models.ensemble import elite_means
from pdml.runs.checkpoint import load_checkpoint, save_checkpoint
from pdml.runs.ledger import Ledger
from pdml.runs.session import start_run
from pdml.runs.tensor_file import read_arrays
from pdml.training.diagnostics import (
    DEPTH,
    WINDOWS,
    FreshReservoir,
    FreshSteps,
    collect_fresh_steps,
    diagnosis,
    windows,
)

LAYOUT = Layout(4, 1)


@pytest.fixture(scope="module")
def blank():
    """A model before its first fit."""
    return new_parts(tiny_of("mbpo")).model.dynamics.init(jax.random.key(0))


@pytest.fixture(scope="module")
def measure():
    return diagnosis(LAYOUT)


def still(model, moves):
    """Return a model whose networks' means are constant: network i moves every state by moves[i]."""

    def constant(member, move):
        last = member[-1]
        outputs = last.b.shape[0] // 2
        bias = jnp.zeros_like(last.b).at[1:outputs].set(move)
        return (*member[:-1], Layer(jnp.zeros_like(last.w), bias))

    members = tuple(constant(m, move) for m, move in zip(model.network.members, moves, strict=True))
    return replace(model, network=replace(model.network, members=members))


def test_only_elites_are_asked_and_their_means_are_averaged(blank):
    model = replace(still(blank, [1.0, 5.0, 3.0]), elites=jnp.array([0, 2], jnp.int32))
    obs, action = jnp.ones((2, 4)), jnp.zeros((2, 1))
    np.testing.assert_allclose(obs + elite_means(model, obs, action)[:, :, 1:].mean(axis=0), 1.0 + 2.0, atol=1e-6)


def test_errors_of_a_model_that_stands_still_are_the_moves_of_the_states(blank, measure):
    rows = np.random.default_rng(0).normal(size=(1500, LAYOUT.width)).astype(np.float32)
    found = measure.errors(still(blank, [0.0, 0.0, 0.0]), rows)
    moves = rows[:, 6:10] - rows[:, :4]
    assert found.l2 == pytest.approx(np.linalg.norm(moves, axis=1).mean(), rel=1e-5)
    assert found.mse == pytest.approx(np.square(moves).mean(), rel=1e-5)


def test_compounding_error_is_the_distance_along_the_same_actions(blank, measure):
    """In four dimensions the real state moves by 1 per step, the model by 0.5: after h steps they are h apart."""
    rows = np.zeros((60, LAYOUT.width), np.float32)
    rows[:, :4] = np.arange(60)[:, None]
    rows[:, 6:10] = rows[:, :4] + 1.0
    found = measure.compounding(still(blank, [0.5, 0.5, 0.5]), FreshSteps(rows, np.zeros(60, int)))
    np.testing.assert_allclose(found, np.arange(1, DEPTH + 1), rtol=1e-5)


def test_each_depth_is_averaged_over_the_windows_whose_episode_is_at_least_that_long(blank, measure):
    """The state stands still but for the last episode, of 7 steps, which moves by 1 per step in each dimension."""
    rows = np.zeros((12, LAYOUT.width), np.float32)
    rows[5:, :4] = np.arange(7)[:, None]
    rows[5:, 6:10] = rows[5:, :4] + 1.0
    episode = np.repeat([0, 1, 2], [3, 2, 7])
    found = measure.compounding(still(blank, [0.0, 0.0, 0.0]), FreshSteps(rows, episode))
    starts, lengths = windows(episode)
    for depth in range(1, DEPTH + 1):
        lasting = starts[lengths >= depth]
        expected = np.mean([2.0 * depth if start >= 5 else 0.0 for start in lasting]) if len(lasting) else np.nan
        assert found[depth - 1] == pytest.approx(expected, nan_ok=True)
    assert np.isfinite(found[:7]).all()
    assert np.isnan(found[7:]).all()


def test_windows_are_spread_evenly_and_end_with_their_episode():
    starts, lengths = windows(np.repeat(np.arange(4), [30, 5, 400, 25]))
    assert len(starts) == WINDOWS
    assert starts[0] == 0
    assert starts[-1] == 459
    assert np.ptp(np.diff(starts)) <= 1
    assert lengths[0] == DEPTH
    assert lengths[-1] == 1
    assert lengths[starts.tolist().index(24)] == 6


def test_the_reservoir_keeps_every_past_step_with_the_same_chance():
    kept = np.zeros(40)
    for seed in range(2000):
        fresh = FreshReservoir(1, capacity=10)
        for part in range(4):
            rows = np.arange(10 * part, 10 * part + 10, dtype=np.float32)[:, None]
            fresh.add(rows, seed, part)
        assert fresh.count == 40
        kept[fresh.rows[:, 0].astype(int)] += 1
    assert np.abs(kept / 2000 - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 2000)


def test_fresh_steps_are_real_steps_of_the_policy_and_depend_on_seed_and_step_only():
    env = make_env("InvertedPendulum-v5")

    def act(obs, key):
        return jax.random.uniform(key, (1,), minval=-1.0, maxval=1.0)

    steps = collect_fresh_steps(LAYOUT, env, act, 3, 1000, 50)
    again = collect_fresh_steps(LAYOUT, env, act, 3, 1000, 50)
    np.testing.assert_array_equal(steps.rows, again.rows)
    assert not np.array_equal(steps.rows, collect_fresh_steps(LAYOUT, env, act, 3, 2000, 50).rows)
    inside = steps.episode[1:] == steps.episode[:-1]
    np.testing.assert_array_equal(steps.rows[1:, :4][inside], steps.rows[:-1, 6:10][inside])
    ended = np.flatnonzero(~inside)
    assert len(ended) >= 2
    assert (steps.rows[ended, -1] == 1.0).all()
    assert len(np.unique(steps.rows[:, 4])) == 50
    env.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the directories of two runs that differ in their diagnoses only."""
    folder, settings = tmp_path_factory.mktemp("runs"), tiny_of("pdml")
    diagnosed = change(settings, {"diagnose": True, "diagnose_every": 40, "diagnose_steps": 30})
    start_run(settings, folder / "plain", 1, "test")
    start_run(diagnosed, folder / "diagnosed", 1, "test")
    return folder / "plain", folder / "diagnosed"


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_diagnoses_are_written_counted_separately_and_change_nothing_that_is_learned(runs):
    plain, diagnosed = runs
    for name in ("evaluations.csv", "progress.csv"):
        assert (diagnosed / name).read_text() == (plain / name).read_text()
    assert not (plain / "diagnostics.csv").exists()
    rows = rows_of(diagnosed / "diagnostics.csv")
    assert [row["step"] for row in rows] == ["80", "120", "160"]
    assert [row["steps_after_warmup"] for row in rows] == ["20", "60", "100"]
    assert [row["diagnosis_steps"] for row in rows] == ["30", "60", "90"]
    assert rows[0]["current_l2"] == rows[0]["overall_l2"]  # there is one policy so far
    assert rows[2]["current_l2"] != rows[2]["overall_l2"]
    assert {"compounding_01", f"compounding_{DEPTH}"} <= set(rows[0])


def test_blocks_keep_the_weights_that_were_used(runs, tiny):
    plain, _ = runs
    found = sorted((plain / "blocks").iterdir())
    assert [path.stem for path in found] == [f"step_{step:08d}" for step in (60, 80, 100, 120, 140)]
    for number, path in enumerate(found):
        arrays, note = read_arrays(path)
        assert note["step"] == 60 + 20 * number
        assert len(arrays["model"]) == number + 1
        assert arrays["model"].sum() == pytest.approx(1.0, abs=1e-6)
        assert ("shift" in arrays) == (number >= tiny.learning.mixture.first_block)
    assert arrays["shift"][-1] == 0.0  # the current policy's own
    last = rows_of(plain / "progress.csv")[-1]
    assert arrays["model"][-1] == pytest.approx(float(last["weights/newest_share"]), rel=1e-5)


def test_past_fresh_steps_are_saved_with_the_state(tiny_run, tmp_path):
    run, file = tiny_run("pdml"), tmp_path / "state.safetensors"
    ledger = Ledger(FreshReservoir(run.layout.width))
    ledger.fresh.add(np.ones((7, run.layout.width), np.float32), 0, 80)
    save_checkpoint(run.state, ledger, run.settings, file)
    env = make_env(run.settings.learning.env)
    again = load_checkpoint(file, run.settings, run.layout, run.parts.recipe, env)
    np.testing.assert_array_equal(again.ledger.fresh.rows, ledger.fresh.rows)
    assert again.ledger.fresh.count == 7
    assert run.state.log.shares
    assert again.state.log.shares == run.state.log.shares
