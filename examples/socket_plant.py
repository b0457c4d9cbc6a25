"""A plant behind a socket: a tank whose inlet valve is to hold the water at a level. It knows nothing of PDML.

    python examples/socket_plant.py        # prints its port; then start socket_controller.py; Ctrl-C ends it

Every line is JSON. To a controller that connects, the plant tells its state, {"obs": [...]}. Each {"action": [...]}
is answered by {"obs", "reward", "terminated", "truncated"}, and at the end of an episode by a second line: the state
that the next one begins with.
"""

import argparse
import json
import random
import socket

PATIENCE = 600.0  # seconds; a controller that is silent for longer has gone: learning takes time, but not so much


class Tank:
    """Water above an outlet. Below 0.2 the pump runs dry and above 0.8 it spills: both end the episode."""

    def __init__(self, length):
        self.length, self.random = length, random.Random(0)

    def refill(self):
        self.level, self.goal, self.time = self.random.uniform(0.4, 0.6), self.random.uniform(0.4, 0.6), 0
        return {"obs": [self.level, self.goal]}

    def step(self, valve):
        self.level += 0.2 * min(max(valve, 0.0), 1.0) - 0.14 * max(self.level, 0.0) ** 0.5
        self.time += 1
        terminated = not 0.2 < self.level < 0.8
        answer = {"obs": [self.level, self.goal], "reward": 1.0 - 2.0 * abs(self.level - self.goal)}
        return {**answer, "terminated": terminated, "truncated": self.time >= self.length and not terminated}


def serve(tank, controller):
    """Answer one controller until it has gone; the water stays where it is."""
    controller.settimeout(PATIENCE)
    with controller, controller.makefile("rw") as lines:
        print(json.dumps({"obs": [tank.level, tank.goal]}), file=lines, flush=True)
        while request := lines.readline():
            answer = tank.step(json.loads(request)["action"][0])
            print(json.dumps(answer), file=lines, flush=True)
            if answer["terminated"] or answer["truncated"]:
                print(json.dumps(tank.refill()), file=lines, flush=True)


parser = argparse.ArgumentParser(description="serve a tank on loopback TCP, to one controller after the other")
parser.add_argument("--port", type=int, default=0, help="0, the default: any that is free")
parser.add_argument("--length", type=int, default=100, help="time steps after which an episode is truncated")
options = parser.parse_args()
tank = Tank(options.length)
tank.refill()
with socket.create_server(("127.0.0.1", options.port)) as server:
    print(f"listening on port {server.getsockname()[1]}", flush=True)
    while True:
        try:
            serve(tank, server.accept()[0])
        except (OSError, ValueError) as error:  # a controller that was killed, is silent, or sent something else
            print(f"lost the controller: {error}", flush=True)
