"""Size of a checkpoint at the last step of a task's budget, and the time to save and to load it.

    python results/checkpoint.py Hopper-v5 Humanoid-v5

The state is as full as that of a run (rows, ring, snapshots and their kept outputs), with random numbers in it: nothing
in a checkpoint is compressed.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax.numpy as jnp
import numpy as np

from pdml.runs import checkpoint
from pdml.training.loop import TrainState, init, wire
from pdml.config.schema import Config, defaults
from pdml.envs.gym import Episode
from pdml.models.rollouts import horizon, sizes
from pdml.envs.env_spec import problem_of


def full(config: Config) -> tuple[TrainState, tuple]:
    """Return a state as at the last step."""
    problem = problem_of(config)
    layout, drawn = problem.spaces.layout, np.random.default_rng(0)
    parts = wire(config, layout, problem.known)
    state = init(config, layout, parts, Episode(0, np.zeros(layout.obs_size, np.float32)))
    state.step = config.steps
    state.replay.extend(drawn.normal(size=(config.steps, layout.width)).astype(np.float32))
    blocks = (config.steps - config.warmup_steps) // config.model_every
    flat = np.concatenate([np.asarray(leaf).ravel() for layer in state.agent.actor for leaf in layer])
    state.history.restore(
        {
            "snapshots": np.broadcast_to(flat, (blocks, len(flat))),
            "states": np.zeros((config.mixture.reservoir, layout.obs_size), np.float32),
            "outputs": np.zeros((blocks, config.mixture.reservoir, 2 * layout.action_size), np.float32),
            "counts": np.array([config.steps, config.steps]),
        }
    )
    capacity = jnp.asarray(sizes(config, horizon(config.rollouts, config.steps // config.epoch_steps))[0], jnp.int32)
    state.imagined = replace(state.imagined, capacity=capacity, size=jnp.array(capacity, copy=True))
    return state, (config, layout, parts, None)


def main() -> None:
    """Print a row for each task."""
    print("| task | steps | MB | save, s | load, s |\n|---|---|---|---|---|")
    for env in sys.argv[1:] or ["Hopper-v5"]:
        state, rest = full(defaults(env))
        with TemporaryDirectory(dir=Path.cwd()) as folder:
            file, start = Path(folder) / "state.safetensors", time.perf_counter()
            checkpoint.save(state, rest[0], file)
            saved = time.perf_counter()
            checkpoint.load(file, *rest)
            loaded = time.perf_counter() - saved
            size = file.stat().st_size / 1e6
            print(f"| {env} | {state.step} | {size:.0f} | {saved - start:.1f} | {loaded:.1f} |")


if __name__ == "__main__":
    main()
