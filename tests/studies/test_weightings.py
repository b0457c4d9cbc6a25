"""Models fitted to the same data of a run with three weightings."""

import csv

import numpy as np
import pytest
from tiny import tiny_of

from pdml.cli import main
from pdml.config.fields import change
from pdml.config.start_from import StartFrom
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, key
from pdml.data.replay import Replay
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.session import start_run
from pdml.runs.tensor_file import read_arrays
from pdml.studies import weightings
from pdml.studies.open_run import opened, restored_tree
from pdml.studies.weightings import weighted_errors
from pdml.training.state import section
from pdml.weighting.base import by_block, uniform
from pdml.weighting.policy_history import flat_actor


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose reservoir holds every state, so that shifts do not depend on which are in it."""
    path = tmp_path_factory.mktemp("runs") / "a"
    start_run(change(tiny_of("pdml"), {"archive_at": (140,), "mixture.reservoir": 200}), path, 1, "test")
    return path


def past_of(run, after_warmup):
    """Return what the run had a number of steps after its warm-up."""
    arrays, note = read_arrays(saved_checkpoints(run.path)[0])
    replay = Replay(run.layout, run.config.replay_capacity)
    replay.restore(section(arrays, "replay."))
    return weightings._past(run, replay.stored(), arrays["history.snapshots"], after_warmup, note["prior"])


def assert_weights_of_the_run(path, after_warmup, sizes):
    """The weights computed again for a step are those that the run logged there."""
    with opened(path) as run:
        past = past_of(run, after_warmup)
        weights = weightings.weightings(run.config)["pdml"](weightings._context(run, past))
    found = by_block(weights, past.real.block, len(past.real.block_sizes))
    logged, _ = read_arrays(path / "blocks" / f"step_{60 + after_warmup:08d}.safetensors")
    assert past.real.block_sizes.tolist() == sizes
    for name in ("model", "shift"):
        np.testing.assert_allclose(found[name], logged[name], rtol=1e-5)


@pytest.mark.parametrize("after_warmup", [40, 80])
def test_the_past_gives_the_weights_that_the_run_had_there(trained, after_warmup):
    assert_weights_of_the_run(trained, after_warmup, [60] + [20] * (after_warmup // 20))


@pytest.mark.slow
def test_so_it_does_for_a_run_that_started_from_transitions_of_another(trained, tmp_path):
    settings = change(tiny_of("pdml"), {"mixture.reservoir": 400, "steps": 140})
    start_run(settings, tmp_path / "b", 1, "test", start=StartFrom(trained, ("rows",)))
    assert_weights_of_the_run(tmp_path / "b", 60, [160, 60, 20, 20, 20])
    (row,) = weighted_errors(tmp_path / "b", [60], max_epochs=2, fresh=50)
    assert (row["step"], row["rows"]) == (120, 160 + 120)


def test_the_past_has_the_transitions_and_the_policy_that_were_archived(trained):
    file = trained / "archive" / "step_00000140.safetensors"
    archived, _ = read_arrays(file)
    with opened(trained) as run:
        past = past_of(run, 80)
        agent = run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
        actor = restored_tree(agent.actor, archived, "agent.actor", file)
    np.testing.assert_array_equal(past.real.rows, archived["replay.rows"])
    np.testing.assert_array_equal(past.real.block, archived["replay.block"])
    np.testing.assert_array_equal(past.policies[-1], flat_actor(actor))


def test_nothing_but_the_weights_differs(trained, monkeypatch):
    monkeypatch.setattr(weightings, "weightings", lambda config: dict.fromkeys(("one", "two"), uniform()))
    (row,) = weighted_errors(trained, [80], max_epochs=3, fresh=50)
    assert row["one_l2"] == row["two_l2"] > 0.0


def test_each_weighting_is_measured(trained, monkeypatch):
    monkeypatch.setattr("pdml.training.diagnostics.DEPTH", 3)  # its episodes end before the 20th step
    assert main(["analyse", "weightings", str(trained), "--at", "80", "--steps", "50"]) == 0
    with (trained / "analysis" / "weightings.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["step"], row["steps_after_warmup"], row["rows"], row["fresh_steps"]) == ("140", "80", "140", "50")
    names = ("uniform", "blocks", "pdml")
    assert len({row[f"{name}_l2"] for name in names}) == 3
    sizes = [float(row[f"{name}_effective_size"]) for name in names]
    assert sizes[0] == pytest.approx(140)
    # Five blocks with a fifth each: the warm-up's 60 transitions, and four times 20. Rate 0.02 asks for no more.
    assert sizes[1] == pytest.approx(1 / (1 / (25 * 60) + 4 / (25 * 20)))
    assert sizes[2] < sizes[0]
    assert all(float(row[f"{name}_mse"]) > 0.0 and int(row[f"{name}_epochs"]) > 0 for name in names)
    assert all(float(row[f"{name}_l2"]) < float(row[f"{name}_compounding"]) for name in names)


def test_a_fit_is_longer_than_those_of_the_run(trained):
    (row,) = weighted_errors(trained, [80], patience=50, max_epochs=30, fresh=50)
    assert [row[f"{name}_epochs"] for name in ("uniform", "blocks", "pdml")] == [30, 30, 30]  # the run's end at 4
    assert row["uniform_capped"] == row["blocks_capped"] == row["pdml_capped"] == 1


@pytest.mark.parametrize("step", [20, 50, 100])  # uniform weights, within a block, beyond the last fit
def test_steps_that_cannot_be_compared_are_refused(trained, step):
    with pytest.raises(UserError, match=f"at = {step}: must be a multiple of 20 from 40 to 80, where the run fitted"):
        next(weighted_errors(trained, [step]))


def test_without_what_it_needs_a_run_is_refused(trained, tmp_path):
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_text((trained / name).read_text())
    with pytest.raises(UserError, match="it has no checkpoint yet"):
        next(weighted_errors(tmp_path))
    start_run(change(tiny_of("mbpo"), {"steps": 80}), tmp_path / "short", 1, "test")
    with pytest.raises(UserError, match="too short, PDML's weights are uniform for the first 80 steps after warm-up"):
        next(weighted_errors(tmp_path / "short"))
    start_run(change(tiny_of("pdml"), {"replay_capacity": 100}), tmp_path / "small", 1, "test")
    with pytest.raises(UserError, match="its replay buffer no longer holds all transitions"):
        next(weighted_errors(tmp_path / "small"))
