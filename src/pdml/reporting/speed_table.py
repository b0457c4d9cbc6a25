"""What `pdml bench` printed, kept as files, as Markdown tables for a page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pdml.core.errors import UserError

PHASE_TEXTS = {
    "sac_update": "one update of actor, critics and temperature",
    "ensemble_step": "one step of all seven networks",
    "imagine_100k": "100 000 imagined steps",
    "reweight_1200": "PDML's weights over 1200 policies of Humanoid size, once per block",
    "td_errors_100k": "scores of 100 000 real transitions, as PER needs them once per block",
    "values_100k": "the same for RECALL",
    "model_errors_100k": "the same for MaPER's second score",
    "diagnose_1000": "one diagnosis, every 1000 steps with `--diagnose`",
    "smooth_model_step": "DHMBPO: one step of its eight networks on 512 rows",
    "near_update": "DHMBPO: one update of all networks through five steps in the model",
    "near_critic_update": "DHMBPO: one critic-only update",
    "far_rollout": "DHMBPO: 256 distribution rollouts of twenty steps",
}
"""What each phase of `pdml bench` is."""

STEP_PHASES = ("weigh", "fit", "imagine", "refine", "improve", "total")
"""The phases of a real step that a table of methods shows."""


JOBS_KEYS = {"method", "jobs", "one_run_steps_per_second", "pinned_steps_per_second", "ratio"}
"""What an output of `pdml bench --jobs N --json` has."""


class BenchOutput(NamedTuple):
    """One kept output of `pdml bench`."""

    head: re.Match[str]
    """Its first line: the peak and the number of threads, or the names of the method and of what stands beside it."""
    rows: dict[str, tuple[float, ...]]
    """The numbers of each phase."""
    ratio: float
    """How much a step costs, in steps of what stands beside it; NaN where phases were measured."""


def speed_table(paths: Sequence[Path]) -> str:
    """Return a table of outputs of one kind: of phases, one column per output; of methods and of jobs, one row."""
    texts = [_read(path) for path in paths]
    is_json = {text.startswith("{") for text in texts}
    if is_json == {True}:
        return _jobs([one for path, text in zip(paths, texts, strict=True) for one in _jobs_outputs(path, text)])
    if len(is_json) > 1:
        raise UserError("speed: give outputs of `pdml bench --jobs N --json` alone, without others")
    outputs = [_bench_output(path, text) for path, text in zip(paths, texts, strict=True)]
    kinds = {"peak" in output.head.groupdict() for output in outputs}
    if len(kinds) > 1:
        raise UserError("speed: give outputs of `pdml bench` or of `pdml bench --method NAME`, not both")
    return _phases(outputs) if kinds == {True} else _methods(outputs)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"speed = '{path}': cannot be read ({type(error).__name__})") from None


def _jobs_outputs(path: Path, text: str) -> list[dict[str, Any]]:
    """Read outputs of `pdml bench --jobs N --json`, one per line."""
    try:
        found = [json.loads(line) for line in text.splitlines()]
        for one in found:
            if not one.keys() >= JOBS_KEYS:
                raise ValueError
    except (ValueError, AttributeError):
        raise UserError(f"speed = '{path}': not an output of `pdml bench --jobs N --json`") from None
    return found


def _jobs(outputs: Sequence[dict[str, Any]]) -> str:
    """Return the real steps per second of one run with all threads, and of pinned runs at a time."""
    lines = [
        "| method | runs at a time | one run with as many threads | the pinned runs | together |",
        "|---|---|---|---|---|",
    ]
    for one in outputs:
        pinned = " + ".join(f"{rate:.1f}" for rate in one["pinned_steps_per_second"])
        alone = f"{one['one_run_steps_per_second']:.1f} steps/s"
        lines.append(f"| `{one['method']}` | {one['jobs']} | {alone} | {pinned} steps/s | {one['ratio']:.2f} × |")
    return "\n".join(lines)


def _bench_output(path: Path, text: str) -> BenchOutput:
    """Read an output of `pdml bench`."""
    head = re.search(r"^peak (?P<peak>[\d.]+) GFLOP/s with (?P<threads>\d+) thread", text, re.MULTILINE)
    head = head or re.search(r"^phase +(?P<method>\S+), ms +(?P<base>\S+), ms$", text, re.MULTILINE)
    found = re.findall(r"^(\w+)((?: +[\d.]+)+) *$", text, re.MULTILINE)
    rows = {phase: tuple(map(float, numbers.split())) for phase, numbers in found}
    ratio = re.search(r"costs ([\d.]+) times as much as \S+$", text, re.MULTILINE)
    width = 4 if head and "peak" in head.groupdict() else 2
    missing = ratio is None or not set(STEP_PHASES) <= set(rows) if width == 2 else not rows
    if head is None or missing or any(len(numbers) != width for numbers in rows.values()):
        raise UserError(f"speed = '{path}': not an output of `pdml bench`")
    return BenchOutput(head, rows, float("nan") if ratio is None else float(ratio[1]))


def _phases(outputs: Sequence[BenchOutput]) -> str:
    """Return what each phase takes: milliseconds, and percent of the machine's peak."""
    titles = [f"{_threads(output)}, peak {float(output.head['peak']):.0f} GFLOP/s" for output in outputs]
    lines = [f"| phase (Hopper sizes, batch 256) | {' | '.join(titles)} |", "|---" * (len(outputs) + 1) + "|"]
    for phase in dict.fromkeys(phase for output in outputs for phase in output.rows):
        gflop = next(output.rows[phase][1] for output in outputs if phase in output.rows)
        text = f"`{phase}`: {PHASE_TEXTS[phase]}, " if phase in PHASE_TEXTS else f"`{phase}`, "
        lines.append(f"| {text}{gflop:.2f} GFLOP | {' | '.join(_phase_cell(output, phase) for output in outputs)} |")
    return "\n".join(lines)


def _threads(output: BenchOutput) -> str:
    count = int(output.head["threads"])
    return f"{count} thread{'s' if count > 1 else ''}"


def _phase_cell(output: BenchOutput, phase: str) -> str:
    if phase not in output.rows:
        return "–"
    milliseconds, _, _, percent = output.rows[phase]
    return f"{milliseconds:.1f} ms, {percent:.0f} % of peak"


def _methods(outputs: Sequence[BenchOutput]) -> str:
    """Return what a real step of each method costs: milliseconds by phase, in brackets those of what it is beside."""
    bases = list(dict.fromkeys(output.head["base"] for output in outputs))
    if len(bases) > 1:
        raise UserError(f"speed: give outputs beside one method, not {' and '.join(bases)}")
    lines = [f"| method | times `{bases[0]}` | {' | '.join(STEP_PHASES)} |", "|---" * (len(STEP_PHASES) + 2) + "|"]
    for output in outputs:
        cells = [f"{output.rows[phase][0]:.1f} ({output.rows[phase][1]:.1f})" for phase in STEP_PHASES]
        lines.append(f"| `{output.head['method']}` | {output.ratio:.2f} × | {' | '.join(cells)} |")
    return "\n".join(lines)
