"""The schedule of a run: warm-up, blocks and epochs, by hand."""

import pytest

from pdml.config.schedule import Schedule
from pdml.config.schema import Config

PAPER = Schedule(warmup_steps=5000, block_steps=250, epoch_steps=1000)
ODD = Schedule(warmup_steps=7, block_steps=3, epoch_steps=5)
"""Nothing is a multiple of anything: blocks begin at 7, 10, 13, 16, epochs at 7, 12, 17."""


def test_a_configuration_has_the_schedule_of_its_settings():
    assert Config(warmup_steps=5000, model_every=250, epoch_steps=1000).schedule == PAPER
    assert Config(warmup_steps=7, model_every=3, epoch_steps=5).schedule == ODD


def test_steps_are_counted_from_the_end_of_the_warm_up():
    assert [PAPER.after_warmup(step) for step in (0, 4999, 5000, 5001, 6250)] == [-5000, -1, 0, 1, 1250]


def test_the_step_after_the_warm_up_is_the_first_that_does_not_belong_to_it():
    assert [ODD.in_warmup(step) for step in (0, 6, 7, 8)] == [True, True, False, False]


@pytest.mark.parametrize(("schedule", "boundaries"), [(PAPER, [5000, 5250, 5500, 5750, 6000]), (ODD, [7, 10, 13, 16])])
def test_boundaries_are_the_end_of_the_warm_up_and_of_each_block(schedule, boundaries):
    """In the warm-up there is none, although 4750 and 4 are whole blocks before its end."""
    assert [step for step in range(boundaries[-1] + 1) if schedule.at_boundary(step)] == boundaries


def test_the_next_step_belongs_to_a_block_and_the_warm_up_is_block_0():
    assert [ODD.block(step) for step in range(14)] == [0] * 7 + [1, 1, 1, 2, 2, 2, 3]
    assert [PAPER.block(step) for step in (0, 4999, 5000, 5249, 5250, 6000)] == [0, 0, 1, 1, 2, 5]


def test_blocks_are_counted_when_they_have_ended():
    assert [ODD.blocks(step) for step in range(14)] == [0] * 10 + [1, 1, 1, 2]
    assert [PAPER.blocks(step) for step in (0, 4999, 5000, 5249, 5250, 6000)] == [0, 0, 0, 0, 1, 4]


def test_the_newest_block_has_its_steps_so_far_and_the_warm_up_all_of_its_own():
    assert [ODD.steps_of_block(step) for step in range(7, 15)] == [7, 1, 2, 3, 1, 2, 3, 1]
    assert [PAPER.steps_of_block(step) for step in (5000, 5001, 5249, 5250, 5251)] == [5000, 1, 249, 250, 1]


def test_epochs_are_counted_from_the_end_of_the_warm_up():
    assert [ODD.epoch(step) for step in range(7, 18)] == [0] * 5 + [1] * 5 + [2]
    assert [PAPER.epoch(step) for step in (5000, 5999, 6000, 25_000)] == [0, 0, 1, 20]


def test_an_epoch_starts_every_epoch_steps():
    assert [step for step in range(7, 18) if ODD.starts_epoch(step)] == [7, 12, 17]
