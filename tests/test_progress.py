import io
import sys

from pdml.evaluation import EpisodeResult
from pdml.progress import Watcher


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_shows_step_return_model_error_rate_and_time_left(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    watcher = Watcher(200, 100)
    for step in range(1, 121):
        watcher.step(step)
    watcher.block(0.0123, 4.56)
    watcher.evaluation(120, [EpisodeResult(700.0, 10), EpisodeResult(800.0, 10)], 3.0)
    watcher.step(121)
    watcher.close()
    for shown in ("learning", "121/200", "return 750.0", "model error 0.0123", "steps/s 4.6"):
        assert shown in stream.getvalue()
