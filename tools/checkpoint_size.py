"""Print the size of a checkpoint at the last step of a task's budget, and the time to save and to load it.

    python tools/checkpoint_size.py Hopper-v5 Humanoid-v5

The state is as full as that of a run: transitions, model buffer, snapshots and their kept outputs. The numbers in it
are random, since nothing in a checkpoint is compressed.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import jax.numpy as jnp
import numpy as np

from pdml.config.defaults import defaults
from pdml.config.schema import Settings
from pdml.core.transition import Layout
from pdml.data.model_buffer import branch_length, branch_sizes
from pdml.envs.env_spec import spec_of
from pdml.envs.episode import Episode
from pdml.runs.checkpoint import load_checkpoint, save_checkpoint
from pdml.runs.ledger import Ledger
from pdml.training.diagnostics import FreshReservoir
from pdml.training.methods import wire
from pdml.training.recipe import Recipe
from pdml.training.state import TrainState, initial_state
from pdml.weighting.policy_history import flat_actor


def full_state(settings: Settings) -> tuple[TrainState, Layout, Recipe]:
    """Return a state as at the last step, and what loading it needs."""
    config, steps, spec = settings.learning, settings.run.steps, spec_of(settings)
    layout, rng = spec.spaces.layout, np.random.default_rng(0)
    recipe = wire(config, layout, spec.known).recipe
    state = initial_state(config, layout, recipe, Episode(0, np.zeros(layout.obs_size, np.float32)), steps)
    state.replay.extend(rng.normal(size=(steps, layout.width)).astype(np.float32))
    blocks, reservoir, flat = config.schedule.blocks(steps), config.mixture.reservoir, flat_actor(state.agent.actor)
    state.history.restore(
        {
            "snapshots": np.broadcast_to(flat, (blocks, len(flat))),
            "states": np.zeros((reservoir, layout.obs_size), np.float32),
            "outputs": np.zeros((blocks, reservoir, 2 * layout.action_size), np.float32),
            "counts": np.array([steps, steps]),
        }
    )
    length = branch_length(config.rollouts, config.schedule.epoch(steps))
    capacity = jnp.asarray(branch_sizes(config, length)[0], jnp.int32)
    buffer = replace(state.buffer, capacity=capacity, size=jnp.array(capacity, copy=True))
    return replace(state, step=steps, model_buffer=buffer), layout, recipe


def main() -> None:
    """Print a row for each task."""
    print("| task | steps | MB | save, s | load, s |\n|---|---|---|---|---|")
    for env in sys.argv[1:] or ["Hopper-v5"]:
        settings = defaults(env)
        state, layout, recipe = full_state(settings)
        with TemporaryDirectory(dir=Path.cwd()) as folder:
            file, start = Path(folder) / "state.safetensors", time.perf_counter()
            save_checkpoint(state, Ledger(FreshReservoir(layout.width)), settings, file)
            saved = time.perf_counter()
            load_checkpoint(file, settings, layout, recipe, None)
            loaded = time.perf_counter() - saved
            size = file.stat().st_size / 1e6
            print(f"| {env} | {state.step} | {size:.0f} | {saved - start:.1f} | {loaded:.1f} |")


if __name__ == "__main__":
    main()
