"""The commands about finished or running runs: eval, figure, summary, report, video, export, analyse."""

import argparse
import time
from pathlib import Path
from typing import Any

from pdml.cli.parser import path_named
from pdml.cli.problems import name_problems
from pdml.config.parse import number, whole
from pdml.core.errors import UserError, nearest
from pdml.reporting.style import ENDINGS, FIGURES
from pdml.runs.policy_files import FILES, FORMATS, policy_file

WATCH_SECONDS = 10
"""Between two pages of `pdml report --watch`."""


def add_commands(commands: Any) -> None:
    """Add the commands; what they need is imported when they run."""
    _eval_parser(commands.add_parser("eval", help="evaluate the policy of a run"))
    _figure_parser(commands.add_parser("figure", help="draw a figure of runs: png, pdf and csv"))
    _summary_parser(commands.add_parser("summary", help="print a table of runs, seed by seed"))
    _report_parser(commands.add_parser("report", help="write one html page about runs"))
    _video_parser(commands.add_parser("video", help="record the policy of a run"))
    _export_parser(commands.add_parser("export", help="write the policy of a run for other tools"))
    _analyse_parser(commands.add_parser("analyse", help="analyse a run, or the paper's theory"))


def _eval_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Evaluate the last policy of a run, or its best one, in fresh environments."
    parser.add_argument("path", metavar="RUN", type=path_named("run"), help="directory of the run")
    parser.add_argument("--episodes", metavar="N", default="10", help="episodes (default: 10)")
    parser.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the mode")
    parser.add_argument("--seed", metavar="S", help="seed of the initial states (default: the run's)")
    parser.add_argument("--policy", choices=tuple(FILES), default="last", help="which policy (default: last)")
    parser.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from pdml.runs.device import prepare
    from pdml.runs.directory import require_run

    episodes = whole("episodes", options.episodes)
    seed = None if options.seed is None else whole("seed", options.seed, least=0)
    require_run(options.path)
    prepare()

    from pdml.runs.saved_policy import evaluate_run

    step, results = evaluate_run(options.path, episodes, options.stochastic, seed, options.policy)
    totals = [result.total for result in results]
    mean = sum(totals) / len(totals)
    spread = (sum((total - mean) ** 2 for total in totals) / max(len(totals) - 1, 1)) ** 0.5
    for i, result in enumerate(results):
        print(f"episode {i}  return {result.total:.1f}  length {result.length}")
    which = "best policy, of step" if options.policy == "best" else "policy of step"
    print(f"{which} {step}: mean return {mean:.1f}, standard deviation {spread:.1f}, {len(totals)} episodes")
    return 0


def _figure_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a figure of runs; a directory stands for every run below it. `pdml list figures` has all."
    )
    parser.add_argument("name", metavar="NAME", help="which figure")
    parser.add_argument("paths", metavar="RUN", type=path_named("run"), nargs="+", help="directories of runs")
    parser.add_argument(
        "--out", metavar="DIR", type=path_named("out"), default=Path("figures"), help="where to (default: figures)"
    )
    parser.add_argument("--at", metavar="STEPS", default="", help="steps after warm-up, e.g. 20000,40000")
    parser.add_argument("--threshold", metavar="RETURN", help="return to reach (default: the paper's last MBPO)")
    parser.add_argument("--seed", metavar="S", default="0", help="seed of the bootstrap (default: 0)")
    parser.add_argument("--only", choices=ENDINGS, help="write one of the three files (default: all)")
    parser.add_argument("--check", action="store_true", help="draw nothing; exit code 1 if the png has other numbers")
    parser.set_defaults(run=_figure)


def _figure(options: argparse.Namespace) -> int:
    if options.name not in FIGURES:
        allowed = ", ".join(FIGURES)
        raise UserError(f"figure = '{options.name}': unknown{nearest(options.name, FIGURES)}; allowed: {allowed}")

    from pdml.reporting.figures import FigureOptions, is_current, save_figure
    from pdml.reporting.read import read_all

    threshold = None if options.threshold is None else number("threshold", options.threshold)
    chosen = FigureOptions(_steps(options.at), threshold, whole("seed", options.seed, least=0))
    problems: list[str] = []
    runs = read_all(options.paths, problems)
    problems += [problem for run in runs for problem in run.problems]
    try:
        if options.check:
            current = is_current(options.name, runs, options.out, chosen)
            print(f"{options.out / options.name}.png: {'up to date' if current else 'out of date'}")
            return name_problems(problems) or int(not current)
        endings = ENDINGS if options.only is None else (options.only,)
        paths, rows = save_figure(options.name, runs, options.out, chosen, endings)
    except UserError:
        name_problems(problems)
        raise
    for note in rows.notes:
        print(f"note: {note}")
    for path in paths:
        print(path)
    return name_problems([*problems, *rows.problems])


def _summary_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a table of runs: the last evaluations of every seed, their mean, and first passages."
    parser.add_argument("paths", metavar="RUN", type=path_named("run"), nargs="+", help="directories of runs")
    parser.add_argument("--goal", metavar="RETURN", help="return to reach (default: 950)")
    parser.add_argument("--last", metavar="N", help="evaluations to average per seed (default: 1)")
    parser.add_argument("--until", metavar="STEPS", help="as if every run had ended at this real step")
    parser.add_argument("--short", action="store_true", help="means only, beside the published ones")
    parser.add_argument("--behaviour", action="store_true", help="what may explain the returns, as in the figure")
    parser.set_defaults(run=_summary)


def _summary(options: argparse.Namespace) -> int:
    from pdml.reporting.behaviour_table import behaviour_table
    from pdml.reporting.read import read_all
    from pdml.reporting.seed_table import seed_table, short_table

    until = None if options.until is None else whole("until", options.until)
    last = 1 if options.last is None else whole("last", options.last)
    goal = 950.0 if options.goal is None else number("goal", options.goal)
    if options.short and options.goal is not None:
        raise UserError("--goal belongs to the table of seeds; the table of --short has no first passages")
    given = [name for name in ("goal", "last", "until", "short") if getattr(options, name)]
    if options.behaviour and given:
        raise UserError(f"--{given[0]} belongs to the tables of returns; the table of --behaviour has none")
    problems: list[str] = []
    runs = read_all(options.paths, problems)
    if options.behaviour:
        table = behaviour_table(runs, problems)
    else:
        tables = {}
        for env in sorted({run.config.env for run in runs}):
            its = [run for run in runs if run.config.env == env]
            tables[env] = short_table(its, last, until) if options.short else seed_table(its, goal, last, until)
        named = [f"{env}:\n\n{table}" for env, table in tables.items()] if len(tables) > 1 else tables.values()
        table = "\n\n".join(named)
    print(table)
    return name_problems([*problems, *(problem for run in runs for problem in run.problems)])


def _report_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write one self-contained html page about runs, finished, unfinished or failed."
    parser.add_argument("paths", metavar="RUN", type=path_named("run"), nargs="+", help="directories of runs")
    parser.add_argument(
        "--out", metavar="FILE", type=path_named("out"), default=Path("report.html"), help="(default: report.html)"
    )
    parser.add_argument(
        "--frames",
        action=argparse.BooleanOptionalAction,
        help="pictures of policies at work (default: unless that imports the module of a `module:Id`)",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="write it every 10 s, without pictures, until all runs have ended; the open page loads itself again",
    )
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    frames = options.frames is not False
    if options.watch:
        frames = _watch(options) and frames
    line, problems = _write_report(options, frames)
    print(line)
    return name_problems(problems)


def _watch(options: argparse.Namespace) -> bool:
    """Write the page again and again until all runs have ended, or until Ctrl-C; say whether all have."""
    from pdml.sweeps.status import runs_below, status_of

    said = False
    try:
        while not all(status_of(run).ended for run in runs_below(options.paths)):
            below = [runs_below([path]) for path in options.paths]
            begun = [any((run / "config.json").exists() for run in runs) for runs in below if runs]
            if all(begun):  # until then there is nothing to show
                line, _ = _write_report(options, frames=False, reload=WATCH_SECONDS)
                if not said:
                    print(f"{line}; written every {WATCH_SECONDS} s until all have ended, Ctrl-C ends it", flush=True)
                    said = True
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return False
    return True


def _write_report(options: argparse.Namespace, frames: bool, reload: int = 0) -> tuple[str, list[str]]:
    """Write the page once; return a line about it, and what could not be read.

    Args:
        reload: Seconds after which an open page loads itself again; 0: never.
    """
    from pdml.reporting import report
    from pdml.reporting.read import read_all

    problems: list[str] = []
    runs = read_all(options.paths, problems)
    pictures = {}
    if frames:
        from pdml.runs.device import prepare

        prepare()

        from pdml.studies.strips import strips

        pictures = strips(runs, import_modules=bool(options.frames))
    size = report.write(runs, options.out, pictures, problems, reload)
    return f"{options.out} ({size / 1e6:.1f} MB, {len(runs)} runs)", problems


def _video_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Record episodes of a run's last policy, or of its best one, as mp4."
    parser.add_argument("path", metavar="RUN", type=path_named("run"), help="directory of the run")
    parser.add_argument("--episodes", metavar="N", default="1", help="episodes (default: 1)")
    parser.add_argument("--seed", metavar="S", help="seed of the starting states (default: the run's)")
    parser.add_argument("--policy", choices=tuple(FILES), default="last", help="which policy (default: last)")
    parser.add_argument("--out", metavar="DIR", type=path_named("out"), help="where to (default: videos in the run)")
    parser.set_defaults(run=_video)


def _video(options: argparse.Namespace) -> int:
    from pdml.runs.device import prepare
    from pdml.runs.directory import require_run
    from pdml.studies.video import record

    episodes = whole("episodes", options.episodes)
    seed = None if options.seed is None else whole("seed", options.seed, least=0)
    policy_file(require_run(options.path), options.policy)
    prepare()
    for path in record(options.path, episodes, options.out or options.path / "videos", seed, options.policy):
        print(path)
    return 0


def _export_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write the deterministic policy of a run to one file that needs neither PDML nor JAX."
    parser.add_argument(
        "path", metavar="RUN", type=path_named("run"), help="directory of the run, or the file of a policy"
    )
    parser.add_argument("--to", choices=FORMATS, required=True, help="onnx: a graph; npz: the arrays")
    parser.add_argument("--policy", choices=tuple(FILES), default="last", help="which policy (default: last)")
    parser.add_argument(
        "--out", metavar="FILE", type=path_named("out"), help="where to (default: policy.onnx or .npz in the run)"
    )
    parser.set_defaults(run=_export)


def _export(options: argparse.Namespace) -> int:
    from pdml.runs.export import export_policy
    from pdml.runs.policy import Policy

    source: Path = options.path
    policy = Policy.load(source, options.policy)
    name = Path(FILES[options.policy]).with_suffix(f".{options.to}")
    out: Path = options.out or (source / name if source.is_dir() else source.with_suffix(f".{options.to}"))
    export_policy(policy, out, options.to)
    print(out)
    return 0


def _analyse_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "converged RUN: train archived models further, to a plateau or 500 epochs, and test them on fresh steps.\n"
        "critics RUN: values of archived critics against the returns of fresh episodes of their policies.\n"
        "weightings RUN: new models fitted to the same data with three weightings, tested on fresh steps.\n"
        "tsne RUN: states and actions that policies of a run visit, in the plane.\n"
        "theory: the paper's Theorem 1 and Proposition on random finite MDPs."
    )
    parser.add_argument("what", choices=("converged", "critics", "weightings", "tsne", "theory"))
    parser.add_argument("path", metavar="RUN", type=path_named("run"), nargs="?", help="directory of the run")
    parser.add_argument(
        "--at", metavar="STEPS", default="", help="steps after warm-up (default: all archived; tsne, weightings: five)"
    )
    parser.add_argument(
        "--steps", metavar="N", help="converged, weightings, tsne: fresh steps of each policy (default: 1000)"
    )
    parser.add_argument("--episodes", metavar="N", help="critics: fresh episodes of each policy (default: 10)")
    parser.add_argument("--seed", metavar="S", default="0", help="of t-SNE, or of the random MDPs (default: 0)")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=path_named("out"),
        help="theory: keep its rows as csv there; the others keep theirs in the run",
    )
    parser.set_defaults(run=_analyse)


def _analyse(options: argparse.Namespace) -> int:
    at, seed = _steps(options.at), whole("seed", options.seed, least=0)
    fresh = 1000 if options.steps is None else whole("steps", options.steps)
    episodes = 10 if options.episodes is None else whole("episodes", options.episodes)
    if options.episodes is not None and options.what != "critics":
        raise UserError(f"--episodes belongs to pdml analyse critics, not to {options.what}")
    if options.steps is not None and options.what in ("critics", "theory"):
        raise UserError(f"--steps belongs to pdml analyse converged, weightings and tsne, not to {options.what}")
    if options.what == "theory":
        return _theory(options, seed)
    if options.out is not None:
        raise UserError(f"--out belongs to pdml analyse theory; {options.what} keeps its rows in the run")
    if options.path is None:
        raise UserError(f"pdml analyse {options.what} needs a run: pdml analyse {options.what} RUN")
    from pdml.runs.device import prepare
    from pdml.runs.directory import require_run

    require_run(options.path)
    prepare()

    out = options.path / "analysis" / f"{options.what}.csv"
    if options.what == "converged":
        from pdml.studies.converged import converged_errors

        rows = converged_errors(options.path, at, fresh=fresh)
    elif options.what == "critics":
        from pdml.studies.critics import critic_bias

        rows = critic_bias(options.path, at, episodes)
    elif options.what == "weightings":
        from pdml.studies.weightings import weighted_errors

        rows = weighted_errors(options.path, at, fresh=fresh)
    else:
        from pdml.studies.tsne import visited_points

        _keep(visited_points(options.path, at, fresh, seed), out)
        print(out)
        return 0
    for row in rows:
        _keep([row], out, beside="step")
        print(f"{out}: step {row['step']}", flush=True)
    return 0


def _theory(options: argparse.Namespace, seed: int) -> int:
    from pdml.studies.theory import check_theory, rows
    from pdml.studies.theory_mdps import TheoryConfig
    from pdml.studies.theory_text import describe_theory

    if options.path is not None:
        raise UserError("pdml analyse theory uses random MDPs, not a run")
    result = check_theory(TheoryConfig(seed=seed))
    print(describe_theory(result))
    if options.out is not None:
        _keep(rows(result), options.out / "theory.csv")
        print(options.out / "theory.csv")
    return 0


def _keep(rows: list[dict[str, Any]], path: Path, beside: str = "") -> None:
    """Write rows, in the place of the file or beside those of it that have another value in a column."""
    from pdml.reporting.rows import other_rows, write_rows

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if beside:
            rows = sorted([*rows, *other_rows(path, rows, beside)], key=lambda row: int(row[beside]))
        write_rows(path, rows)
    except OSError as error:
        raise UserError(f"out = '{path.parent}': cannot be written ({error.strerror})") from None


def _steps(text: str) -> tuple[int, ...]:
    """Read a comma-separated list of steps."""
    return tuple(whole("at", part, least=0) for part in text.split(",") if part)
