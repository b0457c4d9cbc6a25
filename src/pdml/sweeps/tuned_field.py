"""A setting that is tuned, as a person types it: a range or choices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pdml.config.fields import leaves
from pdml.config.parse import number, parse, shown
from pdml.config.schema import RunConfig
from pdml.core.errors import UserError, nearest

DIGITS = 4
"""Significant digits of a proposed number: what is tried is what the name of its directory says."""


class TunedField(NamedTuple):
    """A setting that is tuned: between two numbers, or one of some values."""

    name: str
    kind: type
    low: float
    high: float
    choices: tuple[str, ...]
    """As typed; empty for a range."""

    @property
    def log(self) -> bool:
        """Whether its logarithm is drawn uniformly: where the range spans a factor of ten."""
        return self.low > 0 and self.high / self.low >= 10

    def __str__(self) -> str:
        ends = f"{self.kind(self.low)!r}..{self.kind(self.high)!r}" if not self.choices else "|".join(self.choices)
        return f"{self.name}={ends}"


def tuned_field(text: str) -> TunedField:
    """Read `name=low..high` or `name=a|b|c`."""
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    found = {leaf.name: leaf for leaf in leaves()}
    if not equals or not values:
        raise UserError(f"field = '{text}': must be name=low..high or name=a|b|c")
    if name not in found:
        raise UserError(f"field = '{text}': unknown setting {name}{nearest(name, found)}")
    if name in ("env", "method", "preset", "seed") or name in RunConfig.__dataclass_fields__:
        raise UserError(f"field = '{text}': {name} cannot be tuned; tune a setting that changes what is learned")
    low, dots, high = values.partition("..")
    if not dots:
        return _choice(text, name, found[name].kind, values)
    if found[name].kind not in (int, float):
        raise UserError(f"field = '{text}': {name} is no single number; give its values as a|b|c")
    ends = [_end(text, found[name].kind, end) for end in (low, high)]
    if not ends[0] < ends[1]:
        raise UserError(f"field = '{text}': the first number must be below the second")
    return TunedField(name, found[name].kind, ends[0], ends[1], ())


def _end(text: str, kind: type, end: str) -> float:
    """Read one end of a range."""
    value = number(f"field = '{text}', an end", end)
    if kind is int and value != int(value):
        raise UserError(f"field = '{text}': '{end}' must be a whole number")
    return value


def _choice(text: str, name: str, kind: Any, values: str) -> TunedField:
    choices = tuple(part.strip() for part in values.split("|"))
    try:
        read = [parse(name, choice) for choice in choices]
    except UserError as error:
        raise UserError(f"field = '{text}': {str(error).removeprefix('--')}") from None
    if len(choices) < 2 or len(set(map(shown, read))) < len(choices):
        raise UserError(f"field = '{text}': needs at least two different values, as a|b|c, or low..high")
    return TunedField(name, kind if isinstance(kind, type) else str, 0.0, 0.0, choices)


def first_values(fields: Sequence[TunedField]) -> dict[str, Any]:
    """Return one allowed value of each field."""
    return {field.name: settled_value(field, field.choices[0] if field.choices else field.low) for field in fields}


def settled_value(field: TunedField, value: Any) -> Any:
    """Return a proposed value as it is tried."""
    if field.choices:
        return parse(field.name, value)
    if field.kind is int:
        return int(value)
    return min(max(float(f"{value:.{DIGITS}g}"), field.low), field.high)
