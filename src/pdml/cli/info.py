"""The commands about environments, settings and the machine: check, list, bench."""

import argparse
import json
import shlex
from typing import Any

from pdml.cli.parser import threads_of
from pdml.config.defaults import defaults
from pdml.config.fields import change, get, leaves, run_names
from pdml.config.methods import GROUP_NAMES, METHODS, PRESETS, Changes
from pdml.config.parse import assignment, number, parse_value, shown, whole
from pdml.config.schema import Config
from pdml.config.tasks import TASKS
from pdml.config.validate import check, refuse_foreign
from pdml.core.errors import UserError
from pdml.reporting.style import FIGURES
from pdml.runs.device import available_threads, prepare

UNMEASURED = (
    *("env", "method", "preset", "seed", "replay_capacity", "dynamics.patience"),
    *("termination", "reward", "max_episode_steps", "time_limit_terminates"),
    *("warmup_steps", "epoch_steps", "throttle"),
    *("rollouts.shortest", "rollouts.longest", "rollouts.first_epoch", "rollouts.last_epoch"),
)
"""Settings that `pdml bench --set` does not take, beside those of a run: they are the same in every measurement."""


def add_commands(commands: Any) -> None:
    """Add the commands."""
    _check_parser(commands.add_parser("check", help="try an environment and report what will not work"))
    _list_parser(commands.add_parser("list", help="list presets, environments, methods, figures, settings or studies"))
    _bench_parser(commands.add_parser("bench", help="measure speed in percent of this machine's matmul peak"))


def _check_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Try an environment with random actions and report what will not work. The exit code is 0 if PDML can\n"
        "train on it, 1 if there is a problem, 2 if it cannot be made."
    )
    parser.add_argument("env", metavar="ENV", help="environment id, or module:Id")
    parser.add_argument("--steps", metavar="N", default="300", help="most random steps (default: 300)")
    parser.add_argument(
        "--seconds",
        metavar="S",
        default="3",
        help="take no more steps after this time; for a slow environment (default: 3)",
    )
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    steps, seconds = whole("steps", options.steps), number("seconds", options.seconds, above=0.0)
    prepare()

    from pdml.envs.env_check import check_env

    findings = check_env(options.env, steps, seconds)
    for finding in findings:
        print(f"{finding.kind:8s} {finding.text}")
    problems = sum(finding.kind == "problem" for finding in findings)
    if problems:
        print(f"PDML cannot train on it: {problems} problem{'s' if problems > 1 else ''}")
        return 1
    print(f"PDML can train on it: pdml train --env {shlex.quote(options.env)}")
    return 0


def _list_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "List what can be chosen."
    parser.add_argument("what", choices=("presets", "envs", "methods", "figures", "settings", "studies"))
    parser.set_defaults(run=_list)


def _list(options: argparse.Namespace) -> int:
    lines = {
        "methods": lambda: [f"{name:17s} {method.summary}" for name, method in METHODS.items()],
        "settings": settings_table,
        "figures": lambda: [f"{name:12s} {text}" for name, text in FIGURES.items()],
        "presets": lambda: [f"{name:10s} {_changes(preset.changes)}" for name, preset in PRESETS.items()],
        "envs": _environments,
        "studies": _studies,
    }
    print("\n".join(lines[options.what]()))
    return 0


def _environments() -> list[str]:
    return [
        f"{name + '-' + version:21s} obs {task.obs_size:2d}  action {task.action_size:2d}  steps {task.budget:6d}"
        f"  warm-up {task.warmup_steps}  horizon {task.horizon.shortest} to {task.horizon.longest}"
        for name, task in TASKS.items()
        for version in task.versions
    ]


def _studies() -> list[str]:
    from pdml.sweeps.plan import number_of_runs
    from pdml.sweeps.study import shipped_studies

    found = shipped_studies().items()
    return [f"{name:12s} {number_of_runs(study):3d} runs  {study.summary}" for name, study in found]


def settings_table() -> list[str]:
    """Return every setting, with its default for PDML on Hopper, as a table."""
    base = defaults("Hopper-v5")
    lines = ["| setting | default | allowed | what it is | methods |", "|---|---|---|---|---|"]
    for leaf in leaves():
        allowed = ", ".join(leaf.choices) or leaf.within
        readers = "all" if len(leaf.methods) == len(METHODS) else ", ".join(leaf.methods)
        readers = GROUP_NAMES.get(leaf.needs, readers)
        lines.append(f"| `{leaf.name}` | {shown(get(base, leaf.name))} | {allowed} | {leaf.help} | {readers} |")
    return lines


def _changes(changes: Changes) -> str:
    return ", ".join(f"{name} = {shown(value)}" for name, value in changes.items()) or "the defaults, nothing changed"


def _bench_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure each phase on Hopper sizes against the machine's own float32 matmul peak,\n"
        "or, with --method, what a real step of a method costs next to one of MBPO;\n"
        "with --set too, what it costs with these settings next to one with the method's own,\n"
        "or, with --jobs N, how much N pinned runs at a time do over one run with N threads."
    )
    parser.add_argument("--method", metavar="NAME", help="a method; see pdml list methods")
    parser.add_argument(
        "--set", metavar="FIELD=VALUE", nargs="+", action="extend", default=[], help="settings of the method's learning"
    )
    parser.add_argument("--jobs", metavar="N", help="runs at a time, each on a core of its own")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--threads", metavar="N", help="cores to use (default: all)")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    if options.method is not None:
        defaults(Config.env, options.method)
    if options.set and (options.method is None or options.jobs is not None):
        raise UserError("--set: needs --method, and no --jobs")
    if options.jobs is not None:
        return _bench_jobs(options)
    changes = _bench_changes(options)
    threads = prepare(threads_of(options))

    from pdml.studies import benchmark

    if options.method is None:
        result, table = benchmark.measure(threads), benchmark.phase_table
    else:
        result, table = benchmark.measure_method(options.method, threads, changes), benchmark.method_table
    print(json.dumps(result) if options.json else table(result))
    return 0


def _bench_changes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings to measure, if they are allowed and belong to learning."""
    changes: dict[str, Any] = {}
    for name, text in map(assignment, options.set):
        value = parse_value(name, text)
        if name in changes:
            raise UserError(f"set: {name} is given twice")
        if name in UNMEASURED or name in run_names():
            raise UserError(f"set: {name} is the same in every measurement; allowed are other settings of learning")
        changes[name] = value
    if changes:
        refuse_foreign(options.method, changes)
        check(change(defaults("Hopper-v5", options.method), changes))  # the task that is measured
    return changes


def _bench_jobs(options: argparse.Namespace) -> int:
    from pdml.studies.bench_jobs import jobs_table, measure_jobs

    if options.threads is not None:
        raise UserError("--threads: each of the runs of --jobs has one")
    jobs = whole("jobs", options.jobs, least=2, most=max(available_threads(), 2))
    result = measure_jobs(options.method or Config.method, jobs)
    print(json.dumps(result) if options.json else jobs_table(result))
    return 0
