"""Transitions of a Minari dataset, as a prior block of a run."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box

from pdml.core.errors import UserError
from pdml.data import from_minari


def dataset(*episodes):
    return SimpleNamespace(id="some/data-v0", iterate_episodes=lambda: iter(episodes))


def episode(steps, first=0.0, **changes):
    plain = {
        "observations": first + np.arange(2.0 * (steps + 1)).reshape(-1, 2),
        "actions": np.full((steps, 1), 0.5),
        "rewards": np.arange(float(steps)),
        "terminations": np.arange(steps) == steps - 1,
    }
    return SimpleNamespace(**(plain | changes))


def test_the_last_observation_of_an_episode_is_only_a_next_one():
    found = from_minari(dataset(episode(3), episode(2, first=100.0)))
    np.testing.assert_array_equal(found["obs"][:, 0], [0.0, 2.0, 4.0, 100.0, 102.0])
    np.testing.assert_array_equal(found["next_obs"][:, 0], [2.0, 4.0, 6.0, 102.0, 104.0])
    np.testing.assert_array_equal(found["reward"], [0.0, 1.0, 2.0, 0.0, 1.0])
    np.testing.assert_array_equal(found["terminated"], [False, False, True, False, True])
    assert found["action"].shape == (5, 1)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"observations": {"seen": np.zeros((3, 2))}}, "observations"),
        ({"actions": np.zeros(2, np.int64)}, "actions"),
        ({"observations": np.array([["a"], ["b"], ["c"]])}, "observations"),
    ],
)
def test_what_is_no_vector_of_numbers_is_refused(changes, what):
    with pytest.raises(UserError, match=f"{what} must be one vector of numbers per step"):
        from_minari(dataset(episode(2, **changes)))


def test_a_dataset_without_episodes_is_refused():
    with pytest.raises(UserError, match="'some/data-v0': has no episodes"):
        from_minari(dataset())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dataset_of_the_library_is_read_by_its_id(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    collected = pytest.importorskip("minari.data_collector.episode_buffer")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers, rewards = [], []
    for number in range(2):
        buffer = collected.EpisodeBuffer(
            id=number,
            observations=np.arange(24.0).reshape(8, 3) + number,
            actions=np.full((7, 1), 0.3),
            rewards=np.arange(7.0) + number,
            terminations=np.zeros(7, bool),
            truncations=np.arange(7) == 6,
            infos={},
        )
        buffers.append(buffer)
        rewards.extend(buffer.rewards)
    spaces = {"observation_space": Box(-99, 99, (3,), np.float64), "action_space": Box(-1, 1, (1,), np.float64)}
    minari.create_dataset_from_buffers("pdml/swing-v0", buffers, algorithm_name="constant", **spaces)
    found = from_minari("pdml/swing-v0")
    np.testing.assert_allclose(found["reward"], rewards, rtol=1e-6)
    assert found["obs"].shape == found["next_obs"].shape == (14, 3)
    np.testing.assert_array_equal(found["obs"][1:7], found["next_obs"][:6])
    with pytest.raises(UserError, match="minari dataset 'pdml/absent-v0': not on this machine"):
        from_minari("pdml/absent-v0")
