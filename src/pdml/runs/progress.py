"""What a person sees during a run: a progress bar on a terminal, one line per evaluation elsewhere."""

import sys
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pdml.core.stopwatch import duration
from pdml.envs.evaluation import EpisodeResult

SHOWN = {"collect": "collecting", "fit": "fitting", "improve": "learning", "evaluate": "evaluating"}
"""Phases that can take long: a fit or an update phase of DHMBPO takes minutes."""

WINDOW = 20
"""Blocks that the time left is estimated from: evaluations are spread over them."""


class Watcher:
    """Shows the current phase, step, return, model error, steps per second and the time left.

    The time left is measured, so it is right on a busy machine too. The first block does not count: it has the warm-up
    and compiles. So the time left is known from the second block on.
    """

    def __init__(self, total: int, warmup: int, step: int = 0):
        self._stream = sys.stdout
        self._total, self._warmup, self._step = total, warmup, step
        self._text = {"return": "-", "model error": "-", "steps/s": "-"}
        self._blocks: deque[tuple[int, float]] | None = None
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("{task.fields[phase]}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task("", total=total, completed=step, phase="", numbers="")
            self._bar.start()

    def step(self, step: int) -> None:
        """Move the bar."""
        self._step = step
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=self._numbers())

    def phase(self, name: str) -> None:
        """Show the phase that begins."""
        if self._bar is not None and name in SHOWN:
            warming = name == "collect" and self._step < self._warmup
            self._bar.update(self._task, phase="warm-up" if warming else SHOWN[name])

    def block(self, model_error: float | None, steps: int, seconds: float) -> None:
        """Take the numbers of a block of so many steps; model-free methods have no model error."""
        if self._blocks is None:
            self._blocks = deque(maxlen=WINDOW)
        else:
            self._blocks.append((steps, seconds))
        self._text["model error"] = "-" if model_error is None else f"{model_error:.3g}"
        self._text["steps/s"] = f"{steps / seconds:.1f}"

    def evaluation(self, step: int, results: list[EpisodeResult], seconds: float) -> None:
        """Show an evaluation."""
        mean = sum(result.total for result in results) / len(results)
        self._text["return"] = f"{mean:.1f}"
        if self._bar is None:
            low, high = min(r.total for r in results), max(r.total for r in results)
            line = f"step {step}  return {mean:.1f} ({low:.1f} to {high:.1f}, {len(results)} episodes)"
            line += f"  model error {self._text['model error']}  {self._text['steps/s']} steps/s"
            line += f"  {seconds:.0f} s  {self._left(step)} left"
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Restore the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _numbers(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in {**self._text, "left": self._left(self._step)}.items())

    def _left(self, step: int) -> str:
        """Return the time from a step to the last one, at the pace of the last blocks."""
        if not self._blocks:
            return "-"
        pace = sum(seconds for _, seconds in self._blocks) / sum(steps for steps, _ in self._blocks)
        return duration((self._total - step) * pace)
