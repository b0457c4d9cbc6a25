"""Pink noise: standard normal at every step, slow over an episode, and the same for a resumed run."""

import numpy as np
import pytest
from tiny import assert_same_state, record_run, tiny_of

from pdml.config.fields import change
from pdml.envs.episode import Episode
from pdml.training.exploration import PINK_STEPS, pink_noise, pink_sequence


def test_each_step_has_variance_one_and_the_power_falls_with_the_frequency():
    many = pink_sequence(np.random.default_rng(0), 4000)
    assert many.shape == (4000, PINK_STEPS)
    np.testing.assert_allclose(many.var(axis=0).mean(), 1.0, atol=0.02)
    np.testing.assert_allclose(many.var(axis=0), 1.0, atol=0.15)
    power = np.square(np.abs(np.fft.rfft(many, axis=1))).mean(axis=0)
    for slow, fast in ((1, 10), (10, 100), (5, 400)):
        assert power[slow] / power[fast] == pytest.approx(fast / slow, rel=0.15)


def test_an_odd_length_has_variance_one_too():
    assert pink_sequence(np.random.default_rng(0), 4000, 7).var() == pytest.approx(1.0, abs=0.03)


def test_noise_depends_on_seed_episode_and_step_alone_and_goes_on_in_long_episodes():
    def noise(seed, number, step):
        return pink_noise(seed, Episode(number, actions=[np.zeros(2)] * step), 2)

    assert noise(0, 3, 5).shape == (2,)
    np.testing.assert_array_equal(noise(0, 3, 5), noise(0, 3, 5))
    others = [noise(0, 3, 6), noise(0, 4, 5), noise(1, 3, 5), noise(0, 3, PINK_STEPS + 5)]
    assert all((noise(0, 3, 5) != other).all() for other in others)


@pytest.mark.slow
def test_a_resumed_run_with_every_setting_of_exploration_and_stability_equals_an_unbroken_run(tmp_path):
    settings = change(
        tiny_of("dhmbpo"),
        {
            "agent.exploration": "pink",
            "double.actor_average": 0.1,
            "double.actor_clip": 1.0,
            "double.kl_bound": 0.1,
            "double.keep_moments": True,
        },
    )
    run = record_run(settings, tmp_path)
    for stop in (100, 113):
        assert_same_state(run.resume_at(stop), run.state)
