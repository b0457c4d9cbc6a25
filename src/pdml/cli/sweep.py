"""The commands about many runs: sweep and status."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdml.cli.parser import path_named
from pdml.config.parse import whole
from pdml.core.errors import UserError
from pdml.core.signals import Stopped

if TYPE_CHECKING:
    from pdml.sweeps.plan import PlannedRun
    from pdml.sweeps.study import Study
    from pdml.sweeps.view import SweepView
    from pdml.sweeps.worker import Outcome

ON = ("local", "ray")


def add_commands(commands: Any) -> None:
    """Add the commands; what they need is imported when they run."""
    _sweep_parser(commands.add_parser("sweep", help="do all runs of a study, on this machine or on a cluster"))
    _status_parser(commands.add_parser("status", help="show the status of runs"))


def _sweep_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Do all runs of a study: environments, methods, seeds and settings. A finished run is skipped, a broken one\n"
        "resumed. Ctrl-C saves and stops all; the same command resumes. `pdml list studies` has all that come with\n"
        "the package; STUDY can also be a .toml file of your own. The exit code is 1 if a run failed."
    )
    add_choices(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print the runs, with the time and disk they need")
    parser.add_argument("--on", choices=ON, default="local", help="this machine, or a Ray cluster (default: local)")
    parser.add_argument("--address", metavar="A", help="of the cluster's head node, for --on ray (default: auto)")
    parser.add_argument("--cpus-per-run", metavar="N", default="1", help="cores of each run (default: 1)")
    parser.set_defaults(run=_sweep)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the study and the options that change it, and where and how its runs are done."""
    parser.usage = "%(prog)s STUDY [option ...]"
    parser.add_argument("study", metavar="STUDY", nargs="?", help="a name, or a .toml file")
    parser.add_argument("--seeds", metavar="S", help="instead of the study's, e.g. 0-7 or 0,3")
    parser.add_argument("--envs", metavar="ENV", nargs="+", help="instead of the study's")
    parser.add_argument("--methods", metavar="NAME", nargs="+", help="instead of all the study's")
    parser.add_argument("--steps", metavar="N", help="real steps of each run")
    parser.add_argument("--set", metavar="FIELD=VALUE", nargs="+", action="extend", default=[], help="a setting of all")
    parser.add_argument(
        "--out", metavar="DIR", type=path_named("out"), help="directory of the runs (default: runs/STUDY)"
    )
    parser.add_argument("--jobs", metavar="N", help="runs at a time (default: physical cores, if memory suffices)")


def _sweep(options: argparse.Namespace) -> int:
    from pdml.sweeps.cost import costs, describe_plan, jobs_in_memory, require_disk, require_memory
    from pdml.sweeps.local import run_local
    from pdml.sweeps.plan import plan, split_done
    from pdml.sweeps.view import SweepView

    cpus, jobs = _cpus_and_jobs(options)
    study = chosen_study(options)
    out = options.out or Path("runs") / study.name
    runs = plan(study, out, cpus)
    done, left = split_done(runs)
    if options.on == "ray" and not options.dry_run:
        from pdml.sweeps.on_ray import require_cluster

        require_cluster(options.address)
    needed = costs(runs, out)
    fitting = jobs_in_memory(needed, jobs) if options.on == "local" and options.jobs is None else jobs
    if options.dry_run:
        print(describe_plan(runs, fitting, needed))
        return 0
    require_disk(left, needed, out)
    if options.on == "local":
        require_memory(needed, fitting)
    title = f"{study.name}: {len(runs)} runs in {out}, {len(done)} done already"
    title += f"; {fitting} at a time, for lack of memory" if fitting < jobs else ""
    view = SweepView(title, left, done, out)
    try:
        with view:
            ended = (
                _on_ray(options, left, cpus, view) if options.on == "ray" else run_local(left, fitting, view.changed)
            )
    except Stopped as stopped:
        for row in view.failures():
            print(f"pdml: {row.path}: {row.note}", file=sys.stderr)
        print(f"pdml: stopped ({stopped}); the same command resumes", file=sys.stderr)
        return 128 + stopped.number
    return _conclude(ended, len(done), out)


def _cpus_and_jobs(options: argparse.Namespace) -> tuple[int, int]:
    """Return how many cores each run has, and how many runs there are at a time."""
    from pdml.runs.device import available_threads, physical_cores

    if options.address is not None and options.on != "ray":
        raise UserError("--address: only for --on ray")
    if options.jobs is not None and options.on == "ray":
        raise UserError("--jobs: only for --on local; a cluster does as many runs at a time as it has cores")
    cpus, most = whole("cpus-per-run", options.cpus_per_run), available_threads()
    if options.on == "local" and cpus > most:
        raise UserError(f"cpus-per-run = {cpus}: must lie in [1, {most}], the cores this process may use")
    return cpus, max(physical_cores() // cpus, 1) if options.jobs is None else whole("jobs", options.jobs)


def chosen_study(options: argparse.Namespace) -> "Study":
    """Return the study that a command names, with what its options change."""
    from pdml.sweeps.study import override, read_study

    if options.study is None:
        raise UserError("STUDY is missing; it comes first, since --envs, --methods and --set take all words after them")
    study = read_study(options.study)
    return override(study, options.seeds, options.envs, options.methods, options.steps, options.set)


def _on_ray(
    options: argparse.Namespace, left: "Sequence[PlannedRun]", cpus: int, view: "SweepView"
) -> "list[tuple[PlannedRun, Outcome]]":
    from pdml.sweeps.on_ray import run_on_ray

    return run_on_ray(left, options.address, cpus, view.changed)


def _conclude(ended: "Sequence[tuple[PlannedRun, Outcome]]", before: int, out: Path) -> int:
    """Name the runs that did not finish; the exit code says whether there are any."""
    broken = [(run, outcome) for run, outcome in ended if outcome.code != 0]
    print(f"done: {before + len(ended) - len(broken)} of {before + len(ended)} runs in {out}")
    for run, outcome in broken:
        print(f"pdml: {run.path}: {outcome.reason}", file=sys.stderr)
    return 1 if broken else 0


def _status_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show how the runs below a directory stand, from their files alone."
    parser.add_argument("path", metavar="DIR", type=path_named("run"), help="directory of runs")
    parser.add_argument("--watch", action="store_true", help="show it again and again until all runs have ended")
    parser.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    from rich.console import Console

    from pdml.sweeps.status import runs_below, status_lines, status_of, status_table
    from pdml.sweeps.view import watch_runs

    found = runs_below([options.path])
    if not found:
        raise UserError(f"run = '{options.path}': no run there or below (no config.json)")
    if options.watch:
        watch_runs(options.path)
        return 0
    rows = [status_of(run) for run in found]
    if sys.stdout.isatty():
        Console().print(status_table(rows, options.path))
    else:
        print("\n".join(status_lines(rows, options.path)))
    return 0
