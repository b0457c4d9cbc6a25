"""Learn to control a plant behind a socket, with `act` and `observe`.

    python examples/socket_controller.py --port PORT        # as socket_plant.py has printed it

Stop it, kill it, restart it: the same command continues from the last checkpoint, in whatever state the plant is.
"""

import argparse
import json
import socket
from pathlib import Path

import gymnasium
import numpy as np

import pdml

SPACES = (gymnasium.spaces.Box(0.0, 1.0, (2,)), gymnasium.spaces.Box(0.0, 1.0, (1,)))  # level and goal; valve
RUN = Path("runs/tank")


def new_agent(warmup_steps):
    return pdml.Agent(
        SPACES,
        run_dir=RUN,
        warmup_steps=warmup_steps,
        checkpoint_every=100,  # a kill costs so many steps at most
        updates_per_step=5,
        dynamics={"hidden_sizes": (64, 64), "weight_decay": (1e-4, 1e-4, 1e-4)},  # enough for so small a plant
        rollouts={"batch": 10_000},
    )


def receive(lines):
    line = lines.readline()
    if not line:
        raise ConnectionError("the plant has gone")
    return json.loads(line)


parser = argparse.ArgumentParser(description="control the tank of socket_plant.py")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--steps", type=int, default=2000, help="in all, those before a restart included")
options = parser.parse_args()
with socket.create_connection(("127.0.0.1", options.port), timeout=60.0) as plant, plant.makefile("rw") as lines:
    agent = pdml.Agent.load(RUN) if RUN.exists() else new_agent(options.steps // 4)
    print(f"from step {agent.steps}")
    try:
        obs = receive(lines)["obs"]
        while agent.steps < options.steps:
            action = agent.act(np.array(obs))  # at the first step of a block this fits the model
            print(json.dumps({"action": action.tolist()}), file=lines, flush=True)
            after = receive(lines)
            agent.observe(np.array(after["obs"]), after["reward"], after["terminated"], after["truncated"])
            obs = receive(lines)["obs"] if after["terminated"] or after["truncated"] else after["obs"]
    finally:
        agent.save()
        print(f"to step {agent.steps}; evaluations.csv and policy.safetensors are in {RUN}")
        agent.close()
