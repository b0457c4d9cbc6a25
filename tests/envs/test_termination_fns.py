"""The termination rules: at their limits by hand, and against the environments themselves."""

import jax.numpy as jnp
import numpy as np
import pytest

from pdml.config.tasks import TASKS, env_ids
from pdml.envs.episode import begin_episode
from pdml.envs.gym import make_env
from pdml.envs.termination_fns import RULES


def test_every_family_has_a_rule():
    assert set(RULES) == set(TASKS)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", env_ids())
def test_termination_rule_agrees_with_the_environment_on_ten_thousand_steps(env_id):
    env, rng = make_env(env_id).env, np.random.default_rng(0)  # without our checks of each step, which take longer
    observed, ended, limits, episodes = [], [], 0, 0
    begin_episode(env, 0, 0)
    held = np.zeros(env.action_space.shape, np.float32)
    for i in range(10_000):
        if i % 5 == 0:  # actions held for a while reach more of the space than white noise
            held = rng.uniform(-1, 1, held.shape).astype(np.float32)
        next_obs, _, terminated, truncated, _ = env.step(held)
        observed.append(np.asarray(next_obs, np.float32))
        ended.append(terminated)
        limits += truncated and not terminated
        if terminated or truncated:
            episodes += 1
            begin_episode(env, 0, episodes)
    found = np.asarray(RULES[env_id.rpartition("-")[0]](jnp.asarray(np.stack(observed))))
    assert np.array_equal(found, ended)
    if env_id.startswith(("HalfCheetah", "Pusher")):
        assert limits == 10_000 // (100 if env_id.startswith("Pusher") else 1000)
        assert not any(ended)
    else:
        assert sum(ended) > 20  # both outcomes were seen
    env.close()


@pytest.mark.parametrize(
    ("name", "row", "ended"),
    [
        ("Hopper", [1.2, 0.0, -101.0], True),  # both sides of the bound count
        ("Hopper", [1.2, 0.0, 99.0], False),
        ("Hopper", [1.2, 0.0, np.nan], True),
        ("Hopper", [0.7, 0.0, 0.0], True),
        ("Hopper", [1.2, -0.2, 0.0], True),
        ("Walker2d", [2.0, 0.0], True),
        ("Walker2d", [1.9, 0.99], False),
        ("Ant", [1.0, 0.0], False),
        ("Ant", [0.19, 0.0], True),
        ("Ant", [0.5, np.inf], True),
        ("Humanoid", [1.0, 0.0], True),
        ("Humanoid", [1.5, 0.0], False),
        ("InvertedPendulum", [0.0, 0.21], True),
        ("InvertedPendulum", [0.0, np.nan], True),
        ("InvertedPendulum", [5.0, -0.19], False),
        ("HalfCheetah", [1e9, 0.0], False),
        ("Pusher", [1e9, 0.0], False),
    ],
)
def test_rules_at_their_limits(name, row, ended):
    assert bool(RULES[name](jnp.asarray([row], jnp.float32))[0]) is ended
