"""The command line. JAX is imported by the commands that need it, so `--help` answers at once."""

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from pdml.cli import info, look, results, sweep, train, tune
from pdml.cli.parser import Parser, refuse_argument
from pdml.core.errors import BUSY_EXIT, BusyError, RunError, UserError
from pdml.core.version import package_version
from pdml.runs.device import quieten_xla

IMPORTING = ("train", "resume", "eval", "check", "video", "analyse", "sweep", "tune")
"""The commands that import modules that a user or a run names; `pdml report --frames` does so too."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = lambda message, *where, **more: print(f"pdml: {message}", file=sys.stderr)
    if (words[:1] and words[0] in IMPORTING) or "--frames" in words:
        _find_modules_here()
        quieten_xla()  # an environment that is not listed is made, and JAX imported, before `prepare`
    try:
        code = _dispatch(words)
        sys.stdout.flush()  # here a reader that has gone is noticed, and not when Python ends
        return code
    except UserError as error:
        print(f"pdml: {error}", file=sys.stderr)
        return BUSY_EXIT if isinstance(error, BusyError) else 2
    except RunError as error:  # of an environment that is evaluated or analysed; `pdml train` has its own line
        print(f"pdml: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("pdml: interrupted", file=sys.stderr)
        return 130


def _find_modules_here() -> None:
    """Let `module:Id` find a module in the current directory; installed ones come first."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _dispatch(words: list[str]) -> int:
    parser = Parser(
        prog="pdml", description="Learn continuous-control policies from few real steps with a learned model."
    )
    parser.add_argument("--version", action="version", version=f"pdml {package_version('pdml')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    remaining = train.add_commands(commands, words)
    info.add_commands(commands)
    look.add_commands(commands)
    results.add_commands(commands)
    sweep.add_commands(commands)
    tune.add_commands(commands)
    options, unknown = parser.parse_known_args(remaining)
    if unknown:
        refuse_argument(unknown[0], options.command, commands.choices[options.command])
    options.words = words
    return options.run(options)
