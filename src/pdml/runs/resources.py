"""What a run will need in memory, disk and time; it is refused where there is less memory or disk."""

import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pdml.config.methods import METHODS, Feature
from pdml.config.schema import Config, Settings
from pdml.core.errors import UserError
from pdml.core.stopwatch import duration
from pdml.core.transition import Layout
from pdml.data.model_buffer import buffer_rows
from pdml.dhmbpo.learner import state_buffer_rows
from pdml.runs.device import matmul_peak

BASE_MEMORY = 600e6
"""Bytes of the process with JAX, compiled programs and MuJoCo, before any data."""

EPOCHS = 10
"""Epochs per fit, on average: the patience and what comes before it."""

EFFICIENCY = 0.5
"""Share of the machine's matmul peak that updates reach; see pdml bench."""


class Needs(NamedTuple):
    """Bytes, and the work in FLOP."""

    memory: float
    checkpoint: float
    disk: float
    flop: float
    first: float
    """FLOP before the first evaluation, where that waits for an update phase."""


def estimate(settings: Settings, layout: Layout, prior: int = 0, prior_learned: int = 0) -> Needs:
    """Estimate what a run needs at its last step, where it needs most.

    Args:
        prior: Transitions from before the run.
        prior_learned: How many of them its agent has learned from already.
    """
    config, steps, method = settings.learning, settings.run.steps, METHODS[settings.learning.method]
    width, rows = 4.0 * layout.width, min(steps + prior, config.replay_capacity)
    blocks = config.schedule.blocks(steps)
    sizes = _network_sizes(config, layout)
    saved = 4.0 * (3 * sizes.actor + 4 * sizes.critics) + rows * width
    working = rows * width
    if method.has_model:
        saved += 4.0 * 3 * sizes.members + _buffer_bytes(config, layout, steps) + blocks * 4.0 * sizes.actor
        if method.reads((Feature.DISTANCE,)):
            saved += blocks * config.mixture.reservoir * 2 * layout.action_size * 4.0
        working += rows * (6 * width + 12.0 * config.dynamics.num_members)
    disk = 3 * saved + blocks * (4096 + 6.0 * blocks) + 2e6
    if method.is_double_horizon:
        flop, first = (_phase_flop(config, sizes, (prior, prior_learned), steps, count) for count in (blocks, 0))
    else:
        flop, first = _stepwise_flop(config, sizes, steps, rows, blocks), 0.0
    return Needs(BASE_MEMORY + 3 * saved + working, saved, disk, flop, first)


def _buffer_bytes(config: Config, layout: Layout, steps: int) -> float:
    """Return the bytes of imagined transitions, or of states."""
    if METHODS[config.method].is_double_horizon:
        return 4.0 * state_buffer_rows(config) * layout.obs_size
    return 4.0 * buffer_rows(config, steps) * layout.width


class _Sizes(NamedTuple):
    """Weights of the networks: half the FLOP per row in each."""

    actor: float
    critics: float
    members: float


def _network_sizes(config: Config, layout: Layout) -> _Sizes:
    method = METHODS[config.method]
    pair, outputs = layout.obs_size + layout.action_size, layout.obs_size + 1
    actor = _weights((layout.obs_size, *config.agent.hidden_sizes, 2 * layout.action_size))
    critics = config.agent.num_critics if method.reads((Feature.CRITIC_ENSEMBLE,)) else 2
    critic = _weights((pair, *config.agent.hidden_sizes, 1))
    outputs = outputs if method.is_double_horizon else 2 * outputs
    members = config.dynamics.num_members * _weights((pair, *config.dynamics.hidden_sizes, outputs))
    return _Sizes(actor, critics * critic, members)


def _stepwise_flop(config: Config, sizes: _Sizes, steps: int, rows: int, blocks: int) -> float:
    updates = max(config.schedule.after_warmup(steps), 0) * config.updates_per_step
    flop = updates * config.batch_size * (8 * sizes.actor + 12 * sizes.critics)
    if not METHODS[config.method].has_model:
        return flop
    return flop + EPOCHS * blocks * (rows / 2) * 6 * sizes.members


def _phase_flop(config: Config, sizes: _Sizes, before: tuple[int, int], steps: int, blocks: int) -> float:
    """Count the updates of all phases, critic-only ones too, and the fits; the first fit is several times longer.

    A fit counts with all its epochs: on Hopper nearly every fit takes them.

    Args:
        before: Prior transitions, and how many of them the agent has learned from already.
    """
    if config.schedule.in_warmup(steps):
        return 0.0
    double, dynamics = config.double, config.dynamics
    first = config.warmup_steps + before[0]
    updated = max(first - before[1], config.model_every) + blocks * config.model_every
    member = sizes.members / dynamics.num_members
    update = 6 * (double.near + 1) * sizes.actor + 4 * double.near * member + 11 * sizes.critics
    critic_only = double.critic_share * config.model_every * (blocks + 1)
    rows = first + config.model_every * np.arange(blocks + 1)
    trained = (1.0 - dynamics.holdout_ratio) * np.minimum(rows, config.replay_capacity)
    batches = np.clip(trained // dynamics.batch_size, 1, double.epoch_batches)
    epochs = dynamics.max_epochs * (batches.sum() + (double.first_factor - 1) * batches[0])
    fits = float(epochs) * dynamics.batch_size * 6 * sizes.members
    return config.batch_size * update * (updated * config.updates_per_step + critic_only / 2) + fits


def _weights(sizes: tuple[int, ...]) -> float:
    return float(sum((n + 1) * m for n, m in pairwise(sizes)))


def require(needs: Needs, path: Path) -> None:
    """Raise, with the numbers, if there is too little memory or disk."""
    free = available_memory()
    if free is not None and needs.memory > free + _own_memory():
        raise UserError(
            f"memory: the run needs about {_size(needs.memory)} at its end, {_size(free)} are free; lower "
            "replay_capacity, steps or, in MBPO's family, rollouts.max_rows"
        )
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    left = shutil.disk_usage(place).free
    kept = sum(file.stat().st_size for file in (path / "checkpoints").glob("*.safetensors"))
    if needs.disk > left + kept:
        raise UserError(
            f"run-dir = '{path}': the run needs about {_size(needs.disk)} of disk at its end (two checkpoints of "
            f"{_size(needs.checkpoint)} and one being written), {_size(left)} are free"
        )


def describe_needs(needs: Needs) -> str:
    """Say in one line what a run will need; the time is an estimate from the speed of this machine when it is idle."""
    # Products of a few milliseconds: some of them run undisturbed, also while other processes compute.
    speed = EFFICIENCY * matmul_peak(size=512, repeats=20, of_cpu=True)
    memory, disk = _size(needs.memory), _size(needs.disk)
    took, first = duration(needs.flop / speed), duration(needs.first / speed)
    line = (
        f"needs about {memory} of memory, {disk} of disk and, on an idle machine, {took} and the environment's own time"
    )
    return f"{line}; {first} of it before the first evaluation" if needs.first else line


def _size(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{max(1, round(number / 1e6))} MB"


def _own_memory() -> float:
    """Return the bytes that this process already uses."""
    status = Path("/proc/self/statm")
    return float(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0.0


def available_memory() -> float | None:
    """Return the bytes that are free, of the machine or of the container, as far as the system tells."""
    info, found = Path("/proc/meminfo"), []
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            found.append(1024.0 * float(lines["MemAvailable"].split()[0]))
    group = Path("/sys/fs/cgroup")
    if (group / "memory.stat").exists() and (group / "memory.max").exists():
        most = (group / "memory.max").read_text().strip()
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if most != "max" and "anon" in stat:  # the file cache makes room when asked
            found.append(float(most) - float(stat["anon"]))
    return min(found) if found else None
