"""The replay buffer: which rows are stored, and that they keep their blocks."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pdml.core.transition import Layout
from pdml.data.replay import Replay

LAYOUT = Layout(2, 1)


def fill(replay, count, block_size=10):
    for i in range(count):
        obs, action = np.full(2, i, np.float32), np.full(1, -i, np.float32)
        replay.add(obs, action, 0.5 * i, obs + 1, i % 7 == 0, block=i // block_size)


@given(st.integers(1, 60), st.integers(1, 25))
def test_stored_rows_are_the_newest_in_order_and_know_their_block(count, capacity):
    replay = Replay(LAYOUT, capacity)
    fill(replay, count)
    stored = replay.stored()
    expected = np.arange(max(0, count - capacity), count)
    assert np.array_equal(stored.number, expected)
    assert np.array_equal(stored.rows[:, 0], expected)
    assert np.array_equal(stored.block, expected // 10)
    assert stored.block_sizes.sum() == count


@given(st.integers(1, 60), st.integers(1, 25), st.integers(0, 100))
def test_samples_are_written_rows_only(count, capacity, seed):
    replay = Replay(LAYOUT, capacity)
    fill(replay, count)
    numbers = replay.take(np.random.default_rng(seed).integers(replay.size, size=50))[:, 0]
    assert numbers.min() >= max(0, count - capacity)
    assert numbers.max() < count


def test_fields_stand_where_the_layout_says():
    replay = Replay(LAYOUT, 10)
    fill(replay, 8)
    rows = replay.stored().rows
    step = LAYOUT.unpack(jnp.asarray(rows))
    assert step.obs[7].tolist() == [7, 7]
    assert step.action[7].tolist() == [-7]
    assert step.reward[7] == 3.5
    assert step.next_obs[7].tolist() == [8, 8]
    assert step.terminated.tolist() == [1, 0, 0, 0, 0, 0, 0, 1]
    assert LAYOUT.inputs(rows)[7].tolist() == [7, 7, -7]
    assert LAYOUT.targets(rows)[7].tolist() == [3.5, 1, 1]


def test_what_is_handed_out_is_a_copy():
    replay = Replay(LAYOUT, 4)
    fill(replay, 4)
    stored, sample = replay.stored(), replay.take(np.array([3, 1]))
    before = stored.rows.copy(), sample.copy()
    fill(replay, 4)
    assert np.array_equal(stored.rows, before[0])
    assert np.array_equal(sample, before[1])


def test_restore_takes_over_a_wrapped_ring():
    first, second = Replay(LAYOUT, 7), Replay(LAYOUT, 7)
    fill(first, 17)
    second.restore(first.arrays())
    for replay in (first, second):
        replay.add(np.zeros(2, np.float32), np.zeros(1, np.float32), 9.0, np.zeros(2, np.float32), False, 2)
    assert second.count == 18
    for a, b in zip(first.stored(), second.stored(), strict=True):
        assert np.array_equal(a, b)
