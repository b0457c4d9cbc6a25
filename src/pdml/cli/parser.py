"""Parsing of arguments, with errors of one sentence."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pdml.config.parse import parse, path_of, whole
from pdml.core.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UserError(message)


def refuse_argument(word: str, command: str, parser: argparse.ArgumentParser) -> NoReturn:
    """Name an argument that does not exist, and the nearest that does."""
    name = word.partition("=")[0] if word.startswith("-") else word
    if command == "train" and name.startswith("--"):
        parse(name[2:].replace("-", "_"), "")
    known = [flag[2:] for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    near = nearest(name[2:], known) if name.startswith("--") else ""
    raise UserError(f"'{name}': pdml {command} has no such argument{near}; see pdml {command} --help")


def path_named(name: str) -> Callable[[str], Path]:
    """Return what reads the path of an argument."""
    return partial(path_of, name)


def threads_of(options: argparse.Namespace) -> int | None:
    """Return the number of threads that was asked for, if any."""
    return None if options.threads is None else whole("threads", options.threads)
