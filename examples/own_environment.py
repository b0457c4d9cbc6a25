"""Learn in an environment of your own, by `python examples/own_environment.py`: park a cart on rails.

The environment is registered, so `module:Id` names it, and the shell can make it where Python finds the module:

    PYTHONPATH=examples pdml resume runs/parking --steps 3000        # also eval, video and others
"""

import argparse

import gymnasium
import numpy as np

import pdml


class Parking(gymnasium.Env):
    """Push a cart of 1 kg to the mark at 0 m and hold it there; where the rails end, so does the episode."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))  # position in m, speed in m/s
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))  # force in N
    rails_end = 2.0  # m

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only source of randomness: so resuming is exact
        self.state = self.np_random.uniform([-1.5, -1.0], [1.5, 1.0]).astype(np.float32)
        return self.state, {}

    def step(self, action):
        (position, speed), force = self.state, action[0]
        speed += 0.05 * (force - 0.2 * np.tanh(10.0 * speed) - 0.3 * speed)  # with dry and viscous friction
        position += 0.05 * speed
        self.state = np.array([position, speed], np.float32)
        reward = 1.0 - (position / self.rails_end) ** 2 - 0.01 * force**2
        return self.state, reward, abs(position) > self.rails_end, False, {}


def off_rails(obs, action, next_obs):
    """Say which steps of a batch end an episode; without such a function the model learns it."""
    return abs(next_obs[:, 0]) > Parking.rails_end


if "Parking-v0" not in gymnasium.registry:  # a script that is also imported by its name is executed twice
    gymnasium.register("Parking-v0", entry_point="own_environment:Parking", max_episode_steps=100)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="learn to park a cart")
    parser.add_argument("--steps", type=int, default=1500, help="6 or more")
    steps = parser.parse_args().steps
    print(*(f"{finding.kind}: {finding.text}" for finding in pdml.check_env("own_environment:Parking-v0")), sep="\n")
    agent = pdml.Agent(
        "own_environment:Parking-v0",
        termination="own_environment:off_rails",
        run_dir="runs/parking",
        warmup_steps=steps // 3,
        updates_per_step=5,
        dynamics={"hidden_sizes": (64, 64), "weight_decay": (1e-4, 1e-4, 1e-4)},  # enough for so small a system
        rollouts={"batch": 10_000},
    )
    print(f"mean return: {agent.learn(steps).evaluate(episodes=10).mean:.1f} of at most 100")
    agent.close()
