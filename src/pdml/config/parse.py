"""Values as a person types them, on the command line or in a file, read by the type of their setting."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pdml.config.fields import leaves
from pdml.core.errors import UserError, nearest

SWITCH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def parse(name: str, text: str) -> Any:
    """Read the value of a setting from the command line."""
    found = {leaf.name: leaf.kind for leaf in leaves()}
    if name not in found:
        raise UserError(f"--{name}: unknown field{nearest(name, found)}")
    kind = found[name]
    try:
        if get_args(kind)[-1:] == (Ellipsis,):
            entries = [] if text == "none" else [part for part in text.replace(" ", ",").split(",") if part]
            return tuple(_scalar(get_args(kind)[0], part) for part in entries)
        if type(None) in get_args(kind):
            return None if text in ("learned", "none", "None") else float(text)
        return _scalar(kind, text)
    except (ValueError, OverflowError):
        raise UserError(f"--{name} = '{text}': must be {_words(kind)}") from None


def parse_value(name: str, text: str) -> Any:
    """Read the value of a setting that is not an option of its own: from a file, or after `--set`."""
    try:
        return parse(name, text)
    except UserError as error:
        raise UserError(str(error).removeprefix("--")) from None


def assignment(word: str) -> tuple[str, str]:
    """Read `field=value`, a word after `--set`."""
    name, equals, text = word.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name:
        raise UserError(f"set = '{word}': must be field=value")
    return name, text


def whole(name: str, text: str, least: int = 1, most: int = 2**32 - 1) -> int:
    """Read a whole number of a command's own option."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UserError(f"{name} = '{text}': must be a whole number in [{least}, {most}]")
    return value


def number(name: str, text: str, above: float = -math.inf) -> float:
    """Read a finite number of a command's own option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > above):
        raise UserError(f"{name} = '{text}': must be a number{'' if above == -math.inf else f' above {above:g}'}")
    return value


def path_of(name: str, given: Any) -> Path:
    """Read a path of a command's own option, or of Python; an empty one would be the current directory."""
    if not isinstance(given, str | Path) or given == "":
        raise UserError(f"{name} = {given!r}: must be a path; the current directory is '.'")
    return Path(given)


def shown(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(str(entry) for entry in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "learned" if value is None else str(value)


def arm_name(method: str, changes: Mapping[str, Any]) -> str:
    """Name a method with some settings changed, as the directories of a sweep are named."""
    return "-".join([method, *(f"{name}={shown(changes[name])}" for name in sorted(changes))])


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raise unless the value has the setting's type (a whole number may stand for a number)."""
    if get_args(kind)[-1:] == (Ellipsis,):
        inner = get_args(kind)[0]
        good = isinstance(value, tuple) and all(_is_a(entry, inner) for entry in value)
    elif type(None) in get_args(kind):
        good = value is None or _is_a(value, float)
    else:
        good = _is_a(value, kind)
    if not good:
        raise UserError(f"{name} = {value!r}: must be {_words(kind)}")


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
    """Name a type for a person."""
    if get_args(kind)[-1:] == (Ellipsis,):
        return f"a comma-separated list of {_words(get_args(kind)[0]).removeprefix('a ')}s"
    if type(None) in get_args(kind):
        return "a number or 'learned'"
    return {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}[kind]


def _is_a(value: Any, kind: type) -> bool:
    """Say whether a scalar has a type; booleans are not numbers, whole numbers are numbers."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if isinstance(value, int) and abs(value) >= 2**63:
        return False
    return isinstance(value, (int, float) if kind is float else kind)
