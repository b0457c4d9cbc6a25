"""Prioritised minibatches: probabilities and importance by hand, and priorities that stay with their rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rings import PHYSICAL, change_capacity, newest, ring_of, write

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.core.errors import Diverged
from pdml.core.transition import Layout
from pdml.data.minibatches import Minibatches, PrioritisedMinibatches, UniformMinibatches, draw_prioritised
from pdml.data.replay import Replay

LAYOUT = Layout(1, 1)
CONFIG = change(
    defaults("InvertedPendulum-v5", "maper-mbpo"), {"batch_size": 10, "real_ratio": 0.4, "updates_per_step": 3}
).learning


def replay_of(count, capacity=50):
    replay = Replay(LAYOUT, capacity)
    for i in range(count):
        zero = np.zeros(1, np.float32)
        replay.add(zero + i, zero, 0.0, zero, False, 0)
    return replay


def ring_with(size):
    rows = jnp.arange(6, dtype=jnp.float32)[:, None]
    ring = ring_of(PHYSICAL)
    while int(ring.size) < size:
        ring = write(ring, rows, jnp.asarray(min(6, size - int(ring.size)), jnp.int32))
    return ring


def test_rows_come_in_proportion_to_their_weights_and_importance_undoes_it():
    weights = np.array([1.0, 2.0, 5.0])
    rows, importance = draw_prioritised(weights, (400, 100), np.random.default_rng(0))
    share = np.bincount(rows.ravel()) / rows.size
    np.testing.assert_allclose(share, weights / 8, atol=0.01)
    np.testing.assert_allclose(importance, (1.0 / weights)[rows] / (1.0 / weights)[rows].max(axis=1, keepdims=True))
    assert importance.max() == 1.0
    uniform_again = np.bincount(rows.ravel(), weights=importance.ravel())
    np.testing.assert_allclose(uniform_again / uniform_again.sum(), 1 / 3, atol=0.01)


def test_new_rows_have_the_largest_priority_and_chosen_rows_their_own_to_the_power():
    sampler, replay = PrioritisedMinibatches(CONFIG, 4), replay_of(5)
    sampler.note_new_rows(ring_with(12), 12)
    chosen = sampler.choose(replay, 0)
    assert chosen.real.shape == (3, 4)
    assert chosen.imagined.shape == (3, 6)
    np.testing.assert_allclose(chosen.importance, 1.0)  # nothing is known yet
    # Two updates on one real and one imagined row each; real row 1 comes twice, and the later priority stands.
    learned = Minibatches(np.array([[1], [1]]), np.array([[3], [7]]), None)
    sampler.update_priorities(learned, np.float32([[100.0, 0.25], [9.0, 4.0]]))
    np.testing.assert_allclose(sampler.arrays()["real"], [1, 3, 1, 1, 1], rtol=1e-6)
    expected = np.ones(12)
    expected[[3, 7]] = 0.5, 2.0
    np.testing.assert_allclose(sampler.arrays()["imagined"][:12], expected, rtol=1e-6)
    replay.add(np.zeros(1, np.float32), np.zeros(1, np.float32), 0.0, np.zeros(1, np.float32), False, 1)
    sampler.choose(replay, 1)
    assert sampler.arrays()["real"][5] == pytest.approx(10.0)  # the largest of a real row so far
    sampler.note_new_rows(ring_with(14), 2)
    assert sampler.arrays()["imagined"][13] == pytest.approx(2.0)  # the largest of an imagined row


@settings(max_examples=40, deadline=None)
@given(st.integers(6, PHYSICAL), st.lists(st.integers(1, 6), min_size=1, max_size=10), st.integers(6, PHYSICAL))
def test_priorities_follow_their_imagined_rows_through_wraps_and_changes_of_capacity(capacity, counts, later):
    sampler, ring, known = PrioritisedMinibatches(CONFIG, 4), ring_of(capacity), {}
    for i, count in enumerate(counts):
        if i == len(counts) // 2:
            ring = change_capacity(ring, jnp.asarray(later, jnp.int32))
        rows = np.arange(6, dtype=np.float32)[:, None] + 10 * i + 1
        ring = write(ring, jnp.asarray(rows), jnp.asarray(count, jnp.int32))
        sampler.note_new_rows(ring, count)
        known |= dict.fromkeys(rows[:count, 0].tolist(), sampler._largest_imagined)
        place, size = np.asarray(ring.rows)[:, 0], int(ring.size)
        slots = np.array([[0, size - 1, size // 2]] * 1)
        priorities = np.float32([[0.5 + i, 2.0 * i, 1.0]])
        sampler.update_priorities(Minibatches(np.zeros((1, 0), int), slots, None), priorities)
        for slot, priority in zip(slots[0], priorities[0], strict=True):
            known[float(place[slot])] = np.sqrt(float(priority) + 1e-9)
        weights = sampler.arrays()["imagined"]
        for row in newest(ring):
            assert weights[place[: int(ring.capacity)] == row][0] == pytest.approx(known[row])


def test_priorities_of_diverged_critics_stop_the_run_by_name():
    sampler = PrioritisedMinibatches(CONFIG, 4)
    with pytest.raises(Diverged, match="the critics have diverged"):
        sampler.update_priorities(Minibatches(np.array([[1]]), np.array([[3]]), None), np.float32([[np.nan, 1.0]]))


def test_priorities_survive_saving():
    sampler, replay = PrioritisedMinibatches(CONFIG, 4), replay_of(70)
    sampler.note_new_rows(ring_with(12), 12)
    chosen = sampler.choose(replay, 0)
    sampler.update_priorities(chosen, np.random.default_rng(0).exponential(size=(3, 10)).astype(np.float32))
    other = PrioritisedMinibatches(CONFIG, 4)
    other.restore(sampler.arrays())
    replay.add(np.zeros(1, np.float32), np.zeros(1, np.float32), 0.0, np.zeros(1, np.float32), False, 1)
    for a, b in zip(sampler.choose(replay, 5), other.choose(replay, 5), strict=True):
        assert np.array_equal(a, b)


def test_uniform_chooses_stored_real_rows_and_leaves_the_imagined_to_the_device():
    chosen = UniformMinibatches(CONFIG, 4).choose(replay_of(20), 3)
    assert chosen.real.shape == (3, 4)
    assert chosen.real.max() < 20
    assert chosen.imagined is None
    assert chosen.importance is None
    assert jax.tree.leaves(UniformMinibatches(CONFIG, 4).arrays()) == []
