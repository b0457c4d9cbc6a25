"""Whole runs of double-horizon learning: the counts of its loop, and what a run writes."""

import csv
from collections import Counter

import jax
import numpy as np
import pytest
from tiny import blank_state, go, start, tiny_of

from pdml.config.fields import change
from pdml.config.start_from import StartFrom
from pdml.core.stopwatch import Stopwatch
from pdml.dhmbpo import learner
from pdml.dhmbpo.learner import state_buffer_rows
from pdml.dhmbpo.rollouts import distribution_rollouts
from pdml.dhmbpo.updates import Updates, updates
from pdml.envs.env_spec import spaces_of
from pdml.envs.termination_fns import RULES, by_rule
from pdml.runs.session import start_run
from pdml.training.loop import Training, train
from pdml.training.methods import RECIPES
from pdml.training.recipe import compiled
from pdml.training.state import add_prior
from pdml.training.transfer import take_rows


@pytest.mark.slow
def test_update_phases_make_the_updates_and_distribution_rollouts_that_they_plan(monkeypatch):
    made = Counter()

    def counted(name, function):
        def call(*args):
            jax.debug.callback(lambda: made.update([name]))
            return function(*args)

        return call

    def counting_updates(*args):
        return Updates(**{name: counted(name, update) for name, update in updates(*args)._asdict().items()})

    monkeypatch.setattr(learner, "updates", counting_updates)
    monkeypatch.setattr(
        learner, "distribution_rollouts", lambda *args: counted("distribution", distribution_rollouts(*args))
    )
    settings = change(tiny_of("dhmbpo"), {"double.refresh": 7, "double.critic_share": 0.25, "steps": 80})
    config = settings.learning
    layout = spaces_of(config.env).layout
    parts = compiled(config, layout, RECIPES["dhmbpo"](config, layout, by_rule(RULES["InvertedPendulum"])))
    state = go(settings, parts)
    jax.effects_barrier()
    assert config.updates_per_step == 2
    rollouts = (1 + 18) + (1 + 6)  # fewer updates than `refresh` follow the last ones
    assert made == {"critics_only": 2 * 5, "all_networks": 120 + 40, "distribution": rollouts}
    assert 0 < int(state.buffer.size) <= len(state.buffer.rows) == state_buffer_rows(config)


def watched_phases(settings):
    """Return an environment and parts whose update phases learn nothing, and the list that they write to."""
    env, layout, parts = start(settings)
    pending = []

    def run(agent, model, buffer, real_states, step, pending_steps):
        pending.append((step, pending_steps))
        return agent, buffer, {}

    phase = parts.recipe.update_phase._replace(run=run)
    return env, layout, parts._replace(recipe=parts.recipe._replace(update_phase=phase)), pending


def test_the_first_update_phase_makes_the_updates_of_the_warm_up_and_of_prior_transitions():
    settings = tiny_of("dhmbpo")
    env, layout, parts, pending = watched_phases(settings)
    go(settings, parts)
    assert pending == [(60, 60), *((step, 20) for step in range(80, 161, 20))]
    pending.clear()
    state = blank_state(settings, parts, env)
    add_prior(state, np.random.default_rng(0).random((30, layout.width), np.float32))
    short = change(settings, {"warmup_steps": 10, "steps": 31})
    train(state, env, Training(short.learning, parts, Stopwatch()), short.run.steps)
    assert pending == [(10, 40), (30, 20)]


def test_what_an_agent_of_another_run_had_learned_from_is_not_learned_again():
    settings = tiny_of("dhmbpo")
    env, layout, parts, pending = watched_phases(settings)
    state = blank_state(settings, parts, env)
    take_rows(state, np.random.default_rng(0).random((40, layout.width), np.float32), learned=25)
    short = change(settings, {"warmup_steps": 10, "steps": 11})
    train(state, env, Training(short.learning, parts, Stopwatch()), short.run.steps)
    assert pending == [(10, 10 + 40 - 25)]


@pytest.mark.slow
def test_the_first_phase_does_not_move_a_policy_of_another_run_by_its_new_normaliser(tmp_path):
    settings = change(tiny_of("pdml-dhmbpo"), {"steps": 61, "eval_episodes": 0})
    start_run(settings, tmp_path / "old", 1, "test")
    start_run(settings, tmp_path / "run", 1, "test", start=StartFrom(tmp_path / "old", ("agent", "model", "rows")))
    with (tmp_path / "run" / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["weights/prior"]) == pytest.approx(61 / 121)
    assert float(rows[0]["agent/renewal_change"]) < 1e-5


@pytest.mark.slow
def test_a_run_has_learned_from_its_last_block_and_reports_the_warm_up(tmp_path):
    settings = change(tiny_of("dhmbpo"), {"steps": 90, "eval_every": 20})
    state = start_run(settings, tmp_path, 1, "test")
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["60", "80", "90"]
    assert float(rows[0]["agent/value"]) != float(rows[1]["agent/value"])
    assert rows[1]["agent/value"] == rows[2]["agent/value"]  # nothing is learned from a block that has not ended
    with (tmp_path / "evaluations.csv").open() as file:
        assert sorted({int(row["step"]) for row in csv.DictReader(file)}) == [60, 80, 90]
    assert len(state.buffer.rows) == state_buffer_rows(settings.learning)
    assert sorted(path.name for path in (tmp_path / "blocks").iterdir()) == [
        "step_00000060.safetensors",
        "step_00000080.safetensors",
    ]


@pytest.mark.slow
def test_states_of_the_last_model_are_dropped_on_request():
    long = {"double.retain": 50, "steps": 81}
    kept, cleared = (go(change(tiny_of("dhmbpo"), long | {"double.clear": clear})) for clear in (False, True))
    last = cleared.log.metrics["imagined/rows"]
    assert int(cleared.buffer.size) == last
    assert int(kept.buffer.size) > last


@pytest.mark.slow
def test_termination_may_be_learned(tmp_path):
    start_run(change(tiny_of("dhmbpo"), {"termination": "learned", "steps": 81}), tmp_path, 1, "test")
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(float(row["ending/terminal_rows"]) > 0 for row in rows)
    assert sum(float(row["imagined/terminated"]) for row in rows) > 0


def test_the_policy_stays_the_same_within_a_block():
    seen = {}

    def after(state, step):
        seen[state.step] = np.asarray(state.agent.actor.layers[0].w).tobytes()

    go(tiny_of("dhmbpo"), after_step=after)
    assert len({seen[step] for step in range(60, 80)}) == 1
    assert len({seen[step] for step in (59, 60, 80, 100, 120, 140, 160)}) == 7  # the last one too has been learned from
