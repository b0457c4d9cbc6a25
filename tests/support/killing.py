"""Run a pdml command and send it a signal at a chosen point: the product has no switch for that.

    python tests/support/killing.py KILL fit 3 0.01 -- train --env InvertedPendulum-v5 ...

The point is a phase of `pdml.core.stopwatch` that begins for the third time, 0.01 s later or where it ends if that
comes first; or a place in the writing of a file, for the third time: see `PLACES`. A command that ends before has its
own exit code. Tests of signals that a process survives call `at_phase` in their own.
"""

import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

PLACES = {
    "row": "half of a row of progress.csv is written",
    "policy": "half of the policy is written",
    "best": "half of the best policy is written",
    "partial": "half of a checkpoint is written",
    "unnamed": "a checkpoint is written but does not have its name",
    "named": "a checkpoint has its name, older ones are still there",
}


POLICIES = {"policy": "policy", "best": "best_policy"}
"""How the files of two of them begin."""


def strike(number, point):
    print(f"killing: {point}", file=sys.stderr, flush=True)
    os.kill(os.getpid(), number)


def at_phase(number, phase, count, delay):
    """Strike inside a phase."""
    from pdml.core.stopwatch import Stopwatch

    real, entered, once = Stopwatch.__call__, [], threading.Lock()

    def now():
        if once.acquire(blocking=False):
            strike(number, phase)

    @contextmanager
    def watched(self, name):
        with real(self, name):
            entered.extend([name] if name == phase else [])
            due = name == phase and len(entered) == count
            if due and delay:
                threading.Timer(delay, now).start()
            elif due:
                now()
            yield
            if due:
                now()

    Stopwatch.__call__ = watched


def at_place(number, place, count):
    """Strike inside the writing of a file."""
    from pdml.runs import checkpoint, directory, tensor_file

    seen = []
    save_file, add = tensor_file.save_file, directory.Table.add
    delete_old_checkpoints = checkpoint.delete_old_checkpoints

    def is_due(matches):
        seen.extend([place] if matches else [])
        return matches and len(seen) == count

    def halved(path, before):
        os.truncate(path, (before + path.stat().st_size) // 2)
        strike(number, place)

    def saving(content, path, metadata):
        save_file(content, path, metadata)
        if is_due(place in POLICIES and path.name.startswith(POLICIES[place])):
            halved(path, 0)
        elif is_due(place in ("partial", "unnamed") and path.name.startswith("checkpoints")):
            halved(path, 0 if place == "partial" else path.stat().st_size)

    def deleting(run):
        if is_due(place == "named"):
            strike(number, place)
        delete_old_checkpoints(run)

    def adding(table, *rows):
        path = table._path
        before = path.stat().st_size if path.exists() else 0
        add(table, *rows)
        if is_due(place == "row" and path.name == "progress.csv"):
            halved(path, before)

    tensor_file.save_file, directory.Table.add = saving, adding
    checkpoint.delete_old_checkpoints = deleting


def main():
    name, point, count, delay, dashes, *words = sys.argv[1:]
    assert dashes == "--"
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    from pdml.cli import main as run_command
    from pdml.cli import train

    number, prepare = getattr(signal, f"SIG{name}"), train.prepare

    def prepared(*args):
        threads = prepare(*args)  # before anything that uses threads is imported
        if point in PLACES:
            at_place(number, point, int(count))
        else:
            at_phase(number, point, int(count), float(delay))
        return threads

    train.prepare = prepared
    return run_command(words)


if __name__ == "__main__":
    sys.exit(main())
