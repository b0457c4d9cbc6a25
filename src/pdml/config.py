"""The configuration: nested frozen records, one help text and one allowed range per field.

Nothing here imports JAX, so that `pdml --help` answers at once. A hyper-parameter has one home: here, or in
`pdml.tasks` where it depends on the environment.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pdml.errors import UserError
from pdml.tasks import find_task

FORMAT = 1
"""Version of config.json and of saved states; raised whenever either can no longer be read by older code."""

METHODS: dict[str, str] = {
    "pdml": "PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy",
    "mbpo": "MBPO [Janner et al. 2019]: every real row weighs the same",
}
"""Every method in one line; its recipe is the function of the same name in `pdml.methods`."""

SECTIONS: dict[str, tuple[str, ...]] = {"mixture": ("pdml",)}
"""Sections of the configuration that only some methods read; elsewhere changing them is a mistake."""

PRESETS: dict[str, dict[str, Any]] = {"paper": {}}
"""Named sets of changes on top of the defaults of (method, environment)."""


def option(default: Any, text: str, within: str = "", choices: tuple[str, ...] = ()) -> Any:
    """Declare a field: its default, its help text, and the interval or the words that it may take.

    Args:
        within: An interval such as `"[0, 1)"` or `"(0, inf)"`; for tuples it holds for every entry.
    """
    return field(default=default, metadata={"help": text, "within": within, "choices": choices})


@dataclass(frozen=True)
class AgentConfig:
    """Soft actor-critic."""

    hidden_sizes: tuple[int, ...] = option((256, 256), "width of each hidden layer of actor and critics", "[1, inf)")
    learning_rate: float = option(3e-4, "Adam's step size for actor, critics and temperature", "(0, inf)")
    gamma: float = option(0.99, "discount", "[0, 1)")
    tau: float = option(0.005, "share of the critics that their targets take over at each update", "(0, 1]")
    temperature: float | None = option(None, "entropy temperature; 'learned' fits it to the target entropy", "(0, inf)")
    target_entropy: float = option(-1.0, "entropy, in nats of the [-1, 1] action, that a learned temperature keeps")


@dataclass(frozen=True)
class DynamicsConfig:
    """The ensemble of probabilistic networks."""

    num_members: int = option(7, "networks in the ensemble", "[1, inf)")
    num_elites: int = option(5, "best networks on the holdout; only they imagine", "[1, inf)")
    hidden_sizes: tuple[int, ...] = option((200, 200, 200, 200), "width of each hidden layer", "[1, inf)")
    learning_rate: float = option(1e-3, "Adam's step size", "(0, inf)")
    weight_decay: tuple[float, ...] = option(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), "L2 penalty of each layer's weights, first to output", "[0, inf)"
    )
    batch_size: int = option(256, "rows a minibatch, drawn for each network by itself", "[1, inf)")
    holdout: str = option("fresh", "fresh: split anew at each fit; fixed: label rows once", choices=("fresh", "fixed"))
    holdout_ratio: float = option(0.2, "share of rows held out for early stopping and elites", "(0, 1)")
    holdout_max: int = option(5000, "largest holdout, in rows", "[1, inf)")
    improvement: float = option(0.01, "relative gain on the holdout that counts as an improvement", "[0, 1)")
    patience: int = option(5, "epochs without improvement of any network before the fit stops", "[0, inf)")
    max_epochs: int = option(200, "cap on the epochs of one fit; `model/capped` logs when it binds", "[1, inf)")


@dataclass(frozen=True)
class MixtureConfig:
    """The policy mixture of PDML."""

    rate: float = option(0.02, "r: least share of the newest policy's block; alpha = r / (1 - r)", "[0, 1)")
    reservoir: int = option(2048, "states on which policies are compared, uniform over all collected", "[1, inf)")
    floor: float = option(1e-3, "smallest policy shift; below it float32 divergences are noise", "(0, inf)")
    first_block: int = option(4, "blocks after warm-up before the weights leave the uniform ones", "[2, inf)")


@dataclass(frozen=True)
class RolloutConfig:
    """Imagination."""

    batch: int = option(100_000, "branches started after each fit", "[1, inf)")
    shortest: int = option(1, "steps a branch before `first_epoch`", "[1, inf)")
    longest: int = option(1, "steps a branch after `last_epoch`", "[1, inf)")
    first_epoch: int = option(0, "epoch (1000 steps after warm-up) at which branches begin to grow", "[0, inf)")
    last_epoch: int = option(1, "epoch at which branches are longest", "[1, inf)")
    retain_epochs: int = option(1, "epochs of imagined rows that are kept", "[1, inf)")
    max_rows: int = option(1_000_000, "most imagined rows kept; beyond it fewer branches are started", "[1, inf)")


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes."""

    env: str = option("InvertedPendulum-v5", "environment id")
    method: str = option("pdml", "method", choices=tuple(METHODS))
    preset: str = option("paper", "named set of changes to the defaults", choices=tuple(PRESETS))
    steps: int = option(4000, "real steps in all, warm-up included", "[1, inf)")
    seed: int = option(0, "seed of everything random", "[0, 4294967295]")
    warmup_steps: int = option(5000, "first steps: uniform actions, nothing is learned", "[2, inf)")
    model_every: int = option(250, "real steps a block, between two fits of the model", "[1, inf)")
    epoch_steps: int = option(1000, "real steps an epoch, the unit of the rollout schedule", "[1, inf)")
    updates_per_step: int = option(20, "agent updates a real step", "[1, inf)")
    batch_size: int = option(256, "rows an agent update", "[2, inf)")
    real_ratio: float = option(0.05, "share of real rows in an agent update", "[0, 1)")
    replay_capacity: int = option(1_000_000, "real rows kept", "[1, inf)")
    eval_every: int = option(1000, "real steps between evaluations", "[1, inf)")
    eval_episodes: int = option(10, "episodes an evaluation; 0 reports training episodes instead", "[0, inf)")
    archive_at: tuple[int, ...] = option((), "steps whose model and actor are kept, e.g. 20000,40000", "[1, inf)")
    agent: AgentConfig = AgentConfig()
    dynamics: DynamicsConfig = DynamicsConfig()
    mixture: MixtureConfig = MixtureConfig()
    rollouts: RolloutConfig = RolloutConfig()

    @property
    def real_rows(self) -> int:
        """Real rows in an agent update; the rest are imagined."""
        return int(self.real_ratio * self.batch_size)


def defaults(env: str, method: str = "pdml", preset: str = "paper") -> Config:
    """Return the configuration of a method on an environment."""
    for name, value, table in (("method", method, METHODS), ("preset", preset, PRESETS)):
        if value not in table:
            raise UserError(f"{name} = '{value}': unknown{_nearest(value, table)}; allowed: {', '.join(table)}")
    task = find_task(env)
    config = Config(
        env=env,
        method=method,
        preset=preset,
        steps=task.budget,
        warmup_steps=task.warmup_steps,
        updates_per_step=task.updates_per_step,
        agent=AgentConfig(target_entropy=task.target_entropy),
        rollouts=RolloutConfig(
            batch=task.rollout_batch,
            shortest=task.horizon.shortest,
            longest=task.horizon.longest,
            first_epoch=task.horizon.first_epoch,
            last_epoch=task.horizon.last_epoch,
        ),
    )
    return change(config, PRESETS[preset])


def change(config: Config, changes: dict[str, Any]) -> Config:
    """Return the configuration with fields replaced, given by dotted names."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            section = replace(getattr(config, head), **{rest: value})
            config = replace(config, **{head: section})
        else:
            config = replace(config, **{head: value})
    return config


def leaves(kind: type = Config, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Yield the dotted name, the field and the type of every setting."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from leaves(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}", item, hints[item.name]


def get(config: Config, name: str) -> Any:
    """Return the value of a dotted field name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def parse(name: str, text: str) -> Any:
    """Read the value of a field from the command line."""
    found = {leaf: kind for leaf, _, kind in leaves()}
    if name not in found:
        raise UserError(f"--{name}: unknown field{_nearest(name, found)}")
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


def check(config: Config) -> Config:
    """Return the configuration if every value and every pair of values is allowed; name the first that is not."""
    for name, item, kind in leaves():
        value = get(config, name)
        _check_type(name, value, kind)
        _check_range(name, value, item.metadata["within"], item.metadata["choices"])
    find_task(config.env)
    if config.steps <= config.warmup_steps:
        raise UserError(f"steps = {config.steps}: must be above the warm-up of {config.warmup_steps} steps")
    for step in config.archive_at:
        if not config.warmup_steps < step <= config.steps:
            raise UserError(f"archive_at = {step}: must lie in ({config.warmup_steps}, {config.steps}]")
    _check_sizes(config)
    standard = defaults(config.env, config.method, config.preset)
    for section, methods in SECTIONS.items():
        if config.method not in methods and getattr(config, section) != getattr(standard, section):
            raise UserError(f"{section}.*: method '{config.method}' has no such options; {' and '.join(methods)} has")
    return config


def _check_sizes(config: Config) -> None:
    """Check the values that must fit together."""
    dynamics, rollouts = config.dynamics, config.rollouts
    if dynamics.num_elites > dynamics.num_members:
        raise UserError(
            f"dynamics.num_elites = {dynamics.num_elites}: at most dynamics.num_members = {dynamics.num_members}"
        )
    if len(dynamics.weight_decay) != len(dynamics.hidden_sizes) + 1:
        raise UserError(
            f"dynamics.weight_decay has {len(dynamics.weight_decay)} entries: "
            f"must have one a layer, {len(dynamics.hidden_sizes) + 1}"
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
    if config.replay_capacity < 2 * config.model_every:
        raise UserError(
            f"replay_capacity = {config.replay_capacity}: at least two blocks of model_every = {config.model_every}"
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
    return _build(defaults(*first), data, source, "")


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
            raise UserError(f"config = '{source}': unknown field {prefix}{name}{_nearest(name, hints)}")
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
    return kind(text)


def _words(kind: Any) -> str:
    """Describe a type to a person."""
    if get_args(kind)[-1:] == (Ellipsis,):
        return f"a comma-separated list of {_words(get_args(kind)[0]).removeprefix('a ')}s"
    if type(None) in get_args(kind):
        return "a number or 'learned'"
    return {int: "a whole number", float: "a number", str: "a word"}[kind]


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
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _check_range(name: str, value: Any, within: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value lies in its interval or among its words."""
    if choices and value not in choices:
        raise UserError(f"{name} = '{value}': unknown{_nearest(value, choices)}; allowed: {', '.join(choices)}")
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


def _nearest(name: str, names: Any) -> str:
    """Suggest the closest allowed name, if one is close."""
    near = get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return f" (did you mean {near[0]}?)" if near else ""
