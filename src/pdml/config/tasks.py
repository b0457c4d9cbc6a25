"""What is known about each benchmark environment: a table, which needs neither JAX nor MuJoCo.

Sources: [Wang et al. 2023, Appendix], [Janner et al. 2019]. The paper prints its rollout-length table in the order
length, length, epoch, epoch although its text says otherwise; the values here are read that way.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from pdml.core.errors import UserError


@dataclass(frozen=True)
class Horizon:
    """Branched rollouts grow linearly from `shortest` to `longest` between two epochs of 1000 steps."""

    first_epoch: int = 0
    last_epoch: int = 1
    shortest: int = 1
    longest: int = 1


@dataclass(frozen=True)
class Adaptation:
    """AMPO's steps per block, linear over epochs of 1000 steps, and the last epoch that has any."""

    first_steps: int
    last_steps: int
    stop_epoch: int
    ramp_epochs: int = 1


@dataclass(frozen=True)
class Task:
    """One family of environments (all its versions) and the settings that belong to it."""

    obs_size: int
    action_size: int
    target_entropy: float
    budget: int
    """Real steps in all, warm-up included; for the paper's tasks, the length of its curves plus the warm-up."""
    adaptation: Adaptation
    """[Shen et al. 2020, code]; their own pendulum counts epochs of 250 steps. Humanoid and Pusher are ours."""
    horizon: Horizon = Horizon()
    action_bound: float = 1.0
    """Actions of the environment itself lie in [-bound, bound]."""
    warmup_steps: int = 5000
    updates_per_step: int = 20
    double_horizon_updates: int = 1
    """The same for the double-horizon methods: 2 where the published returns are better for it [Kubo et al. 2025]."""
    rollout_batch: int = 100_000
    versions: tuple[str, ...] = ("v5", "v4")
    kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Constructor flags by version."""
    keep: dict[str, int] = field(default_factory=dict)
    """By version: how many leading entries of the observation are kept, where no flag does it."""
    termination: str = "rule"
    max_episode_steps: int = 0


_HUMANOID_FLAGS = {
    "include_cinert_in_observation": False,
    "include_cvel_in_observation": False,
    "include_qfrc_actuator_in_observation": False,
    "include_cfrc_ext_in_observation": False,
}

TASKS: dict[str, Task] = {
    "Hopper": Task(11, 3, -1.0, 125_000, Adaptation(400, 400, 40), Horizon(20, 100, 1, 15)),
    "Walker2d": Task(17, 6, -3.0, 205_000, Adaptation(1000, 1000, 80), double_horizon_updates=2),
    "HalfCheetah": Task(17, 6, -3.0, 205_000, Adaptation(100, 1000, 30, ramp_epochs=30), double_horizon_updates=2),
    "Ant": Task(
        27,
        8,
        -4.0,
        205_000,
        Adaptation(3000, 3000, 60),
        Horizon(20, 100, 1, 25),
        double_horizon_updates=2,
        kwargs={"v5": {"include_cfrc_ext_in_observation": False}},
    ),
    "Humanoid": Task(
        45,
        17,
        -2.0,
        305_000,
        Adaptation(1000, 1000, 100),
        Horizon(20, 300, 1, 25),
        action_bound=0.4,
        double_horizon_updates=2,
        kwargs={"v5": _HUMANOID_FLAGS},
        keep={"v4": 45},
    ),
    "Pusher": Task(23, 7, -3.5, 35_000, Adaptation(400, 400, 20), action_bound=2.0, versions=("v5",)),
    # Ours, for a first run of a few minutes: half the updates per step, which costs less and keeps its return better.
    "InvertedPendulum": Task(
        4,
        1,
        -0.5,
        4_000,
        Adaptation(6, 6, 1),
        action_bound=3.0,
        warmup_steps=500,
        updates_per_step=10,
        rollout_batch=10_000,
    ),
}


PYTHON = "python:"
"""Prefix of the name of an environment that was passed as a Python object."""

TIME_LIMIT = 1000
"""Episodes are truncated here where an environment has no limit of its own: evaluation must end."""


class TaskSizes(NamedTuple):
    """What the defaults of an environment that is not listed depend on."""

    obs_size: int
    action_size: int
    time_limited: bool
    """Whether its episodes have a time limit of their own."""


def generic(obs_size: int, action_size: int, time_limited: bool) -> Task:
    """Return the settings for an environment that is not listed; docs/environments.md explains each."""
    return Task(
        obs_size,
        action_size,
        target_entropy=-action_size / 2.0,
        budget=50_000,
        adaptation=Adaptation(400, 400, 40),
        warmup_steps=1000,
        versions=(),
        termination="learned",
        max_episode_steps=0 if time_limited else TIME_LIMIT,
    )


def env_ids() -> list[str]:
    """Return every environment id that has a termination rule and settings of its own."""
    return [f"{name}-{version}" for name, task in TASKS.items() for version in task.versions]


def is_listed(env_id: str) -> bool:
    """Say whether an environment has settings of its own."""
    name, _, version = env_id.rpartition("-")
    return name in TASKS and version in TASKS[name].versions


def listed_task(env_id: str) -> Task | None:
    """Return the task of an environment that has settings of its own, or None."""
    return TASKS[env_id.rpartition("-")[0]] if is_listed(env_id) else None


def known_task(env_id: str, sizes: TaskSizes | None) -> Task:
    """Return the task of an environment from its id or, where it is not listed, from what is recorded of it."""
    return listed_task(env_id) or generic(*(sizes or TaskSizes(0, 0, True)))


def refuse_versions(env_id: str) -> None:
    """Raise if an id names a benchmark in a version with other observations or dynamics."""
    name = env_id.rpartition("-")[0]
    if env_id == "Pusher-v4":
        raise UserError("env = 'Pusher-v4': it needs mujoco < 3, which this package does not use; take Pusher-v5")
    if name in TASKS:
        versions = " or ".join(f"{name}-{version}" for version in TASKS[name].versions)
        raise UserError(f"env = '{env_id}': this version is not supported; take {versions}")


def suggest(env_id: str, registered: list[str]) -> str:
    """Suggest an id in the place of an unknown one."""
    others = [name for name in registered if name.rpartition("-")[0] not in TASKS]  # whose other versions are refused
    near = get_close_matches(env_id, [*env_ids(), *others], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(env_ids())}"
