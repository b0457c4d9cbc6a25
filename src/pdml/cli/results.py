"""The commands about results: keep finished runs, and rebuild the pages that speak of them."""

import argparse
import io
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from pdml.cli.parser import Parser, path_named
from pdml.cli.problems import name_problems
from pdml.config.parse import whole
from pdml.core.errors import UserError
from pdml.core.files import replaced
from pdml.reporting.marked_pages import Mark, find_marks, find_pages, read_page, rebuild_page

PAGE_COMMANDS = (
    ("summary",),
    ("figure",),
    ("list",),
    ("results", "speed"),
    ("results", "claims"),
    ("results", "trial"),
)
"""The commands that a page may name: they read files and print or draw, nothing else."""

OUTCOMES = ("collected", "extended", "replaced", "unchanged", "skipped", "refused")


def add_commands(commands: Any) -> None:
    """Add the commands; what they need is imported when they run."""
    parser = commands.add_parser("results", help="keep finished runs, and rebuild the pages about them")
    parser.description = "Keep finished runs as results, and rebuild the tables and figures of pages from them."
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    _collect_parser(actions.add_parser("collect", help="copy what tables and figures need of finished runs"))
    _rebuild_parser(actions.add_parser("rebuild", help="rebuild the tables and figures of pages"))
    _claims_parser(actions.add_parser("claims", help="print the paper's claims beside runs, with verdicts"))
    _trial_parser(actions.add_parser("trial", help="compare the arms of a trial of settings with its base"))
    _speed_parser(actions.add_parser("speed", help="print kept outputs of pdml bench as a table"))


def _collect_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Copy config, metadata, evaluations, progress, diagnostics, timing and analyses of every\n"
        "finished run at or below OUT. Runs that are not finished, or were for tuning, are named and left out."
    )
    parser.add_argument("out", metavar="OUT", type=path_named("out"), help="a run, or a directory with runs below it")
    parser.add_argument(
        "--into", metavar="DIR", type=path_named("into"), required=True, help="where to; runs keep their path"
    )
    parser.add_argument("--replace", action="store_true", help="overwrite runs of other content; else they are refused")
    parser.add_argument("--tuning", action="store_true", help="keep also runs of pdml tune, of seeds from 1000 on")
    parser.set_defaults(run=_collect)


def _collect(options: argparse.Namespace) -> int:
    from pdml.reporting.collect import collect_runs

    counts: Counter[str] = Counter()
    for found in collect_runs(options.out, options.into, options.replace, options.tuning):
        counts[found.outcome] += 1
        if found.outcome == "refused":
            print(f"pdml: {found.source}: refused, {found.reason}", file=sys.stderr)
        elif found.outcome == "skipped":
            print(f"{found.source}: skipped, {found.reason}")
        elif found.outcome != "unchanged":
            print(f"{found.target}: {found.outcome}{f' ({found.reason})' if found.reason else ''}")
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]))
    return 2 if counts["refused"] else 0


def _claims_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measure each claim of the paper on the runs below the given directories: a number per seed, an interval over\n"
        "seeds, and a verdict by the rules of results/PLAN.md, once all planned seeds are done. Runs that are too\n"
        "short for a claim, or are not evaluated every 1000 steps in 10 episodes, do not count for it."
    )
    parser.add_argument("paths", metavar="RUN", type=path_named("run"), nargs="+", help="directories of runs")
    parser.add_argument(
        "--only",
        metavar="C1,C4/mbpo,...",
        default="",
        help="claims to print, or of a claim only what is compared with one method (default: all)",
    )
    parser.add_argument(
        "--short", action="store_true", help="fewer columns, and only claims that have runs of all arms"
    )
    parser.set_defaults(run=_claims)


def _claims(options: argparse.Namespace) -> int:
    from pdml.reporting.claims import claims_table, judge, unreadable
    from pdml.reporting.paper_claims import paper_claims
    from pdml.reporting.read import read_all

    known = paper_claims()
    names = {claim: {claim.number, f"{claim.number}/{claim.theirs.method}" if claim.theirs else ""} for claim in known}
    allowed = list(dict.fromkeys(name for found in names.values() for name in sorted(found) if name))
    wanted = {word for word in options.only.split(",") if word} or set(allowed)
    for word in sorted(wanted.difference(allowed)):
        raise UserError(f"only = '{word}': no such claim; allowed: {', '.join(allowed)}")
    problems: list[str] = []
    runs = read_all(options.paths, problems)
    print(claims_table([judge(claim, runs) for claim in known if names[claim] & wanted], options.short))
    return name_problems([*problems, *(problem for run in runs for problem in unreadable(run))])


def _rebuild_parser(parser: argparse.ArgumentParser) -> None:
    allowed = ", ".join(" ".join(words) for words in PAGE_COMMANDS)
    parser.description = (
        "Run the command of every mark `<!-- pdml: COMMAND -->` in pages and put what it prints between the mark and\n"
        "`<!-- end -->`. A mark with a figure stands alone; it draws DIR/NAME.png of its --out DIR.\n"
        f"Commands may be: {allowed}. Their paths start at the current directory."
    )
    parser.add_argument(
        "paths", metavar="PAGE", type=path_named("page"), nargs="+", help="Markdown files, or directories of them"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is out of date")
    parser.set_defaults(run=_rebuild)


def _rebuild(options: argparse.Namespace) -> int:
    texts = {page: read_page(page) for page in find_pages(options.paths)}
    marks = {page: find_marks(page, text) for page, text in texts.items()}
    every = [mark for found in marks.values() for mark in found]
    for mark in every:
        _require_allowed(mark)
    rebuilt: dict[Path, str] = {}
    stale: list[str] = []
    for page, text in texts.items():
        rebuilt[page], changed = rebuild_page(text, marks[page], lambda mark: _run(mark)[1])
        stale += [f"{mark.place}: pdml {' '.join(mark.words)}" for mark in changed]
    for mark in every:
        if mark.is_figure and not _is_drawn(mark, options.check):
            stale.append(f"{_picture(mark)}: {mark.place}")
    if not options.check:
        for page, text in rebuilt.items():
            if text != texts[page]:
                _write_page(page, text)
    state = "out of date" if options.check else "rebuilt"
    for line in stale:
        print(f"{line}: {state}")
    figures = sum(mark.is_figure for mark in every)
    pages = sum(map(bool, marks.values()))
    print(f"tables: {len(every) - figures}, figures: {figures}, pages: {pages}; {state}: {len(stale)}")
    return 1 if options.check and stale else 0


def _require_allowed(mark: Mark) -> None:
    """Raise unless a mark's command is one that a page may name."""
    if not any(mark.words[: len(words)] == words for words in PAGE_COMMANDS):
        allowed = ", ".join(" ".join(words) for words in PAGE_COMMANDS)
        raise UserError(f"{mark.place}: 'pdml {mark.words[0]}' is not for pages; allowed: {allowed}")
    if mark.is_figure and "--out" not in mark.words[2:-1]:
        raise UserError(f"{mark.place}: a figure of a page needs --out DIR")


def _run(mark: Mark, *more: str, codes: tuple[int, ...] = (0,)) -> tuple[int, str]:
    """Run the command of a mark; return its exit code and what it printed, or raise what it complained about."""
    from pdml.cli import main

    printed, complained = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(complained):
        try:
            code = main([*mark.words, *more])
        except SystemExit as stopped:  # --help
            raise UserError(f"{mark.place}: 'pdml {' '.join(mark.words)}' is not for pages") from stopped
    if code not in codes:
        lines = complained.getvalue().strip().splitlines() or [f"exit code {code}"]
        raise UserError(f"{mark.place}: {lines[0].removeprefix('pdml: ')}")
    return code, printed.getvalue()


def _picture(mark: Mark) -> Path:
    """Return the file that the figure of a mark draws."""
    return Path(mark.words[mark.words.index("--out") + 1]) / f"{mark.words[1]}.png"


def _is_drawn(mark: Mark, check: bool) -> bool:
    """Draw the figure of a mark, or, to check it, look at the numbers it was drawn from; say if it was up to date."""
    if check:
        return _run(mark, "--check", codes=(0, 1))[0] == 0
    picture = _picture(mark)
    before = picture.read_bytes() if picture.exists() else b""
    _run(mark, "--only", "png")
    return picture.read_bytes() == before


def _write_page(page: Path, text: str) -> None:
    try:
        with replaced(page) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"page = '{page}': cannot be written ({error.strerror})") from None


def _trial_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare arms of one method and task that differ in settings: mean return of all evaluations, its difference\n"
        "to that of the base with its standard error, and the share of low evaluations: those below half of the best\n"
        "so far. A candidate has the seeds of the base, a higher mean return and no larger share. Only one\n"
        "that is ahead by at least one standard error can become the default, by the rule of results/PLAN.md."
    )
    parser.add_argument(
        "path", metavar="DIR", type=path_named("trial"), help="has a run at DIR/ARM/seed_K for each seed"
    )
    parser.add_argument("--base", metavar="ARM", required=True, help="the arm without changes")
    parser.add_argument("--seeds", metavar="N", required=True, help="runs that are planned per arm")
    parser.add_argument(
        "--last", metavar="STEP", required=True, help="last real step; a run counts once it is evaluated there"
    )
    parser.add_argument(
        "--first", metavar="STEP", default="0", help="real step from which on evaluations count (default: 0)"
    )
    parser.add_argument(
        "--settle", metavar="STEPS", default="2000", help="steps after it in which none counts as low (default: 2000)"
    )
    parser.set_defaults(run=_trial)


def _trial(options: argparse.Namespace) -> int:
    from pdml.reporting.trial import Window, judge_trial, read_trial, trial_table

    seeds, last = whole("seeds", options.seeds), whole("last", options.last)
    first, settle = (whole(name, getattr(options, name), least=0) for name in ("first", "settle"))
    results = judge_trial(read_trial(options.path, Window(first, last, settle)), options.base, seeds)
    print(trial_table(results, options.base, seeds))
    return 0


def _speed_parser(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print outputs of `pdml bench` that were kept as files: one column per file; or outputs of\n"
        "`pdml bench --method NAME`: one row per file; or of `pdml bench --jobs N --json`: one row per line."
    )
    parser.add_argument(
        "paths", metavar="FILE", type=path_named("file"), nargs="+", help="files with what pdml bench printed"
    )
    parser.set_defaults(run=_speed)


def _speed(options: argparse.Namespace) -> int:
    from pdml.reporting.speed_table import speed_table

    print(speed_table(options.paths))
    return 0
