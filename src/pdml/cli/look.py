"""The commands that look at runs: figure, report, video, analyse. What they need is imported when they run."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pdml.config.validate import number, whole
from pdml.core.errors import UserError, nearest
from pdml.reporting.style import FIGURES


def add_commands(commands: Any) -> None:
    """Add the commands that look at runs."""
    _figure_parser(commands.add_parser("figure", help="draw a figure of runs: png, pdf and csv"))
    _report_parser(commands.add_parser("report", help="write one html page about runs"))
    _video_parser(commands.add_parser("video", help="record the policy of a run"))
    _analyse_parser(commands.add_parser("analyse", help="analyse a run, or the paper's theory"))


def _figure_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw a figure of runs; a directory stands for every run below it. `pdml list figures` has all."
    )
    parser.add_argument("name", metavar="NAME", help="which figure")
    parser.add_argument("paths", metavar="RUN", type=Path, nargs="+", help="directories of runs")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("figures"), help="where to (default: figures)")
    parser.add_argument("--at", metavar="STEPS", default="", help="steps after warm-up, e.g. 20000,40000")
    parser.add_argument("--threshold", metavar="RETURN", help="return to reach (default: the paper's last MBPO)")
    parser.add_argument("--seed", metavar="S", default="0", help="seed of the bootstrap (default: 0)")
    parser.set_defaults(run=_figure)


def _figure(options: argparse.Namespace) -> int:
    if options.name not in FIGURES:
        allowed = ", ".join(FIGURES)
        raise UserError(f"figure = '{options.name}': unknown{nearest(options.name, FIGURES)}; allowed: {allowed}")

    from pdml.reporting import figures
    from pdml.reporting.read import read_all

    threshold = None if options.threshold is None else number("threshold", options.threshold)
    wishes = figures.Wishes(_steps(options.at), threshold, whole("seed", options.seed, least=0))
    problems: list[str] = []
    runs = read_all(options.paths, problems)
    problems += [problem for run in runs for problem in run.problems]
    try:
        paths, table = figures.save(options.name, runs, options.out, wishes)
    except UserError:
        _name(problems)
        raise
    for note in table.notes:
        print(f"note: {note}")
    for path in paths:
        print(path)
    return _name([*problems, *table.problems])


def _report_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Write one html page about runs, which needs nothing else; unfinished and failed runs too."
    parser.add_argument("paths", metavar="RUN", type=Path, nargs="+", help="directories of runs")
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path("report.html"), help="(default: report.html)")
    parser.add_argument("--no-frames", action="store_true", help="leave out the pictures of policies at work")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from pdml.reporting import report
    from pdml.reporting.read import read_all

    problems: list[str] = []
    runs = read_all(options.paths, problems)
    if not options.no_frames:
        from pdml.runs.device import prepare

        prepare()
    size = report.write(runs, options.out, problems, frames=not options.no_frames)
    print(f"{options.out} ({size / 1e6:.1f} MB, {len(runs)} runs)")
    return _name(problems)


def _name(problems: Iterable[str]) -> int:
    """Name what could not be read; the exit code says whether there was anything."""
    code = 0
    for problem in problems:
        print(f"pdml: {problem}", file=sys.stderr)
        code = 2
    return code


def _video_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = "Record episodes of a run's last policy as mp4."
    parser.add_argument("path", metavar="RUN", type=Path, help="directory of the run")
    parser.add_argument("--episodes", metavar="N", default="1", help="episodes (default: 1)")
    parser.add_argument("--seed", metavar="S", help="seed of the starting states (default: the run's)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="where to (default: videos in the run)")
    parser.set_defaults(run=_video)


def _video(options: argparse.Namespace) -> int:
    from pdml.runs.device import prepare
    from pdml.runs.directory import require
    from pdml.studies.video import record

    episodes = whole("episodes", options.episodes)
    seed = None if options.seed is None else whole("seed", options.seed, least=0)
    require(options.path)
    prepare()
    for path in record(options.path, episodes, options.out or options.path / "videos", seed):
        print(path)
    return 0


def _analyse_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "converged RUN: train archived models on to a plateau and test them on fresh steps.\n"
        "tsne RUN: where chosen policies of a run go, in the plane.\n"
        "theory: the paper's Theorem 1 and Proposition on random finite MDPs."
    )
    parser.add_argument("what", choices=("converged", "tsne", "theory"))
    parser.add_argument("path", metavar="RUN", type=Path, nargs="?", help="directory of the run")
    parser.add_argument(
        "--at", metavar="STEPS", default="", help="steps after warm-up (default: all archived, tsne five)"
    )
    parser.add_argument("--steps", metavar="N", default="1000", help="fresh steps of each policy (default: 1000)")
    parser.add_argument("--seed", metavar="S", default="0", help="of t-SNE, or of the random MDPs (default: 0)")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="theory: keep its rows as csv there; the others keep theirs in the run"
    )
    parser.set_defaults(run=_analyse)


def _analyse(options: argparse.Namespace) -> int:
    at, seed = _steps(options.at), whole("seed", options.seed, least=0)
    fresh = whole("steps", options.steps)
    if options.what == "theory":
        return _theory(options, seed)
    if options.out is not None:
        raise UserError(f"--out belongs to pdml analyse theory; {options.what} keeps its rows in the run")
    if options.path is None:
        raise UserError(f"pdml analyse {options.what} needs a run: pdml analyse {options.what} RUN")
    from pdml.runs.device import prepare
    from pdml.runs.directory import require

    require(options.path)
    prepare()

    from pdml.studies import converged

    if options.what == "converged":
        rows = converged.converged(options.path, at, fresh=fresh)
    else:
        rows = converged.visitation(options.path, at, fresh, seed)
    _keep(rows, options.path / "analysis" / f"{options.what}.csv")
    return 0


def _theory(options: argparse.Namespace, seed: int) -> int:
    from pdml.studies import theory, theory_text

    if options.path is not None:
        raise UserError("pdml analyse theory looks at random MDPs, not at a run")
    result = theory.check(theory.TheoryConfig(seed=seed))
    print(theory_text.describe(result))
    if options.out is not None:
        _keep(theory.rows(result), options.out / "theory.csv")
    return 0


def _keep(rows: list[dict[str, Any]], path: Path) -> None:
    from pdml.reporting.figures import write_rows

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, rows)
    except OSError as error:
        raise UserError(f"out = '{path.parent}': cannot be written ({error.strerror})") from None
    print(path)


def _steps(text: str) -> tuple[int, ...]:
    """Read a comma-separated list of steps."""
    return tuple(whole("at", part, least=0) for part in text.split(",") if part)
