"""The settings of a run on disk: config.json, and what metadata.json records of the environment."""

import json
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pdml.config.defaults import defaults
from pdml.config.fields import change, different, get, leaves
from pdml.config.parse import check_type, shown
from pdml.config.schema import Config, RunConfig, Settings
from pdml.config.tasks import Task, TaskSizes, known_task
from pdml.core.errors import UserError, nearest

FORMAT = 2
"""Version of config.json; raised whenever it can no longer be read by older code."""


LATER = frozenset(
    (
        "best_over",
        "agent.exploration",
        "double.critic_near",
        "double.actor_clip",
        "double.kl_bound",
        "double.actor_average",
        "double.keep_moments",
        "double.zero_bounds",
    )
)
"""Settings that files of older versions lack. Their runs did what the schema's default does, whatever a method's is.

A new setting belongs here if its default in the schema is what was done without it.
"""


def to_json(settings: Settings) -> str:
    """Write all settings and the format's version; settings of learning and of the run stand side by side."""
    learning = asdict(settings.learning)
    plain = {name: value for name, value in learning.items() if not isinstance(value, dict)}
    return json.dumps({"format": FORMAT, **plain, **asdict(settings.run), **learning}, indent=2) + "\n"


def from_json(text: str, source: str, sizes: TaskSizes | None = None) -> Settings:
    """Read what `to_json` wrote, or a part of it: what is left out takes the method's default on the environment.

    In a file that an older version wrote, settings that came later have the values of `LATER`.

    Args:
        source: The file's name, for messages.
        sizes: Of the environment, where they are recorded.
    """
    try:
        data = json.loads(text)
        written = data.pop("format")
    except (json.JSONDecodeError, KeyError, AttributeError, TypeError):
        raise UserError(f"config = '{source}': not a configuration written by this package") from None
    if written != FORMAT:
        raise UserError(f"config = '{source}': format {written}, this version reads format {FORMAT}")
    env, method, preset = (data.get(name, getattr(Config, name)) for name in ("env", "method", "preset"))
    for name, value in (("env", env), ("method", method), ("preset", preset)):
        check_type(name, value, str)
    base, missing = Settings(), {leaf.name for leaf in leaves() if not _has(data, leaf.name)}
    if missing:
        base = defaults(env, method, preset, known_task(env, sizes))
        if all(_has(data, leaf.name.rpartition(".")[0]) for leaf in leaves() if "." in leaf.name):  # `to_json` wrote it
            base = change(base, {name: get(Settings(), name) for name in missing & LATER})
    own = {item.name for item in fields(RunConfig)}
    run = {name: value for name, value in data.items() if name in own}
    learning = {name: value for name, value in data.items() if name not in own}
    return Settings(_built(base.learning, learning, source, ""), _built(base.run, run, source, ""))


def read_config(path: Path) -> Settings:
    """Read a config.json; metadata.json beside it tells the sizes of an environment that is not listed."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config = '{path}': cannot be read ({type(error).__name__})") from None
    return from_json(text, str(path), read_sizes(path.parent))


def read_run(path: Path) -> tuple[Settings, Task]:
    """Read the settings of a run and the task they belong to, from its directory alone: no environment is made."""
    settings = read_config(path / "config.json")
    sizes, limit = read_sizes(path), settings.learning.max_episode_steps
    if sizes is not None and "task" not in read_metadata(path):  # recorded before the time limit was
        sizes = sizes._replace(time_limited=limit == 0)
    return settings, known_task(settings.learning.env, sizes)


def require_same(settings: Settings, kept: Settings, path: Path) -> None:
    """Raise unless a directory's run has these settings, but for its number of steps."""
    for name in different(kept, settings):
        if name != "steps":
            was, now = shown(get(kept, name)), shown(get(settings, name))
            raise UserError(f"run-dir = '{path}': its run has {name} = {was}, not {now}")


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a run; nothing where there is none."""
    try:
        found = json.loads((path / "metadata.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_sizes(path: Path) -> TaskSizes | None:
    """Return what a run's metadata records of its environment, or None."""
    found = read_metadata(path)
    try:
        if "task" in found:
            return TaskSizes(**found["task"])
        return TaskSizes(int(found["spaces"]["obs_size"]), len(found["spaces"]["low"]), True)
    except (KeyError, TypeError, ValueError):
        return None


def _has(data: Any, name: str) -> bool:
    """Say whether parsed JSON has a dotted name."""
    for part in name.split("."):
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


@cache
def _hints(record: type) -> dict[str, Any]:
    """Return the types of a record's fields; kept, since many files are read."""
    return get_type_hints(record)


def _built(base: Any, data: Any, source: str, prefix: str) -> Any:
    """Change a record by parsed JSON, naming fields that are unknown or of the wrong type."""
    if not isinstance(data, dict):
        raise UserError(f"config = '{source}': {prefix.rstrip('.') or 'it'} must be a group of fields")
    hints = _hints(type(base))
    for name in data:
        if name not in hints:
            known = [*hints, *_hints(RunConfig)] if isinstance(base, Config) else hints
            raise UserError(f"config = '{source}': unknown field {prefix}{name}{nearest(name, known)}")
    values: dict[str, Any] = {}
    for name, value in data.items():
        if is_dataclass(hints[name]):
            values[name] = _built(getattr(base, name), value, source, f"{prefix}{name}.")
        else:
            entry: Any = tuple(value) if isinstance(value, list) else value
            check_type(f"{prefix}{name}", entry, hints[name])
            values[name] = float(entry) if hints[name] is float else entry
    return replace(base, **values)
