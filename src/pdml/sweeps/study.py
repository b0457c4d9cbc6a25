"""A study: environments, methods with their settings, and seeds. It is a small TOML file; several ship.

A list in a table of settings spans a grid. A setting that holds several numbers is a text, as on the command line.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pdml.config.fields import by_dotted_names, leaves
from pdml.config.methods import METHODS, NO_CHANGES
from pdml.config.parse import assignment, parse_value, shown, whole
from pdml.core.errors import UserError, nearest

SHIPPED = ("comparison", "replay", "decay", "ablation", "rate", "model-error", "converged", "overhead")
"""The studies that ship with the package, in the order of lists."""

KEYS = ("summary", "envs", "methods", "seeds", "steps", "diagnose", "archive_at", "settings", "arms")
"""What a study's file may have."""

OWN_KEYS = {
    "env": "envs",
    "method": "methods",
    "seed": "seeds",
    "steps": "steps",
    "diagnose": "diagnose",
    "archive_at": "archive_at",
}
"""Settings that a study has a key for, which therefore are not among its [settings]."""

MOST_SEEDS = 10_000
"""Above this, a range of seeds is taken for a slip."""

Grid = Mapping[str, tuple[Any, ...]]
"""Settings by name, each with the values of a grid."""


class Arm(NamedTuple):
    """One method with settings of its own; settings with several values span a grid."""

    method: str
    settings: dict[str, tuple[Any, ...]]


class Study(NamedTuple):
    """Environments x arms x seeds."""

    name: str
    summary: str
    envs: tuple[str, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    steps: int | None
    """Real steps of every run; None: the budget of its task, or as in `steps_by_env`."""
    steps_by_env: dict[str, int]
    diagnose: bool
    """Whether methods with a model measure its error; the others have nothing to measure."""
    archive_at: tuple[int, ...]
    shared: Grid = NO_CHANGES
    """The settings of all arms; the arms have them too."""


def read_study(name_or_path: str) -> Study:
    """Return a study that ships with the package, or one from a .toml file."""
    if name_or_path in SHIPPED:
        text = (files("pdml.sweeps") / "studies" / f"{name_or_path}.toml").read_text()
        return _study(name_or_path, _parsed(text, name_or_path))
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise UserError(
            f"study = '{name_or_path}': unknown{nearest(name_or_path, SHIPPED)}; "
            f"allowed: {', '.join(SHIPPED)}, or a path to a .toml file"
        )
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"study = '{path}': not a text file") from None
    except OSError as error:
        raise UserError(f"study = '{path}': cannot be read ({error.strerror})") from None
    return _study(path.stem, _parsed(text, name_or_path), name_or_path)


def study_from(name: str, given: Mapping[str, Any]) -> Study:
    """Return a study from what its file would have, as Python writes it: tuples and ranges are lists too."""
    data = {key: list(value) if isinstance(value, tuple | range) else value for key, value in given.items()}
    try:
        return _checked(name, data)
    except UserError as error:
        raise UserError(f"study: {error}") from None


def shipped_studies() -> dict[str, Study]:
    """Return the studies that ship with the package, by name: one for each figure and table of the paper."""
    return {name: read_study(name) for name in SHIPPED}


def override(
    study: Study,
    seeds: str | Sequence[int] | None = None,
    envs: str | Sequence[str] | None = None,
    methods: str | Sequence[str] | None = None,
    steps: str | int | None = None,
    settings: Sequence[str] | Mapping[str, Any] | None = None,
) -> Study:
    """Return a study changed as the command line asks; what is None stays.

    Args:
        envs: Names, with commas between them if they are one text; also for `methods`.
        methods: Arms of these methods stay; a method that the study has not becomes an arm without settings of its own.
        steps: Of every run, in the place of the study's or of the tasks' budgets.
        settings: As `field=value`, for all arms; a field given several times spans a grid. Or values by field.
    """
    if seeds is not None:
        study = study._replace(seeds=parse_seeds(seeds) if isinstance(seeds, str) else _seeds(list(seeds)))
    if envs is not None:
        study = study._replace(envs=_names("envs", _split(envs)))
    if methods is not None:
        names = _names("methods", _split(methods))
        arms = [_arms_of(study, _known_method(name)) for name in names]
        study = study._replace(arms=tuple(arm for group in arms for arm in group))
    if steps is not None:
        study = study._replace(steps=whole("steps", str(steps)), steps_by_env={})
    if settings is not None:
        study = _with_settings(study, settings if isinstance(settings, Mapping) else _assigned(settings))
    return study


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds such as `0-7` or `0,2,5-7`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdecimal() for end in ends):
            raise UserError(f"seeds = '{text}': must be whole numbers or ranges, such as 0-7 or 0,2,5-7")
        low, high = (whole("seeds", end, least=0) for end in ends)
        if high < low:
            raise UserError(f"seeds = '{text}': '{part.strip()}' ends before it begins")
        if high - low >= MOST_SEEDS:
            raise UserError(f"seeds = '{text}': at most {MOST_SEEDS} seeds")
        found += range(low, high + 1)
    return _once("seeds", found)


def _parsed(text: str, source: str) -> dict[str, Any]:
    """Read TOML, naming the line of a mistake."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = f"(at line {len(text.splitlines())}, the end of the file)"
        said = " ".join(str(error).replace("(at end of document)", last).split())
        raise UserError(f"study = '{source}': not valid TOML, {said}") from None
    except RecursionError:
        raise UserError(f"study = '{source}': not valid TOML, nested too deeply") from None


def _study(name: str, data: dict[str, Any], source: str = "") -> Study:
    """Check what a file says; each mistake names the file."""
    try:
        return _checked(name, data)
    except UserError as error:
        raise UserError(f"study = '{source or name}': {error}") from None


def _checked(name: str, data: dict[str, Any]) -> Study:
    for key in data:
        if key not in KEYS:
            raise UserError(f"unknown key {key}{nearest(key, KEYS)}; allowed: {', '.join(KEYS)}")
    summary, diagnose = data.get("summary", ""), data.get("diagnose", False)
    if not isinstance(summary, str) or "\n" in summary:
        raise UserError(f"summary = {summary!r}: must be a text of one line")
    if not isinstance(diagnose, bool):
        raise UserError(f"diagnose = {diagnose!r}: must be true or false")
    envs = _names("envs", data.get("envs", []))
    shared = _grid(data.get("settings", {}))
    steps = data.get("steps")
    by_env = steps if isinstance(steps, dict) else {}
    for env in by_env:
        if env not in envs:
            raise UserError(f"steps of '{env}': not among its envs{nearest(env, envs)}")
    return Study(
        name,
        summary,
        envs,
        _arms(data, shared),
        _seeds(data.get("seeds", [0])),
        None if steps is None or isinstance(steps, dict) else _whole("steps", steps),
        {env: _whole(f"steps of '{env}'", value) for env, value in by_env.items()},
        diagnose,
        _steps(data.get("archive_at", [])),
        shared,
    )


def _arms(data: dict[str, Any], shared: Grid) -> tuple[Arm, ...]:
    """Return the methods without settings of their own, then those with."""
    methods = _names("methods", data["methods"]) if "methods" in data else ()
    arms = [Arm(_known_method(method), dict(shared)) for method in methods]
    tables = data.get("arms", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserError("arms: must be tables, each after a line [[arms]]")
    for table in tables:
        for key in table:
            if key not in ("method", "settings"):
                raise UserError(f"arms: unknown key {key}{nearest(key, ('method', 'settings'))}")
        if not isinstance(table.get("method"), str):
            raise UserError('arms: each needs method = "..."')
        arms.append(Arm(_known_method(table["method"]), {**shared, **_grid(table.get("settings", {}))}))
    if not arms:
        raise UserError("methods: needs at least one, or a table [[arms]]")
    return tuple(arms)


def _arms_of(study: Study, method: str) -> list[Arm]:
    own = [arm for arm in study.arms if arm.method == method]
    return own or [Arm(method, dict(study.shared))]


def _known_method(name: str) -> str:
    if name not in METHODS:
        raise UserError(f"method = '{name}': unknown{nearest(name, METHODS)}; allowed: {', '.join(METHODS)}")
    return name


def _grid(table: Any) -> dict[str, tuple[Any, ...]]:
    """Read a table of settings, each with one value or a list of them."""
    if not isinstance(table, Mapping):
        raise UserError("settings: must be a table")
    grid: dict[str, tuple[Any, ...]] = {}
    for name, value in by_dotted_names(table).items():
        if name in OWN_KEYS:
            raise UserError(f"settings: {name} has a key of its own, {OWN_KEYS[name]}")
        values = value if isinstance(value, tuple) else (value,)
        if not values:
            raise UserError(f"{name} = []: needs at least one value")
        grid[name] = _once(name, [_value(name, entry) for entry in values])
    return grid


def _value(name: str, value: Any) -> Any:
    """Read one value of a setting, as it stands in a file or after `field=`."""
    if not isinstance(value, str | bool | int | float):
        raise UserError(f"{name} = {value!r}: must be a number, a text, or a list of these; several numbers are a text")
    return parse_value(name, value if isinstance(value, str) else shown(value))


def _assigned(words: Iterable[str]) -> dict[str, list[str]]:
    """Read `field=value` words; commas separate the values of a grid where a setting holds one number."""
    single = {leaf.name for leaf in leaves() if get_args(leaf.kind)[-1:] != (Ellipsis,)}
    found: dict[str, list[str]] = {}
    for word in words:
        name, text = assignment(word)
        found.setdefault(name, []).extend(text.split(",") if name in single else [text])
    return found


def _with_settings(study: Study, given: Mapping[str, Any]) -> Study:
    """Return a study whose arms all have these settings in the place of their own."""
    special = {name: value for name, value in given.items() if name in ("diagnose", "archive_at")}
    for name, value in special.items():
        texts = value if isinstance(value, list | tuple) else [value]
        if len(texts) != 1:
            raise UserError(f"{name}: is the same for all runs; give it once")
        study = study._replace(**{name: _value(name, texts[0])})
    grid = _grid({name: value for name, value in given.items() if name not in special})
    arms = tuple(Arm(arm.method, {**arm.settings, **grid}) for arm in study.arms)
    return study._replace(arms=arms, shared={**study.shared, **grid})


def _split(value: str | Sequence[str]) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _names(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(entry, str) and entry for entry in value):
        raise UserError(f"{key} = {value!r}: must be a list of names, at least one")
    return _once(key, value)


def _seeds(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_seeds(value)
    if not isinstance(value, list) or not value:
        raise UserError(f'seeds = {value!r}: must be a range such as "0-7", or a list')
    return _once("seeds", [_whole("seeds", seed, least=0) for seed in value])


def _steps(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UserError(f"archive_at = {value!r}: must be a list of steps")
    return _once("archive_at", [_whole("archive_at", step) for step in value])


def _whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{name} = {value!r}: must be a whole number")
    return whole(name, str(value), least)


def _once(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values if none is there twice."""
    found: dict[Any, None] = {}
    for value in values:
        if value in found:
            raise UserError(f"{name}: {shown(value)} is there twice")
        found[value] = None
    return tuple(found)
