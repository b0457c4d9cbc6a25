"""The command line. JAX is imported by the commands that need it, so `--help` answers at once."""

import argparse
import json
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pdml.cli import look
from pdml.config import schema as configs
from pdml.config import validate
from pdml.config.schema import METHODS, PRESETS, Config
from pdml.config.tasks import TASKS
from pdml.core.errors import RunError, UserError, nearest
from pdml.reporting.style import FIGURES
from pdml.runs import directory
from pdml.runs.device import available_threads, prepare

FIRST = ("env", "method", "preset")
"""Fields that decide the defaults of all others, so they are read first."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are one sentence."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UserError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = lambda message, *where, **more: print(f"pdml: {message}", file=sys.stderr)
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # so that module:Id finds a module beside us
    try:
        return _dispatch(words)
    except UserError as error:
        print(f"pdml: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("pdml: interrupted", file=sys.stderr)
        return 130


def _dispatch(words: list[str]) -> int:
    parser = Parser(prog="pdml", description="Learn control policies from few real steps with a learned model.")
    parser.add_argument("--version", action="version", version=f"pdml {directory.package_version('pdml')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    base, train_words = _defaults(words[1:]) if words[:1] == ["train"] else (Config(), [])
    _train_parser(commands.add_parser("train", help="train a policy"), base)
    _resume_parser(commands.add_parser("resume", help="go on with a run that was stopped"))
    _eval_parser(commands.add_parser("eval", help="evaluate the policy of a run"))
    _check_parser(commands.add_parser("check", help="try an environment and tell what will not work"))
    _list_parser(commands.add_parser("list", help="list presets, environments, methods, figures or settings"))
    _bench_parser(commands.add_parser("bench", help="measure speed in percent of this machine's matmul peak"))
    look.add_commands(commands)
    options, unknown = parser.parse_known_args(["train", *train_words] if words[:1] == ["train"] else words)
    if unknown:
        _refuse(unknown[0], options.command, commands.choices[options.command])
    options.words = words
    return options.run(options)


def _refuse(word: str, command: str, parser: argparse.ArgumentParser) -> NoReturn:
    """Name an argument that does not exist, and the nearest that does."""
    name = word.partition("=")[0]
    if command == "train" and name.startswith("--"):
        validate.parse(name[2:].replace("-", "_"), "")
    known = [flag[2:] for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    near = nearest(name[2:], known) if name.startswith("--") else ""
    raise UserError(f"'{name}': pdml {command} has no such argument{near}; see pdml {command} --help")


def _train_parser(parser: argparse.ArgumentParser, base: Config) -> None:
    parser.description = (
        "Train a policy. The defaults shown are those of --env, --method and --preset, or of --config FILE;\n"
        "give these together with --help to see others."
    )
    parser.add_argument("--config", metavar="FILE", help="config.json of a run to repeat; other options override it")
    parser.add_argument("--run-dir", metavar="DIR", type=Path, help="where to keep the run (default: runs/...)")
    parser.add_argument("--threads", metavar="N", help="cores to use (default: all)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --run-dir, if there is one")
    group: Any = parser
    for leaf in configs.leaves():
        section = leaf.name.rpartition(".")[0]
        if section and (not hasattr(group, "title") or group.title != section):
            group = parser.add_argument_group(section)
            group.title = section
        words = f"; one of {', '.join(leaf.choices)}" if leaf.choices else ""
        text = f"{leaf.help}{words} (default: {shown(configs.get(base, leaf.name))})".replace("%", "%%")
        if leaf.methods and base.method not in leaf.methods:
            text = argparse.SUPPRESS
        flags = dict.fromkeys([f"--{leaf.name.replace('_', '-')}", f"--{leaf.name}"])
        switch: dict[str, Any] = {"nargs": "?", "const": "true"} if leaf.kind is bool else {}
        group.add_argument(*flags, dest=f"field:{leaf.name}", metavar="X", help=text, default=None, **switch)
    parser.set_defaults(run=_train, base=base)


def shown(value: Any) -> str:
    """Write a value as it is typed on the command line."""
    if isinstance(value, tuple) and not isinstance(value, configs.ByTask):
        return ",".join(str(entry) for entry in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "learned" if value is None else str(value)


def _defaults(words: list[str]) -> tuple[Config, list[str]]:
    """Read what decides the defaults; return them and the remaining words."""
    parser = Parser(add_help=False)
    for name in ("config", *FIRST):
        parser.add_argument(f"--{name}")
    first, rest = parser.parse_known_args(words)
    if first.config is None:
        chosen = {name: getattr(first, name) for name in FIRST if getattr(first, name) is not None}
        return configs.defaults(**{"env": Config().env, **chosen}), rest
    base = validate.read_config(Path(first.config))
    for name in ("env", "preset"):
        given = getattr(first, name)
        if given is not None and given != getattr(base, name):
            raise UserError(
                f"--{name} = '{given}': the values of '{first.config}' belong to '{getattr(base, name)}'; "
                f"leave out --{name} or --config"
            )
    if first.method is None:
        return base, rest
    other = configs.rebase(base, first.method)
    try:
        validate.check(other)
    except UserError as error:
        raise UserError(f"'{first.config}' does not fit --method {first.method}: {error}") from None
    return other, rest


def _train(options: argparse.Namespace) -> int:
    given = {name[6:]: text for name, text in vars(options).items() if name.startswith("field:") and text is not None}
    changes = {name: validate.parse(name, text) for name, text in given.items()}
    validate.refuse_foreign(options.base.method, changes)
    config = validate.check_length(validate.check(configs.change(options.base, changes)))
    if options.resume and options.run_dir is None:
        raise UserError("--resume needs --run-dir: which run to go on with")
    path = options.run_dir or directory.default_path(config)
    if options.resume and (path / "config.json").exists():
        _same_run(config, path)
        if (path / "DONE").exists() and validate.read_config(path / "config.json").steps == config.steps:
            print(f"done already: {path}")
            return 0
        return _resume_run(path, config.steps, options, or_begin=True)
    directory.check_free(path)
    threads = prepare(_threads(options))

    from pdml.runs.session import run

    head = f"{config.method} on {config.env}, {config.steps} steps, seed {config.seed}: {path}"

    def say(line: str) -> None:
        print(f"{head}\n{line}", flush=True)

    return _watched(path, lambda command: run(config, path, threads, command, say), options)


def _same_run(config: Config, path: Path) -> None:
    """Raise unless a directory's run has this configuration, but for its number of steps."""
    kept = validate.read_config(path / "config.json")
    for leaf in configs.leaves():
        was, now = configs.get(kept, leaf.name), configs.get(config, leaf.name)
        if was != now and leaf.name != "steps":
            raise UserError(f"run-dir = '{path}': its run has {leaf.name} = {shown(was)}, not {shown(now)}")


def _watched(path: Path, work: Callable[[str], Any], options: argparse.Namespace) -> int:
    """Do the work of a run; Ctrl-C and SIGTERM save it, a failure is one line."""
    from pdml.core import signals
    from pdml.runs import checkpoint

    def hint() -> str:
        return f"; go on with: pdml resume {shlex.quote(str(path))}" if checkpoint.saved(path) else ""

    try:
        with signals.listening():
            work(f"pdml {shlex.join(options.words)}")
    except UserError:
        raise
    except signals.Stopped as stopped:
        print(f"pdml: stopped ({stopped}){hint() or '; nothing was saved yet'}", file=sys.stderr)
        return 128 + stopped.number
    except Exception as error:
        said = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        said = " ".join(said.split())
        where = f"; see {path / 'error.txt'}" if (path / "error.txt").exists() else ""
        print(f"pdml: the run failed ({said}){where}{hint()}", file=sys.stderr)
        return 1
    print(f"done: {path}")
    return 0


def _resume_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Go on with a run from its last whole checkpoint, as if it had never stopped."
    parser.add_argument("path", metavar="RUN", type=Path, help="directory of the run")
    parser.add_argument("--steps", metavar="N", help="real steps in all, to go further than was meant")
    parser.add_argument("--threads", metavar="N", help="cores to use (default: as many as before)")
    parser.set_defaults(run=_resume)


def _resume(options: argparse.Namespace) -> int:
    directory.require(options.path)
    return _resume_run(options.path, None if options.steps is None else validate.whole("steps", options.steps), options)


def _resume_run(path: Path, steps: int | None, options: argparse.Namespace, or_begin: bool = False) -> int:
    """Resume with the threads that the run had, since they decide the last bits."""
    threads = _threads(options) or directory.threads_of(path)
    threads = prepare(min(threads, available_threads()) if threads else None)

    from pdml.runs.session import resume

    def say(line: str) -> None:
        print(f"pdml: {line}", file=sys.stderr)

    return _watched(path, lambda command: resume(path, steps, threads, command, say, or_begin), options)


def _eval_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Evaluate the last policy of a run in fresh environments."
    parser.add_argument("path", metavar="RUN", type=Path, help="directory of the run")
    parser.add_argument("--episodes", metavar="N", default="10", help="episodes (default: 10)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the mode")
    parser.add_argument("--seed", metavar="S", help="seed of the starting states (default: the run's)")
    parser.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    episodes = validate.whole("episodes", options.episodes)
    seed = None if options.seed is None else validate.whole("seed", options.seed, least=0)
    directory.require(options.path)
    prepare()

    from pdml.runs.session import evaluate_run

    step, results = evaluate_run(options.path, episodes, options.stochastic, seed)
    totals = [result.total for result in results]
    mean = sum(totals) / len(totals)
    spread = (sum((total - mean) ** 2 for total in totals) / max(len(totals) - 1, 1)) ** 0.5
    for i, result in enumerate(results):
        print(f"episode {i}  return {result.total:.1f}  length {result.length}")
    print(f"policy of step {step}: mean return {mean:.1f}, standard deviation {spread:.1f}, {len(totals)} episodes")
    return 0


def _check_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Try an environment with random actions and tell what will not work. The exit code is 0 if it can be learned,\n"
        "1 if there is a problem."
    )
    parser.add_argument("env", metavar="ENV", help="environment id, or module:Id")
    parser.add_argument("--steps", metavar="N", default="300", help="most random steps (default: 300)")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    steps = validate.whole("steps", options.steps)
    prepare()

    from pdml.envs.env_check import examine_env

    findings = examine_env(options.env, steps)
    for finding in findings:
        print(f"{finding.kind:8s} {finding.text}")
    problems = sum(finding.kind == "problem" for finding in findings)
    if problems:
        print(f"cannot be learned: {problems} problem{'s' if problems > 1 else ''}")
        return 1
    print(f"can be learned: pdml train --env {shlex.quote(options.env)}")
    return 0


def _list_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "List what can be chosen."
    parser.add_argument("what", choices=("presets", "envs", "methods", "figures", "settings"))
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    if options.what == "methods":
        lines = [f"{name:17s} {text}" for name, text in METHODS.items()]
    elif options.what == "settings":
        lines = settings_table()
    elif options.what == "figures":
        lines = [f"{name:12s} {text}" for name, text in FIGURES.items()]
    elif options.what == "presets":
        lines = [f"{name:10s} {_changes(changes)}" for name, changes in PRESETS.items()]
    else:
        lines = [
            f"{name + '-' + version:21s} obs {task.obs_size:2d}  action {task.action_size:2d}  steps {task.budget:6d}"
            f"  warm-up {task.warmup_steps}  horizon {task.horizon.shortest} to {task.horizon.longest}"
            for name, task in TASKS.items()
            for version in task.versions
        ]
    print("\n".join(lines))
    return 0


def settings_table() -> list[str]:
    """Return every setting, with its default for PDML on Hopper, as a table."""
    base = configs.defaults("Hopper-v5")
    lines = ["| setting | default | allowed | what it is | methods |", "|---|---|---|---|---|"]
    for leaf in configs.leaves():
        allowed = ", ".join(leaf.choices) or leaf.within
        readers = validate.group_of(leaf.methods).removeprefix("the ") or ", ".join(leaf.methods) or "all"
        default = shown(configs.get(base, leaf.name))
        lines.append(f"| `{leaf.name}` | {default} | {allowed} | {leaf.help} | {readers} |")
    return lines


def _changes(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {shown(value)}" for name, value in changes.items()) or "the defaults, nothing changed"


def _bench_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure each phase on Hopper sizes against the machine's own float32 matmul peak,\n"
        "or, with --method, what a real step of a method costs next to one of MBPO."
    )
    parser.add_argument("--method", metavar="NAME", help="a method; see pdml list methods")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--threads", metavar="N", help="cores to use (default: all)")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    if options.method is not None:
        configs.defaults(Config().env, options.method)
    threads = prepare(_threads(options))

    from pdml.studies.benchmark import measure, measure_method, method_table, table

    if options.method is None:
        result, show = measure(threads), table
    else:
        result, show = measure_method(options.method, threads), method_table
    print(json.dumps(result) if options.json else show(result))
    return 0


def _threads(options: argparse.Namespace) -> int | None:
    return None if options.threads is None else validate.whole("threads", options.threads)
