"""What a person sees during a run: a progress bar on a terminal, one line per evaluation elsewhere."""

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pdml.envs.evaluation import EpisodeResult

SHOWN = {"collect": "collecting", "fit": "fitting", "improve": "learning", "evaluate": "evaluating"}
"""Phases that can take long: a fit or an update phase of DHMBPO takes minutes."""


class Watcher:
    """Shows the current phase, step, return, model error, steps per second and the time left."""

    def __init__(self, total: int, warmup: int, step: int = 0):
        self._stream = sys.stdout
        self._warmup, self._step = warmup, step
        self._text = {"return": "-", "model error": "-", "steps/s": "-"}
        self._bar: Progress | None = None
        if self._stream.isatty():
            self._bar = Progress(
                TextColumn("{task.fields[phase]}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[numbers]}"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
                speed_estimate_period=300,
            )
            self._task = self._bar.add_task("", total=total, completed=step, phase="", numbers="")
            self._bar.start()

    def step(self, step: int) -> None:
        """Move the bar; the time left is estimated from learning steps only, since the warm-up is fast."""
        if self._bar is None:
            return
        self._step = step
        if step == self._warmup:
            self._bar.reset(self._task, completed=step)
        self._bar.update(self._task, completed=step, numbers=self._numbers())

    def phase(self, name: str) -> None:
        """Show the phase that begins."""
        if self._bar is not None and name in SHOWN:
            warming = name == "collect" and self._step < self._warmup
            self._bar.update(self._task, phase="warm-up" if warming else SHOWN[name])

    def block(self, model_error: float | None, rate: float) -> None:
        """Take the numbers of a block; model-free methods have no model error."""
        self._text["model error"] = "-" if model_error is None else f"{model_error:.3g}"
        self._text["steps/s"] = f"{rate:.1f}"

    def evaluation(self, step: int, results: list[EpisodeResult], seconds: float) -> None:
        """Show an evaluation."""
        mean = sum(result.total for result in results) / len(results)
        self._text["return"] = f"{mean:.1f}"
        if self._bar is None:
            low, high = min(r.total for r in results), max(r.total for r in results)
            line = f"step {step}  return {mean:.1f} ({low:.1f} to {high:.1f}, {len(results)} episodes)"
            line += f"  model error {self._text['model error']}  {self._text['steps/s']} steps/s  {seconds:.0f} s"
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Restore the terminal."""
        if self._bar is not None:
            self._bar.stop()

    def _numbers(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self._text.items())
