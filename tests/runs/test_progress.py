"""The progress bar shows the numbers and the phase."""

import io
import sys

from pdml.core.stopwatch import Stopwatch
from pdml.envs.evaluation import EpisodeResult
from pdml.runs.progress import Watcher


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_the_bar_shows_step_return_model_error_rate_and_time_left(monkeypatch):
    stream = terminal(monkeypatch)
    watcher = Watcher(200, 100)
    for step in range(1, 121):
        watcher.step(step)
    watcher.phase("improve")
    watcher.block(0.0123, 4.56)
    watcher.evaluation(120, [EpisodeResult(700.0, 10), EpisodeResult(800.0, 10)], 3.0)
    watcher.step(121)
    watcher.close()
    for shown in ("learning", "121/200", "return 750.0", "model error 0.0123", "steps/s 4.6"):
        assert shown in stream.getvalue()


def test_the_bar_says_what_is_being_done_while_it_is(monkeypatch):
    terminal(monkeypatch)
    watcher, clock, seen = Watcher(200, 100), Stopwatch(), []
    clock.entered = watcher.phase
    for step, phase in ((99, "collect"), (99, "fit"), (99, "improve"), (100, "evaluate"), (100, "collect")):
        watcher.step(step)
        with clock(phase):
            seen.append(watcher._bar.tasks[0].fields["phase"])
    watcher.close()
    assert seen == ["warm-up", "fitting", "learning", "evaluating", "collecting"]
