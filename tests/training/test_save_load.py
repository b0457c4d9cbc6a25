"""A run that is saved, loaded and resumed equals the unbroken run, bit for bit, for every method."""

import pytest
from tiny import SAVED_AT, assert_same_state, each_method, go, start, tiny_of

from pdml.config.fields import change
from pdml.core.stopwatch import Stopwatch
from pdml.runs.checkpoint import load_checkpoint, save_checkpoint
from pdml.runs.ledger import Ledger
from pdml.training.diagnostics import FreshReservoir
from pdml.training.loop import Training, train

STOPS = {"pdml": SAVED_AT, "maper-mbpo": (100, 113), "pdml-dhmbpo": (100, 113)}


@pytest.mark.parametrize("method", each_method())
def test_a_resumed_run_equals_an_unbroken_run_bit_for_bit(method, tiny_run):
    run = tiny_run(method)
    for stop in STOPS.get(method, (113,)):
        assert_same_state(run.resume_at(stop), run.state)


@pytest.mark.parametrize(
    ("method", "target_norm"), [("pdml", "delta"), pytest.param("ampo", "direct", marks=pytest.mark.slow)]
)
def test_a_resumed_run_with_standardised_targets_equals_an_unbroken_run(method, target_norm, tiny_run):
    run = tiny_run(method, target_norm)
    assert_same_state(run.resume_at(113), run.state)


@pytest.mark.slow
def test_a_run_may_be_continued_to_more_steps_than_were_planned(tmp_path):
    """The longer run has longer branches, so its model buffer is larger."""
    growing = {"rollouts.first_epoch": 1, "rollouts.last_epoch": 3, "rollouts.longest": 3}
    longer = change(tiny_of("pdml"), growing)
    shorter = change(longer, {"steps": 100})
    env, layout, parts = start(longer)
    file = tmp_path / "state.safetensors"
    save_checkpoint(go(shorter, parts), Ledger(FreshReservoir(layout.width)), shorter, file)
    loaded = load_checkpoint(file, longer, layout, parts.recipe, env).state
    training = Training(longer.learning, parts, Stopwatch())
    assert_same_state(train(loaded, env, training, longer.run.steps), go(longer, parts))
