"""Settings as a person gives them: read from words and files, checked, and named when they are wrong."""

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pdml.config.schema import BRANCHED, DOUBLE, METHOD_CHANGES, MODEL_BASED, STEPWISE, Config, defaults, get, leaves
from pdml.config.tasks import find_task, is_listed
from pdml.core.errors import UserError, nearest

FORMAT = 2
"""Version of config.json; raised whenever it can no longer be read by older code."""

OBJECT = "python"
"""In the place of `module:function`, for a function that was handed over as a Python object."""

SWITCH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def parse(name: str, text: str) -> Any:
    """Read the value of a field from the command line."""
    found = {leaf.name: leaf.kind for leaf in leaves()}
    if name not in found:
        raise UserError(f"--{name}: unknown field{nearest(name, found)}")
    kind = found[name]
    try:
        if get_args(kind)[-1:] == (Ellipsis,):
            entries = [part for part in text.replace(" ", ",").split(",") if part]
            return tuple(_scalar(get_args(kind)[0], part) for part in entries)
        if type(None) in get_args(kind):
            return None if text in ("learned", "none", "None") else float(text)
        return _scalar(kind, text)
    except (ValueError, OverflowError):
        raise UserError(f"--{name} = '{text}': must be {_words(kind)}") from None


def whole(name: str, text: str, least: int = 1, most: int = 2**32 - 1) -> int:
    """Read a whole number of a command's own option."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UserError(f"{name} = '{text}': must be a whole number in [{least}, {most}]")
    return value


def number(name: str, text: str) -> float:
    """Read a finite number of a command's own option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} = '{text}': must be a number")
    return value


def check(config: Config) -> Config:
    """Return the configuration if every value and every pair of values is allowed; name the first that is not."""
    for leaf in leaves():
        value = get(config, leaf.name)
        _check_type(leaf.name, value, leaf.kind)
        _check_range(leaf.name, value, leaf.within, leaf.choices)
    find_task(config.env)
    _check_method(config)
    _check_knowledge(config)
    _check_sizes(config)
    if config.method in BRANCHED:
        _check_branched(config)
    if config.method in DOUBLE:
        _check_double(config)
    return config


def check_length(config: Config) -> Config:
    """Return the configuration of a run that is to go from its first step to its last, if its lengths fit together."""
    if config.steps <= config.warmup_steps:
        raise UserError(f"steps = {config.steps}: must be above the warm-up of {config.warmup_steps} steps")
    for step in config.archive_at:
        if not config.warmup_steps < step <= config.steps:
            raise UserError(f"archive_at = {step}: must lie in ({config.warmup_steps}, {config.steps}]")
    return config


def _check_knowledge(config: Config) -> None:
    """Check what is said to be known of the environment."""
    listed = is_listed(config.env)
    words = ("rule", "never", "learned") if listed else ("never", "learned")
    for name, allowed in (("termination", words), ("reward", ("learned",))):
        value = get(config, name)
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


def refuse_foreign(method: str, names: Iterable[str]) -> None:
    """Raise if the method does not read one of the named options."""
    found = {leaf.name: leaf for leaf in leaves()}
    for name in names:
        methods = found[name].methods
        if not methods or method in methods:
            continue
        if name in METHOD_CHANGES.get(method, {}):
            fixed = METHOD_CHANGES[method][name]
            raise UserError(f"{name}: method '{method}' fixes it at '{fixed}'; it belongs to {', '.join(methods)}")
        owners = f"{group_of(methods)} methods" if group_of(methods) else ", ".join(methods)
        raise UserError(f"{name}: method '{method}' has no such option; it belongs to {owners}")


def group_of(methods: tuple[str, ...]) -> str:
    """Return what a group of methods is called, or nothing."""
    groups = {MODEL_BASED: "the model-based", BRANCHED: "the MBPO-family", STEPWISE: "all but the double-horizon"}
    return groups.get(methods, "")


def _check_method(config: Config) -> None:
    """Check that no option was changed that the method does not read, or that would do nothing with it."""
    standard = defaults(config.env, config.method, config.preset)
    refuse_foreign(
        config.method, (leaf.name for leaf in leaves() if get(config, leaf.name) != get(standard, leaf.name))
    )
    if config.method == "vagram" and not config.rollouts.deterministic:
        raise UserError("rollouts.deterministic = false: vagram's networks have no variance; leave it true")
    for name in ("diagnose_every", "diagnose_steps"):
        if not config.diagnose and get(config, name) != get(standard, name):
            raise UserError(f"{name} = {get(config, name)}: does nothing without diagnose")
    first = config.agent.first_temperature
    if config.agent.temperature is not None and first != standard.agent.first_temperature:
        raise UserError(f"agent.first_temperature = {first}: does nothing with a fixed agent.temperature")
    if config.weigh in ("starts", "none"):
        for name, idle in (("mixture.misaligned", False), ("dynamics.holdout_weights", "uniform")):
            if get(config, name) != idle:
                raise UserError(
                    f"{name} = {get(config, name)}: no weights reach the model when weigh = '{config.weigh}'"
                )


def _check_sizes(config: Config) -> None:
    """Check the values that must fit together."""
    dynamics = config.dynamics
    if len(dynamics.weight_decay) != len(dynamics.hidden_sizes) + 1:
        raise UserError(
            f"dynamics.weight_decay has {len(dynamics.weight_decay)} entries: "
            f"must have one a layer, {len(dynamics.hidden_sizes) + 1}"
        )
    if config.agent.subset > config.agent.num_critics:
        raise UserError(
            f"agent.num_critics = {config.agent.num_critics}: at least agent.subset = {config.agent.subset}"
        )
    if config.method in MODEL_BASED and config.replay_capacity < 2 * config.model_every:
        raise UserError(
            f"replay_capacity = {config.replay_capacity}: at least two blocks of model_every = {config.model_every}"
        )


def _check_branched(config: Config) -> None:
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


def _check_double(config: Config) -> None:
    """Check the values of double-horizon learning."""
    dynamics, dropout = config.dynamics, config.double.dropout
    if config.batch_size % dynamics.num_members:
        raise UserError(
            f"batch_size = {config.batch_size}: must be a multiple of dynamics.num_members = {dynamics.num_members}"
        )
    if len(dropout) != len(dynamics.hidden_sizes):
        raise UserError(
            f"double.dropout has {len(dropout)} entries: must have one a hidden layer of the model, "
            f"{len(dynamics.hidden_sizes)}"
        )


def to_json(config: Config) -> str:
    """Write a configuration, complete and with its format version."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(config)}, indent=2) + "\n"


def from_json(text: str, source: str) -> Config:
    """Read what `to_json` wrote.

    Args:
        source: The file's name, for messages.
    """
    try:
        data = json.loads(text)
        written = data.pop("format")
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError):
        raise UserError(f"config = '{source}': not a configuration written by this package") from None
    if written != FORMAT:
        raise UserError(f"config = '{source}': format {written}, this version reads format {FORMAT}")
    first = [data.get(name, getattr(Config, name)) for name in ("env", "method", "preset")]
    for name, value in zip(("env", "method", "preset"), first, strict=True):
        _check_type(name, value, str)
    complete = all(_has(data, leaf.name) for leaf in leaves())
    return _build(Config() if complete else defaults(*first), data, source, "")


def _has(data: Any, name: str) -> bool:
    """Say whether parsed JSON has a dotted name."""
    for part in name.split("."):
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


def read_config(path: Path) -> Config:
    """Read a configuration file."""
    try:
        return from_json(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config = '{path}': cannot be read ({type(error).__name__})") from None


def _build(base: Any, data: Any, source: str, prefix: str) -> Any:
    """Change a record by parsed JSON, naming fields that are unknown or of the wrong type."""
    if not isinstance(data, dict):
        raise UserError(f"config = '{source}': {prefix.rstrip('.') or 'it'} must be a group of fields")
    hints = get_type_hints(type(base))
    for name in data:
        if name not in hints:
            raise UserError(f"config = '{source}': unknown field {prefix}{name}{nearest(name, hints)}")
    values: dict[str, Any] = {}
    for name, value in data.items():
        if is_dataclass(hints[name]):
            values[name] = _build(getattr(base, name), value, source, f"{prefix}{name}.")
        else:
            entry: Any = tuple(value) if isinstance(value, list) else value
            _check_type(f"{prefix}{name}", entry, hints[name])
            values[name] = float(entry) if hints[name] is float else entry
    return replace(base, **values)


def _scalar(kind: type, text: str) -> Any:
    """Read one number or word; whole numbers may be written 1e5 or 1_000."""
    if kind is int:
        value = float(text.replace("_", ""))
        if value != int(value):
            raise ValueError(text)
        return int(value)
    if kind is bool:
        if text.lower() not in SWITCH:
            raise ValueError(text)
        return SWITCH[text.lower()]
    return kind(text)


def _words(kind: Any) -> str:
    """Describe a type to a person."""
    if get_args(kind)[-1:] == (Ellipsis,):
        return f"a comma-separated list of {_words(get_args(kind)[0]).removeprefix('a ')}s"
    if type(None) in get_args(kind):
        return "a number or 'learned'"
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}[kind]


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Raise unless the value has the field's type (a whole number may stand for a number)."""
    if get_args(kind)[-1:] == (Ellipsis,):
        inner = get_args(kind)[0]
        good = isinstance(value, tuple) and all(_is_a(entry, inner) for entry in value)
    elif type(None) in get_args(kind):
        good = value is None or _is_a(value, float)
    else:
        good = _is_a(value, kind)
    if not good:
        raise UserError(f"{name} = {value!r}: must be {_words(kind)}")


def _is_a(value: Any, kind: type) -> bool:
    """Say whether a scalar has a type; booleans are not numbers, whole numbers are numbers."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if isinstance(value, int) and abs(value) >= 2**63:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


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
