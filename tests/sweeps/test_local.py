"""A queue and some threads: every run is done once, whatever happens to the others."""

import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from pdml.config.schema import Settings
from pdml.core.signals import Stopped
from pdml.sweeps.local import run_local
from pdml.sweeps.plan import PlannedRun
from pdml.sweeps.status import status_of
from pdml.sweeps.view import SweepView
from pdml.sweeps.worker import Outcome

DONE = Outcome(0, "")


@pytest.fixture(autouse=True)
def heeded():
    """Let Ctrl-C and the end of a terminal be heeded: a shell's background jobs and nohup ignore them."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def planned(out, number):
    return [PlannedRun(out / f"seed_{i}", Settings(), ("train", str(i))) for i in range(number)]


def quiet(run, outcome):
    pass


def test_every_run_is_done_once_in_order_and_told(tmp_path):
    runs, done, told = planned(tmp_path, 10), [], []

    def work(words, path, stop=None):
        done.append(words[1])
        return DONE

    ended = run_local(runs, 1, lambda run, outcome: told.append((run.path, outcome)), work)
    assert done == [str(i) for i in range(10)]
    assert ended == [(run, DONE) for run in runs]
    assert told == [(run.path, outcome) for run in runs for outcome in (None, DONE)]


def test_as_many_runs_at_a_time_as_there_are_jobs(tmp_path):
    together, most = threading.Barrier(3), []
    busy = [0]

    def work(words, path, stop=None):
        busy[0] += 1
        together.wait(10.0)  # passes only if three are here at once
        most.append(busy[0])
        together.wait(10.0)
        busy[0] -= 1
        return DONE

    assert len(run_local(planned(tmp_path, 9), 3, quiet, work)) == 9
    assert max(most) <= 3


def test_planned_runs_are_marked_before_the_first_begins(tmp_path):
    runs = planned(tmp_path, 3)

    def work(words, path, stop=None):
        assert all(status_of(run.path).state == "waiting" for run in runs[int(words[1]) :])
        assert all((run.path / "sweep_note.txt").exists() for run in runs[int(words[1]) :])
        return DONE

    assert [outcome for _, outcome in run_local(runs, 1, quiet, work)] == [DONE] * 3


def test_failures_do_not_stop_the_others(tmp_path):
    def work(words, path, stop=None):
        if words[1] == "1":
            raise OSError("no space\nleft")
        return Outcome(1, "fire") if words[1] == "3" else DONE

    runs = planned(tmp_path, 5)
    ended = {run.path.name: outcome for run, outcome in run_local(runs, 2, quiet, work)}
    assert ended.pop("seed_1") == Outcome(1, "OSError: no space left")
    assert ended.pop("seed_3") == Outcome(1, "fire")
    assert set(ended.values()) == {DONE}
    assert status_of(runs[1].path)[1:] == ("failed", 0, None, None, None, None, "OSError: no space left")
    assert status_of(runs[3].path).note == "fire"


def test_a_failed_run_that_is_planned_again_waits(tmp_path):
    runs = planned(tmp_path, 2)
    run_local(runs[1:], 1, quiet, lambda words, path, stop=None: Outcome(1, "fire"))
    assert status_of(runs[1].path).state == "failed"

    def work(words, path, stop=None):
        assert status_of(runs[1].path).state == "waiting"
        return DONE

    assert len(run_local(runs, 1, quiet, work)) == 2


def test_a_run_of_another_process_comes_last(tmp_path):
    runs, order = planned(tmp_path, 4), []
    for name in ("config.json", "lease/000001.json"):
        file = runs[0].path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")

    def work(words, path, stop=None):
        order.append(words[1])
        return DONE

    run_local(runs, 1, quiet, work)
    assert order == ["1", "2", "3", "0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_and_starts_no_more(number, tmp_path):
    begun, stopped = [], []

    def work(words, path, stop=None):
        begun.append(words[1])
        if len(begun) == 2:
            os.kill(os.getpid(), number)
        assert stop.wait(20.0)
        stopped.append(words[1])
        return Outcome(143, "stopped")

    before = signal.getsignal(number)
    (tmp_path / "seed_5").mkdir()
    (tmp_path / "seed_5" / "mine.txt").touch()
    with pytest.raises(Stopped) as caught:
        run_local(planned(tmp_path, 6), 2, quiet, work)
    assert [path.name for path in tmp_path.rglob("*")] == ["seed_5", "mine.txt"]  # nothing is waiting any more
    assert caught.value.number == number
    assert sorted(begun) == sorted(stopped) == ["0", "1"]
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_the_children(tmp_path, monkeypatch):
    ended, seen = threading.Event(), []
    monkeypatch.setattr("pdml.sweeps.worker.end_children", ended.set)

    def work(words, path, stop=None):
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(stop.wait(20.0))
        seen.append(ended.is_set())
        os.kill(os.getpid(), signal.SIGINT)
        seen.append(ended.wait(20.0))
        return Outcome(-9, "killed")

    with pytest.raises(Stopped):
        run_local(planned(tmp_path, 2), 1, quiet, work)
    assert seen == [True, False, True]


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:

        def work(words, path, stop=None):
            os.kill(os.getpid(), signal.SIGHUP)
            return DONE

        assert len(run_local(planned(tmp_path, 3), 1, quiet, work)) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_it_stops_if_nobody_can_be_told(tmp_path):
    def changed(run, outcome):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_local(planned(tmp_path, 3), 2, changed, lambda words, path, stop=None: DONE)


def test_it_runs_in_a_thread_too(tmp_path):
    ended = []
    thread = threading.Thread(
        target=lambda: ended.extend(run_local(planned(tmp_path, 3), 2, quiet, lambda words, path, stop=None: DONE))
    )
    thread.start()
    thread.join(20.0)
    assert len(ended) == 3


def memory():
    """Return the bytes that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_thousand_runs_take_no_memory_and_little_time(tmp_path, capsys):
    """Overhead below 1 % of the runs' time: a real run takes minutes, so 10 ms each are far below it."""
    runs, sizes, began = planned(tmp_path, 1000), [], time.process_time()

    def work(words, path, stop=None):
        sizes.append(memory())
        return DONE

    with SweepView("many", runs, [], tmp_path) as view:
        assert len(run_local(runs, 4, view.changed, work)) == 1000
    assert time.process_time() - began < 10.0
    assert max(sizes[100:]) - sizes[100] < 5e6
    assert "1000 of 1000  done" in capsys.readouterr().out.splitlines()[-1]
