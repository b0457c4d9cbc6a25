"""A worker starts a run, starts it again where that helps, and takes it along when it ends.

The command is a few lines of Python here; tests/promises/test_sweep.py has real runs.
"""

import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pdml.core.errors import UserError
from pdml.sweeps import worker
from pdml.sweeps.worker import Outcome, attempt, end_children, mark_planned, work

RUNNER = "import os, sys, time; from pathlib import Path; run = Path(sys.argv[1]); exec(sys.argv[2])"
COUNT = "n = len(list(run.glob('start*'))); (run / f'start{n}').touch();"
"""How often the command was started before."""


@pytest.fixture(autouse=True)
def small_command(monkeypatch):
    monkeypatch.setattr(worker, "COMMAND", (sys.executable, "-c", RUNNER))


def do(path, code, stop=None):
    return work((str(path), code), path, stop)


def starts(path):
    return len(list(path.glob("start*")))


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ends(number):
    """Say whether a process ends soon."""
    with suppress(AssertionError):
        wait_for(lambda: not Path(f"/proc/{number}").exists() or " Z " in Path(f"/proc/{number}/stat").read_text())
        return True
    return False


def test_a_run_that_is_done_has_no_reason_and_leaves_what_it_printed(tmp_path):
    path = tmp_path / "deep" / "run"
    assert do(path, "print('step 1'); print('step 2', file=sys.stderr)") == Outcome(0, "")
    assert sorted((path / "output.txt").read_text().splitlines()) == ["step 1", "step 2"]


def test_the_reason_is_the_last_line_of_this_start(tmp_path):
    (tmp_path / "output.txt").write_text("pdml: an older reason\n")
    said = "pdml: the run failed (fire); see run/error.txt; resume with: pdml resume run"
    assert do(tmp_path, f"print({said!r} + '\\n'); sys.exit(1)") == Outcome(1, "the run failed (fire)")
    assert do(tmp_path, "sys.exit(2)") == Outcome(2, "exit code 2, and no output")


def test_the_threads_of_a_run_are_set_before_it_begins(tmp_path, monkeypatch):
    """Else NumPy's BLAS has a thread for every core of the machine."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # chosen by the user
    code = "print(os.environ['OPENBLAS_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])"
    assert work((str(tmp_path), code, "--threads", "3"), tmp_path).code == 0
    assert (tmp_path / "output.txt").read_text() == "3 5\n"


def test_a_killed_run_is_started_again(tmp_path):
    code = COUNT + "os.kill(os.getpid(), 9) if n < 2 else None"
    assert do(tmp_path, code) == Outcome(0, "")
    assert starts(tmp_path) == 3


def test_a_run_that_is_always_killed_is_given_up(tmp_path):
    assert do(tmp_path, COUNT + "os.kill(os.getpid(), 9)") == Outcome(-9, "killed by SIGKILL")
    assert starts(tmp_path) == 1 + worker.RETRIES


def test_a_run_that_makes_progress_may_be_killed_more_often(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    code = (
        COUNT + "(run / 'checkpoints' / f'step_{n:08d}.safetensors').touch(); os.kill(os.getpid(), 9) if n < 6 else 0"
    )
    assert do(tmp_path, code) == Outcome(0, "")
    assert starts(tmp_path) == 7


def test_a_run_that_fails_is_not_started_again(tmp_path):
    assert do(tmp_path, COUNT + "sys.exit(1)").code == 1
    assert starts(tmp_path) == 1


@pytest.mark.slow
def test_a_run_of_another_process_is_waited_for_and_then_started_again(tmp_path):
    code = COUNT + "sys.exit(0 if (run / 'DONE').exists() else 3)"
    timer = threading.Timer(0.3, (tmp_path / "DONE").touch)
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "000001.json").write_text('{"released": null}')
    timer.start()
    assert do(tmp_path, code) == Outcome(0, "")
    assert starts(tmp_path) == 2  # it does not try again and again


@pytest.mark.slow
def test_a_run_whose_owner_shows_no_sign_of_life_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PDML_LEASE_SECONDS", "1")
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "000001.json").write_text('{"released": null}')
    start = time.monotonic()
    assert do(tmp_path, COUNT + "sys.exit(3 if n < 1 else 0)") == Outcome(0, "")
    assert time.monotonic() - start > 1.0


def test_waiting_for_another_process_ends_when_asked_to_stop(tmp_path):
    (tmp_path / "lease").mkdir()
    (tmp_path / "lease" / "000001.json").write_text('{"released": null}')
    stop, ended = threading.Event(), []
    thread = threading.Thread(target=lambda: ended.append(do(tmp_path, COUNT + "sys.exit(3)", stop)))
    thread.start()
    wait_for(lambda: starts(tmp_path) == 1 and not worker._children)
    stop.set()
    thread.join(10.0)
    assert ended == [Outcome(worker.STOPPED, "stopped")]
    assert starts(tmp_path) == 1


def test_a_run_that_another_process_begins_at_the_same_moment_is_started_again(tmp_path):
    code = COUNT + "(run / 'config.json').touch(); sys.exit(2 if n < 1 else 0)"
    assert do(tmp_path, code) == Outcome(0, "")
    assert do(tmp_path, "sys.exit(2)").code == 2  # it was there before: a mistake
    assert starts(tmp_path) == 2


SAVING = COUNT + (
    "import signal; signal.signal(15, lambda *_: (print('saved'), sys.exit(143))); (run / 'up').touch(); time.sleep(60)"
)


def test_a_run_that_is_asked_to_stop_saves_and_is_not_started_again(tmp_path):
    stop, ended = threading.Event(), []
    thread = threading.Thread(target=lambda: ended.append(do(tmp_path, SAVING, stop)))
    thread.start()
    wait_for((tmp_path / "up").exists)
    stop.set()
    thread.join(10.0)
    assert ended == [Outcome(143, "saved")]
    assert starts(tmp_path) == 1


def test_children_that_do_not_stop_can_be_ended(tmp_path):
    stop, ended = threading.Event(), []
    code = COUNT + "import signal; signal.signal(15, signal.SIG_IGN); (run / 'up').touch(); time.sleep(60)"
    thread = threading.Thread(target=lambda: ended.append(do(tmp_path, code, stop)))
    thread.start()
    wait_for((tmp_path / "up").exists)
    stop.set()
    time.sleep(0.2)
    assert ended == []
    end_children()
    thread.join(10.0)
    assert ended == [Outcome(worker.STOPPED, "killed before it had saved")]
    assert starts(tmp_path) == 1


def test_the_process_is_in_a_session_of_its_own_and_reads_the_end_of_its_input_when_the_worker_is_killed(tmp_path):
    """Also where other children were started meanwhile: none of them holds the pipe open."""
    child = (
        "(run / f'pid{os.getpid()}').touch(); assert os.getsid(0) == os.getpid() != os.getppid();"
        "sys.stdin.read(); (run / f'end{os.getpid()}').touch()"
    )
    code = (
        "import sys, threading; from pathlib import Path; from pdml.sweeps import worker\n"
        f"worker.COMMAND = (sys.executable, '-c', {RUNNER!r})\n"
        f"run = Path({str(tmp_path)!r})\n"
        f"call = lambda i: worker.work((str(run), {child!r}), run / str(i))\n"
        "threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]"
    )
    driver = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: len(list(tmp_path.glob("pid*"))) == 3)
    driver.kill()
    driver.wait()
    children = [int(file.name[3:]) for file in tmp_path.glob("pid*")]
    assert all(ends(number) for number in children)
    assert len(list(tmp_path.glob("end*"))) == 3


def test_a_planned_run_has_an_empty_note_and_an_old_output_is_kept(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "output.txt").write_text("kept")
    mark_planned([tmp_path / "a", tmp_path / "b"])
    assert [(tmp_path / name / "sweep_note.txt").read_text() for name in "ab"] == ["", ""]
    assert (tmp_path / "b" / "output.txt").read_text() == "kept"


def test_directories_that_cannot_be_made_are_one_line_and_leave_nothing(tmp_path):
    (tmp_path / "b").touch()
    with pytest.raises(UserError, match=r"run-dir = '.*/b': cannot be written \(File exists\)"):
        mark_planned([tmp_path / "a", tmp_path / "b"])
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_note_says_why_a_run_failed_until_it_is_started_again(tmp_path):
    stop = threading.Event()
    for code, note in (("sys.exit(1)", "exit code 1, and no output\n"), ("sys.exit(143)", "")):
        (tmp_path / "config.json").touch()
        attempt(work, (str(tmp_path), code), tmp_path, stop)
        assert (tmp_path / "sweep_note.txt").read_text() == note
    attempt(work, (str(tmp_path), "print('on')"), tmp_path, stop)
    assert not (tmp_path / "sweep_note.txt").exists()


STARTS_ANOTHER = "import subprocess; p = subprocess.Popen(['sleep', '60']); (run / f'pid{p.pid}').touch();"
"""A run with a process of its own."""


def started_by(path):
    (file,) = path.glob("pid*")
    return int(file.name[3:])


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
def test_what_a_killed_run_has_started_ends_with_it(tmp_path, monkeypatch, signal_name):
    monkeypatch.setattr(worker, "RETRIES", 0)
    code = f"{STARTS_ANOTHER} import signal; os.kill(os.getpid(), signal.{signal_name})"
    assert do(tmp_path, code) == Outcome(-getattr(signal, signal_name), f"killed by {signal_name}")
    assert ends(started_by(tmp_path))


def test_what_a_run_has_started_ends_when_the_children_are_ended(tmp_path):
    """Also where the run itself does not end when it is asked to."""
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STARTS_ANOTHER} time.sleep(60)"
    stop = threading.Event()
    thread = threading.Thread(target=lambda: do(tmp_path, code, stop))
    thread.start()
    wait_for(lambda: list(tmp_path.glob("pid*")))
    stop.set()
    end_children()
    thread.join(10.0)
    assert ends(started_by(tmp_path))


@pytest.mark.slow
def test_waiting_for_a_run_costs_next_to_nothing(tmp_path):
    """Below 1 % of the run's time."""
    before = time.process_time()
    assert do(tmp_path, "time.sleep(2)").code == 0
    assert time.process_time() - before < 0.02 + 0.01  # starting a process takes some of it


def test_signals_are_named(tmp_path):
    assert do(tmp_path, f"os.kill(os.getpid(), {int(signal.SIGSEGV)})") == Outcome(-11, "killed by SIGSEGV")
