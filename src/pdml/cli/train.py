"""The commands that train: train and resume."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdml.cli.parser import Parser, path_named, threads_of
from pdml.config.defaults import defaults, rebase
from pdml.config.fields import change, get, leaves
from pdml.config.files import read_config, require_same
from pdml.config.parse import parse, path_of, shown, whole
from pdml.config.schema import Config, Settings
from pdml.config.start_from import START_PARTS, StartFrom, chosen_start, require_same_start
from pdml.config.tasks import Task
from pdml.config.validate import check, check_length, refuse_foreign
from pdml.core.errors import BUSY_EXIT, LostRunError, RunError, UserError
from pdml.envs.task import env_task
from pdml.runs import directory
from pdml.runs.device import available_threads, prepare

FIRST = ("env", "method", "preset")
"""Settings that decide the defaults of all others, so they are read first."""


def add_commands(commands: Any, words: list[str]) -> list[str]:
    """Add the commands; return the words that are left to parse."""
    resume = commands.add_parser("resume", help="resume a run that was stopped")
    _resume_parser(resume)
    parser = commands.add_parser("train", help="train a policy")
    if words[:1] != ["train"]:
        _train_parser(parser, Settings(), None)
        return words
    base, task, rest = _base(words[1:])
    _train_parser(parser, base, task)
    return ["train", *rest]


def _train_parser(parser: argparse.ArgumentParser, base: Settings, task: Task | None) -> None:
    parser.description = (
        "Train a policy. The defaults shown are those of --env, --method and --preset, or of --config FILE;\n"
        "give these together with --help to see others."
    )
    parser.add_argument("--config", metavar="FILE", help="config.json of a run to repeat; other options override it")
    parser.add_argument(
        "--run-dir", metavar="DIR", type=path_named("run-dir"), help="directory of the run (default: runs/...)"
    )
    parser.add_argument("--threads", metavar="N", help="cores to use (default: all)")
    text = "another run to start from, perhaps in a changed environment with the same spaces"
    parser.add_argument("--start-from", metavar="RUN", type=path_named("start-from"), help=text)
    text = f"what to take over from it, of {', '.join(START_PARTS)} (default: all that the method has)"
    parser.add_argument("--start-with", metavar="X,X", help=text)
    parser.add_argument("--resume", action="store_true", help="resume the run in --run-dir, if there is one")
    _add_common(parser)
    group: Any = parser
    for leaf in leaves():
        section = leaf.name.rpartition(".")[0]
        if section and (not hasattr(group, "title") or group.title != section):
            group = parser.add_argument_group(section)
            group.title = section
        words = f"; one of {', '.join(leaf.choices)}" if leaf.choices else ""
        text = f"{leaf.help}{words} (default: {shown(get(base, leaf.name))})".replace("%", "%%")
        if base.learning.method not in leaf.methods:
            text = argparse.SUPPRESS
        flags = dict.fromkeys([f"--{leaf.name.replace('_', '-')}", f"--{leaf.name}"])
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if leaf.kind is bool else {}
        group.add_argument(*flags, dest=f"field:{leaf.name}", metavar="X", help=text, default=None, **switch)
    parser.set_defaults(run=_train, base=base, task=task)


def _base(words: list[str]) -> tuple[Settings, Task, list[str]]:
    """Read what decides the defaults; return them, their task, and the remaining words."""
    parser = Parser(add_help=False)
    for name in ("config", *FIRST):
        parser.add_argument(f"--{name}")
    first, rest = parser.parse_known_args(words)
    if first.config is None:
        chosen = {name: getattr(first, name) for name in FIRST if getattr(first, name) is not None}
        chosen = {"env": Config.env, **chosen}
        task = env_task(chosen["env"])
        return defaults(**chosen, task=task), task, rest
    base = read_config(path_of("config", first.config))
    for name in ("env", "preset"):
        given, own = getattr(first, name), getattr(base.learning, name)
        if given is not None and given != own:
            raise UserError(
                f"--{name} = '{given}': the values of '{first.config}' belong to '{own}'; "
                f"leave out --{name} or --config"
            )
    task = env_task(base.learning.env)
    if first.method is None:
        return base, task, rest
    other = rebase(base, first.method, task)
    try:
        check(other, task)
    except UserError as error:
        raise UserError(f"'{first.config}' does not fit --method {first.method}: {error}") from None
    return other, task, rest


def _train(options: argparse.Namespace) -> int:
    given = {name[6:]: text for name, text in vars(options).items() if name.startswith("field:") and text is not None}
    changes = {name: parse(name, text) for name, text in given.items()}
    refuse_foreign(options.base.learning.method, changes)
    settings = check_length(check(change(options.base, changes), options.task))
    config, steps = settings.learning, settings.run.steps
    if options.resume and options.run_dir is None:
        raise UserError("--resume needs --run-dir: which run to resume")
    path = options.run_dir or directory.default_path(config)
    start = chosen_start(options.start_from, options.start_with, config.method)
    if start is not None and start.path.resolve() == path.resolve():
        raise UserError(f"start-from = '{start.path}': is the run of --run-dir itself")
    if options.resume and (path / "config.json").exists():
        kept = read_config(path / "config.json")
        require_same(settings, kept, path)
        require_same_start(start, path)
        if (path / "DONE").exists() and kept.run.steps == steps:
            print(f"done already: {path}")
            return 0
        return _resume_in(path, steps, options, or_begin=True, start=start)
    directory.check_free(path)
    threads = prepare(threads_of(options))
    heard = _heard(options)

    from pdml.runs.session import start_run

    head = f"{config.method} on {config.env}, {steps} steps, seed {config.seed}: {path}"

    def say(line: str) -> None:
        print(f"{head}\n{line}", flush=True)

    return _guarded(path, lambda command: start_run(settings, path, threads, command, say, heard, start), options)


def _heard(options: argparse.Namespace) -> Any:
    """Return what calls the callbacks of a command after every step."""
    from pdml.runs.session import unheard

    if not options.callback:
        return unheard
    from pdml.callbacks import heard_by, read_callback

    return heard_by([read_callback(text) for text in options.callback])


def _guarded(path: Path, work: Callable[[str], Any], options: argparse.Namespace) -> int:
    """Do the work of a run; Ctrl-C and SIGTERM save it, a failure is one line."""
    from pdml.core import signals
    from pdml.runs.checkpoint import saved_checkpoints

    def hint() -> str:
        return f"; resume with: pdml resume {shlex.quote(str(path))}" if saved_checkpoints(path) else ""

    try:
        with signals.listening():
            if options.stop_with_stdin:
                signals.stop_at_end_of(0)
            work(f"pdml {shlex.join(options.words)}")
    except UserError:
        raise
    except LostRunError as error:
        print(f"pdml: {error}", file=sys.stderr)
        return BUSY_EXIT
    except signals.Stopped as stopped:
        print(f"pdml: stopped ({stopped}){hint() or '; nothing was saved yet'}", file=sys.stderr)
        return 128 + stopped.number
    except Exception as error:
        said = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        said = " ".join(said.split())
        where = f"; see {path / 'error.txt'}" if (path / "error.txt").exists() else ""
        print(f"pdml: the run failed ({said}){where}{hint()}", file=sys.stderr)
        return 1
    print(f"done: {path}" if (path / "DONE").exists() else f"stopped by a callback: {path}{hint()}")
    return 0


def _resume_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Resume a run from its last readable checkpoint, as if it had never stopped."
    parser.add_argument("path", metavar="RUN", type=path_named("run"), help="directory of the run")
    parser.add_argument("--steps", metavar="N", help="real steps in all, to go further than the run was meant to")
    parser.add_argument("--threads", metavar="N", help="cores to use (default: as many as before)")
    _add_common(parser)
    parser.set_defaults(run=_resume)


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that say nothing about the run itself."""
    parser.add_argument(
        "--callback",
        metavar="C",
        action="append",
        default=[],
        help="module:Class or 'module:Class(name=value, ...)', a pdml.Callback to call while learning; may be repeated",
    )
    text = "save and stop when standard input ends: runs stop when the scheduler that holds its other end dies"
    parser.add_argument("--stop-with-stdin", action="store_true", help=text)


def _resume(options: argparse.Namespace) -> int:
    directory.require_run(options.path)
    return _resume_in(options.path, None if options.steps is None else whole("steps", options.steps), options)


def _resume_in(
    path: Path,
    steps: int | None,
    options: argparse.Namespace,
    or_begin: bool = False,
    start: StartFrom | None = None,
) -> int:
    """Resume with the threads that the run had, since they decide the last bits."""
    threads = threads_of(options) or directory.recorded_threads(path)
    threads = prepare(min(threads, available_threads()) if threads else None)

    heard = _heard(options)

    from pdml.runs.session import resume_run

    def say(line: str) -> None:
        print(f"pdml: {line}", file=sys.stderr)

    return _guarded(
        path, lambda command: resume_run(path, steps, threads, command, say, or_begin, heard, start), options
    )
