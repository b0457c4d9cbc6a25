"""The reservoir: slots by hand, and a sample that is uniform over all that was ever offered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdml.core.reservoir import reservoir_slots

CAPACITY, OFFERED = 4, 12


def test_the_first_items_fill_the_slots_in_order_whatever_is_drawn():
    assert reservoir_slots(0, np.array([0.9, 0.0, 0.5]), 3).tolist() == [0, 1, 2]
    assert reservoir_slots(2, np.array([0.0]), 3).tolist() == [2]


def test_a_later_item_takes_the_slot_that_is_drawn_among_all_items_so_far():
    """The 11th, 12th and 13th item draw among 11, 12 and 13 numbers; those beyond the capacity have no slot."""
    assert reservoir_slots(10, np.array([0.0, 0.29, 0.99]), 4).tolist() == [0, 3, 12]
    assert reservoir_slots(0, np.array([0.9, 0.9, 0.5, 0.5]), 2).tolist() == [0, 1, 1, 2]


@given(st.integers(1, 5), st.lists(st.floats(0.0, 1.0, exclude_max=True), min_size=1, max_size=20), st.integers(0, 20))
def test_slots_do_not_depend_on_how_the_stream_is_divided(capacity, draws, cut):
    whole = reservoir_slots(0, np.array(draws), capacity)
    parts = [reservoir_slots(0, np.array(draws[:cut]), capacity)]
    parts.append(reservoir_slots(len(draws[:cut]), np.array(draws[cut:]), capacity))
    assert whole.tolist() == np.concatenate(parts).tolist()
    assert (whole <= np.maximum(np.arange(len(draws)), capacity - 1)).all()


@pytest.mark.parametrize("parts", [1, 3, 12])
def test_every_item_is_kept_with_the_same_chance(parts):
    trials, kept = 3000, np.zeros(OFFERED)
    for seed in range(trials):
        rng, sample = np.random.default_rng(seed), np.full(CAPACITY, -1)
        for items in np.split(np.arange(OFFERED), parts):
            for item, slot in zip(items, reservoir_slots(int(items[0]), rng.random(len(items)), CAPACITY), strict=True):
                if slot < CAPACITY:
                    sample[slot] = item
        kept[sample] += 1
    share = CAPACITY / OFFERED
    assert kept.sum() == CAPACITY * trials
    assert np.abs(kept / trials - share).max() < 4 * np.sqrt(share * (1 - share) / trials)
