"""Settings by name: `steps`, `agent.gamma`. Names are flat: they do not say whether learning or the run reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from pdml.config.methods import Feature, readers
from pdml.config.schema import Config, RunConfig, Settings
from pdml.core.errors import UserError, nearest


class Leaf(NamedTuple):
    """One setting: its dotted name, what was declared about it, and its type."""

    name: str
    help: str
    within: str
    choices: tuple[str, ...]
    needs: tuple[Feature, ...]
    """Features of the methods that read it."""
    methods: tuple[str, ...]
    """The methods that read it."""
    kind: Any


@cache
def leaves() -> tuple[Leaf, ...]:
    """Return every setting: those without a group, those of the run, then group by group."""
    learning = list(_leaves(Config))
    plain = [leaf for leaf in learning if "." not in leaf.name]
    grouped = [leaf for leaf in learning if "." in leaf.name]
    return (*plain, *_leaves(RunConfig), *grouped)


def _leaves(record: type, prefix: str = "", needs: tuple[Feature, ...] = ()) -> Iterator[Leaf]:
    hints = get_type_hints(record)
    for item in fields(record):
        own = tuple(dict.fromkeys((*needs, *item.metadata.get("needs", ()))))
        name, note = f"{prefix}{item.name}", item.metadata
        if is_dataclass(hints[item.name]):
            yield from _leaves(hints[item.name], f"{name}.", own)
        else:
            kind = hints[item.name]
            yield Leaf(name, note["help"], note["within"], note["choices"], own, readers(own, name), kind)


@cache
def read_by(method: str) -> frozenset[str]:
    """Return the names of the settings that a method reads."""
    return frozenset(leaf.name for leaf in leaves() if method in leaf.methods)


@cache
def run_names() -> frozenset[str]:
    """Return the names of the settings of a run; all others are of learning."""
    return frozenset(item.name for item in fields(RunConfig))


def get(settings: Settings, name: str) -> Any:
    """Return the value of a setting."""
    value: Any = settings.run if name in run_names() else settings.learning
    for part in name.split("."):
        value = getattr(value, part)
    return value


def change(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with some replaced, given by name."""
    learning, run = settings.learning, settings.run
    for name, value in changes.items():
        if name in run_names():
            run = replace(run, **{name: value})
        else:
            learning = change_learning(learning, {name: value})
    return Settings(learning, run)


def change_learning(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return a configuration of learning with some settings replaced, given by name."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        inner = replace(getattr(config, head), **{rest: value}) if rest else value
        config = replace(config, **{head: inner})
    return config


def different(one: Settings, other: Settings) -> list[str]:
    """Return the names of the settings that differ."""
    return [leaf.name for leaf in leaves() if get(one, leaf.name) != get(other, leaf.name)]


def by_dotted_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names, from names and groups as Python writes them."""
    names = [leaf.name for leaf in leaves()]
    groups = {name.partition(".")[0] for name in names if "." in name}
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if name in groups and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[name] = value
    for name, value in flat.items():
        if name in groups:
            raise UserError(f"{name} = {value!r}: is a group; give its settings as a dict")
        if name not in names:
            raise UserError(f"{name}: unknown setting{nearest(name, names)}")
        if isinstance(value, list):
            flat[name] = tuple(value)
    return flat
