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
    watcher.block(0.05, 20, 300.0)  # it compiles, and does not count
    watcher.block(0.0123, 20, 4.38)
    watcher.evaluation(120, [EpisodeResult(700.0, 10), EpisodeResult(800.0, 10)], 3.0)
    watcher.step(121)
    watcher.close()
    for shown in ("learning", "121/200", "return 750.0", "model error 0.0123", "steps/s 4.6", "left 17 s"):
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


def test_the_time_left_is_that_of_the_blocks_before_however_long_they_were_thought_to_take(capsys):
    """Blocks of 20 steps that take 60 s, then, on a machine that others use too, 180 s."""
    watcher, result = Watcher(2060, 60), [EpisodeResult(1.0, 10)]
    left = []
    for block in range(1, 44):
        watcher.block(None, 20, 600.0 if block == 1 else 60.0 if block < 23 else 180.0)
        watcher.evaluation(60 + 20 * block, result, 0.0)
        left.append(capsys.readouterr().out.rsplit("  ", 1)[1].removesuffix(" left\n"))
    assert left[0] == "-"  # the first block is not typical
    assert left[1] == "98 min"  # of a hundred minutes
    assert left[20] == "79 min"
    assert left[21:23] == ["78 min", "85 min"]  # slower now
    assert left[-1] == "2 h 51 min"  # 57 blocks of 180 s
