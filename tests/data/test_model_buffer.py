"""The model buffer: a ring that keeps the newest rows, and its size."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import PHYSICAL, change_capacity, newest, ring_of, write

from pdml.config.defaults import defaults
from pdml.core.transition import Layout
from pdml.data.model_buffer import branch_length, branch_sizes, compact, empty_buffer


@settings(max_examples=60, deadline=None)
@given(st.integers(6, PHYSICAL), st.lists(st.integers(0, 6), max_size=12), st.integers(6, PHYSICAL))
def test_buffer_keeps_the_newest_rows_in_order_through_wraps_and_a_change_of_capacity(capacity, counts, later):
    ring, written = ring_of(capacity), []
    for i, count in enumerate(counts):
        if i == len(counts) // 2:
            ring = change_capacity(ring, jnp.asarray(later, jnp.int32))
            written, capacity = written[-min(capacity, later) :], later
        rows = np.arange(6, dtype=np.float32)[:, None] + 10 * i + 1
        ring = write(ring, jnp.asarray(rows), jnp.asarray(count, jnp.int32))
        written = (written + rows[:count, 0].tolist())[-capacity:]
        assert newest(ring) == written


def test_compaction_keeps_order():
    rows = jnp.arange(5.0)[:, None]
    kept = compact(rows, jnp.array([False, True, False, True, True]))
    assert np.asarray(kept)[:3, 0].tolist() == [1, 3, 4]


def test_branch_length_follows_the_schedule():
    hopper = defaults("Hopper-v5").learning.rollouts
    assert [branch_length(hopper, e) for e in (0, 20, 25, 26, 60, 100, 200)] == [1, 1, 1, 2, 8, 15, 15]
    humanoid = defaults("Humanoid-v5").learning.rollouts
    assert [branch_length(humanoid, e) for e in (0, 20, 300, 400)] == [1, 1, 25, 25]
    assert {branch_length(defaults("Walker2d-v5").learning.rollouts, e) for e in range(200)} == {1}


def test_buffer_holds_an_epoch_of_fits_and_every_depth_when_capped():
    config = defaults("Hopper-v5").learning
    assert branch_sizes(config, 1) == (400_000, 100_000)
    assert branch_sizes(config, 2) == (800_000, 100_000)
    for length in (3, 8, 15):
        capacity, branches = branch_sizes(config, length)
        assert capacity == 1_000_000
        assert 0.99e6 < 4 * length * branches <= 1e6
    assert empty_buffer(config, Layout(11, 3), 125_000).rows.shape == (1_000_000, 27)
    assert empty_buffer(config, Layout(11, 3), 30_000).rows.shape == (400_000, 27)
