"""Whether settings are allowed: each by its range, and together; the first that is not is named in one sentence."""

import math
from collections.abc import Iterable
from typing import Any

from pdml.config.defaults import defaults
from pdml.config.fields import different, get, leaves
from pdml.config.methods import GROUP_NAMES, METHODS, Feature
from pdml.config.parse import check_type, shown
from pdml.config.schema import Config, Settings
from pdml.config.tasks import Task, is_listed
from pdml.core.errors import UserError, nearest

OBJECT = "python"
"""In the place of `module:function`, for a function that was passed as a Python object."""


def check(settings: Settings, task: Task | None = None) -> Settings:
    """Return the settings if every value and every pair of values is allowed; name the first that is not.

    Args:
        task: What is known of the environment; may be left out for those that are listed.
    """
    for leaf in leaves():
        value = get(settings, leaf.name)
        check_type(leaf.name, value, leaf.kind)
        _check_range(leaf.name, value, leaf.within, leaf.choices)
    config = settings.learning
    standard = defaults(config.env, config.method, config.preset, task)
    refuse_foreign(config.method, different(settings, standard))
    _check_idle(settings, standard)
    _check_known_parts(config)
    _check_sizes(config)
    if METHODS[config.method].reads((Feature.BRANCHES,)):
        _check_branches(config)
    if METHODS[config.method].is_double_horizon:
        _check_double_horizon(config)
    return settings


def check_length(settings: Settings) -> Settings:
    """Return the settings of a run from its first step to its last, if its lengths fit together."""
    run, warmup = settings.run, settings.learning.warmup_steps
    if run.steps <= warmup:
        raise UserError(f"steps = {run.steps}: must be above the warm-up of {warmup} steps")
    for step in run.archive_at:
        if not warmup < step <= run.steps:
            raise UserError(f"archive_at = {step}: must lie in ({warmup}, {run.steps}]")
    return settings


def refuse_foreign(method: str, names: Iterable[str]) -> None:
    """Raise if the method does not read one of the named settings."""
    found = {leaf.name: leaf for leaf in leaves()}
    fixes = METHODS[method].fixes
    for name in names:
        leaf = found[name]
        if method in leaf.methods:
            continue
        if name in fixes:
            raise UserError(
                f"{name}: method '{method}' fixes it at '{shown(fixes[name])}'; it belongs to {owners(leaf)}"
            )
        raise UserError(f"{name}: method '{method}' has no such option; it belongs to {owners(leaf)}")


def owners(leaf: Any) -> str:
    """Name the methods that read a setting."""
    group = GROUP_NAMES.get(leaf.needs)
    return f"the {group} methods" if group else ", ".join(leaf.methods)


def _check_idle(settings: Settings, standard: Settings) -> None:
    """Check for some settings that they were not changed where they would do nothing beside the others."""
    config, run = settings.learning, settings.run
    for name in ("diagnose_every", "diagnose_steps"):
        if not run.diagnose and get(settings, name) != get(standard, name):
            raise UserError(f"{name} = {get(settings, name)}: does nothing without diagnose")
    first = config.agent.first_temperature
    if config.agent.temperature is not None and first != standard.learning.agent.first_temperature:
        raise UserError(f"agent.first_temperature = {first}: does nothing with a fixed agent.temperature")
    if config.weigh in ("starts", "none"):
        for name, idle in (("mixture.misaligned", False), ("dynamics.holdout_weights", "uniform")):
            if get(settings, name) != idle:
                raise UserError(
                    f"{name} = {get(settings, name)}: no weights reach the model when weigh = '{config.weigh}'"
                )


def _check_known_parts(config: Config) -> None:
    """Check what is said to be known of the environment: its termination and its reward."""
    listed = is_listed(config.env)
    words = ("rule", "never", "learned") if listed else ("never", "learned")
    for name, value, allowed in (
        ("termination", config.termination, words),
        ("reward", config.reward, ("learned",)),
    ):
        module, colon, function = value.partition(":")
        if value not in (*allowed, OBJECT) and not (colon and module and function):
            hint = "" if value != "rule" else "no rule is known for this environment; "
            raise UserError(f"{name} = '{value}': {hint}allowed: {', '.join(allowed)}, or module:function")
    if config.agent.scaled_log_prob and not listed:
        raise UserError("agent.scaled_log_prob = true: only for the environments of pdml list envs")
    if config.termination == "learned" and config.time_limit_terminates:
        raise UserError("time_limit_terminates = true: a learned termination would learn the time limit; set another")
    if config.reward != "learned" and config.rollouts.reward_penalty > 0:
        raise UserError(f"rollouts.reward_penalty = {config.rollouts.reward_penalty}: is for a learned reward only")


def _check_sizes(config: Config) -> None:
    """Check the values that must fit together."""
    dynamics = config.dynamics
    for name, sizes in (("agent", config.agent.hidden_sizes), ("dynamics", dynamics.hidden_sizes)):
        if not sizes:
            raise UserError(f"{name}.hidden_sizes = '': at least one hidden layer is needed, such as 256,256")
    if len(dynamics.weight_decay) != len(dynamics.hidden_sizes) + 1:
        raise UserError(
            f"dynamics.weight_decay has {len(dynamics.weight_decay)} entries: "
            f"must have one per layer, {len(dynamics.hidden_sizes) + 1}"
        )
    if config.agent.subset > config.agent.num_critics:
        raise UserError(
            f"agent.num_critics = {config.agent.num_critics}: at least agent.subset = {config.agent.subset}"
        )
    if METHODS[config.method].has_model and config.replay_capacity < 2 * config.model_every:
        raise UserError(
            f"replay_capacity = {config.replay_capacity}: at least two blocks of model_every = {config.model_every}"
        )


def _check_branches(config: Config) -> None:
    """Check the sizes of MBPO's family."""
    dynamics, rollouts = config.dynamics, config.rollouts
    if dynamics.num_elites > dynamics.num_members:
        raise UserError(
            f"dynamics.num_elites = {dynamics.num_elites}: at most dynamics.num_members = {dynamics.num_members}"
        )
    if rollouts.longest < rollouts.shortest:
        raise UserError(f"rollouts.longest = {rollouts.longest}: at least rollouts.shortest = {rollouts.shortest}")
    if rollouts.last_epoch <= rollouts.first_epoch:
        raise UserError(
            f"rollouts.last_epoch = {rollouts.last_epoch}: must be above rollouts.first_epoch = {rollouts.first_epoch}"
        )
    if rollouts.max_rows < rollouts.longest * dynamics.num_elites:
        raise UserError(
            f"rollouts.max_rows = {rollouts.max_rows}: at least rollouts.longest x dynamics.num_elites = "
            f"{rollouts.longest * dynamics.num_elites}"
        )


def _check_double_horizon(config: Config) -> None:
    """Check the sizes of DHMBPO."""
    dynamics, dropout = config.dynamics, config.double.dropout
    if config.batch_size % dynamics.num_members:
        raise UserError(
            f"batch_size = {config.batch_size}: must be a multiple of dynamics.num_members = {dynamics.num_members}"
        )
    if len(dropout) != len(dynamics.hidden_sizes):
        raise UserError(
            f"double.dropout has {len(dropout)} entries: must have one per hidden layer of the model, "
            f"{len(dynamics.hidden_sizes)}"
        )


def _check_range(name: str, value: Any, within: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value lies in its interval or among its words."""
    if choices and value not in choices:
        raise UserError(f"{name} = '{value}': unknown{nearest(value, choices)}; allowed: {', '.join(choices)}")
    entries = value if isinstance(value, tuple) else (value,)
    for entry in entries:
        if isinstance(entry, int | float) and not _inside(entry, within):
            raise UserError(f"{name} = {entry}: must lie in {within or '(-inf, inf)'}")


def _inside(value: int | float, within: str) -> bool:
    """Say whether a number lies in an interval written as text; without one it need only be finite."""
    if not math.isfinite(value):
        return False
    if not within:
        return True
    low, high = (float(end) for end in within[1:-1].split(","))
    above = value > low if within[0] == "(" else value >= low
    below = value < high if within[-1] == ")" else value <= high
    return above and below
