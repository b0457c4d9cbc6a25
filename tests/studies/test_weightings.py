"""Models fitted to the same data of a run with three weightings."""

import csv

import jax
import numpy as np
import pytest
from tiny import tiny_of

from pdml.cli import main
from pdml.config.fields import change
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
    snapshots = arrays["history.snapshots"][: 1 + after_warmup // 20]
    return weightings._past(run, replay.stored(), snapshots, after_warmup, note["prior"])


@pytest.mark.parametrize("after_warmup", [40, 80])
def test_the_past_gives_the_weights_that_the_run_had_there(trained, after_warmup):
    with opened(trained) as run:
        past = past_of(run, after_warmup)
        weights = weightings.weightings(run.config)["pdml"](weightings._context(run, past))
    found = by_block(weights, past.real.block, len(past.real.block_sizes))
    logged, _ = read_arrays(trained / "blocks" / f"step_{60 + after_warmup:08d}.safetensors")
    assert past.real.block_sizes.tolist() == [60] + [20] * (after_warmup // 20)
    for name in ("model", "shift"):
        np.testing.assert_allclose(found[name], logged[name], rtol=1e-5)


def test_the_past_has_the_transitions_and_the_policy_that_were_archived(trained):
    file = trained / "archive" / "step_00000140.safetensors"
    archived, _ = read_arrays(file)
    with opened(trained) as run:
        past = past_of(run, 80)
        agent = run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
        actor = restored_tree(agent.actor, archived, "agent.actor", file)
    np.testing.assert_array_equal(past.real.rows, archived["replay.rows"])
    np.testing.assert_array_equal(past.real.block, archived["replay.block"])
    jax.tree.map(np.testing.assert_array_equal, past.actors[-1], actor)


def test_nothing_but_the_weights_differs(trained, monkeypatch):
    monkeypatch.setattr(weightings, "weightings", lambda config: dict.fromkeys(("one", "two"), uniform()))
    (row,) = weighted_errors(trained, [80], fresh=50)
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


def test_steps_that_cannot_be_compared_are_refused(trained, tmp_path):
    with pytest.raises(UserError, match="at = 20: no policy is kept of that step; the nearest is 40"):
        next(weighted_errors(trained, [20]))  # weights are still uniform there
    with pytest.raises(UserError, match="at = 100: no policy is kept of that step; the nearest is 80"):
        next(weighted_errors(trained, [100]))  # the run ended before it fitted a model there
    config = trained / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "metadata.json").write_text((trained / "metadata.json").read_text())
    with pytest.raises(UserError, match="has no checkpoint, which keeps its transitions and policies"):
        next(weighted_errors(tmp_path))
