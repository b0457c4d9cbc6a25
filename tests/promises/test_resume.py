"""A run that is killed, stopped or damaged goes on as if nothing had happened.

`PDML_KILLS` and `PDML_KILL_SEED` choose how many kills there are and where; `make torture` has a hundred.
"""

import fcntl
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from killing import PLACES
from tiny import tiny_of

from pdml.cli import main
from pdml.config.schema import change
from pdml.config.validate import to_json
from pdml.core.errors import UserError
from pdml.envs.env_spec import problem_of
from pdml.runs import checkpoint
from pdml.runs.session import Session, resume, run
from pdml.runs.tensor_file import read_arrays, write_arrays

KILLING = Path(__file__).parents[1] / "support" / "killing.py"
SEED = int(os.environ.get("PDML_KILL_SEED", "0"))
KILLS = int(os.environ.get("PDML_KILLS", "10"))

DIAGNOSED = {"diagnose": True, "diagnose_every": 40, "diagnose_steps": 30, "archive_at": (80, 120)}
FAMILIES = {
    "pdml-diagnosed": ("pdml", DIAGNOSED),
    "pdml-learned-end": ("pdml", {"termination": "learned"}),
    "vagram": ("vagram", {}),
    "maper-mbpo": ("maper-mbpo", {}),
    "ampo": ("ampo", {}),
    "sac": ("sac", {}),
}
FREE = {"sac"}
"""Families without a model."""

EVERY = 25
COUNTS = {
    "collect": 160,
    "weigh": 5,
    "fit": 5,
    "imagine": 5,
    "refine": 5,
    "improve": 100,
    "evaluate": 3,
    "diagnose": 3,
    "save": 7,
    "row": 5,
    **dict.fromkeys(("policy", "partial", "unnamed", "named"), 7),
}
"""How often each point is passed in a tiny run."""
SECONDS = {"collect": 0.0005, "fit": 0.05, "imagine": 0.005, "refine": 0.05, "improve": 0.005, "save": 0.03}
"""About how long a phase lasts; a kill comes somewhere within."""
CHECKPOINTING = ("save", *PLACES)
REQUIRED = ("collect", "fit", "imagine", "improve", "checkpointing")


class Kill(NamedTuple):
    """Where a run is killed."""

    point: str
    count: int
    delay: float

    @classmethod
    def drawn(cls, drawn, point, family, most=None):
        if point == "checkpointing":
            point = drawn.choice(CHECKPOINTING)
        if family in FREE and point in ("weigh", "fit", "imagine", "refine"):
            point = "improve"
        if family != "pdml-diagnosed" and point == "diagnose":
            point = "evaluate"
        count = drawn.randint(1, min(COUNTS[point], most or COUNTS[point]))
        delay = drawn.choice((0.0, drawn.uniform(0.0, SECONDS.get(point, 0.01))))
        return cls(point, count, 0.0 if point in PLACES else round(delay, 5))


class Plan(NamedTuple):
    """What is done to a run before it comes to its end."""

    family: str
    kills: list[Kill]

    def __str__(self):
        return "-".join([self.family, *(f"{kill.point}{kill.count}+{kill.delay}" for kill in self.kills)])


def plans(number, seed):
    """Spread kills over phases and families; every fourth run is killed once more after it was resumed."""
    drawn = random.Random(seed)
    found, left = [], []
    for i in range(number):
        if not left:
            left = drawn.sample(sorted(FAMILIES), len(FAMILIES))
        point = REQUIRED[i % 5] if i < 10 or drawn.random() < 0.7 else drawn.choice(sorted(COUNTS))
        fitting = [family for family in left if family not in FREE or point not in ("fit", "imagine")]
        family = fitting[0] if fitting else drawn.choice(sorted(set(FAMILIES) - FREE))
        left = [other for other in left if other != family]
        kills = [Kill.drawn(drawn, point, family)]
        if i % 4 == 3:
            again = drawn.choice(("collect", "improve", "save"))  # passed at least once after every resume but the last
            kills.append(Kill(again, 1, 0.0))
        found.append(Plan(family, kills))
    return found


def environment():
    """Subprocesses compile into the cache of the other tests, all of it: what is killed must not write there."""
    return {**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def pdml(*words, kill=None, number="KILL", timeout=300):
    """Run a command in a process of its own."""
    harness = (
        []
        if kill is None
        else [str(Path(__file__).parents[1] / "support" / "killing.py"), number, *map(str, kill), "--"]
    )
    line = [sys.executable, *(harness or ["-m", "pdml"]), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, env=environment())


def family_config(family):
    method, changes = FAMILIES[family]
    return change(tiny_of(method), {"checkpoint_every": EVERY, **changes})


def begun(path, config):
    """Return the words that begin a run."""
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(config))
    return ["train", "--config", file, "--run-dir", path, "--threads", "1"]


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """Return the finished run of a family, made by whichever worker needs it first."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "unbroken"
    root.mkdir(exist_ok=True)

    def find(family):
        path = root / family
        with (root / f"{family}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (path / "DONE").exists():
                done = pdml(*begun(path, family_config(family)))
                assert done.returncode == 0, done.stderr
        return path

    return find


def contents(path):
    """All of a run that must not depend on how often it was broken off."""
    found = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = str(file.relative_to(path))
        if name.startswith("events.") or name in ("metadata.json", "lock"):
            continue
        if name == "timing.csv":
            found[name] = [line.split(",")[0] for line in file.read_text().splitlines()]
        elif name.startswith("checkpoints"):
            arrays, note = read_arrays(file)
            lengths = {k: v for k, v in note.pop("files")["lengths"].items() if k != "timing.csv"}
            found |= {f"{name}:{key}": (a.dtype, a.shape, a.tobytes()) for key, a in arrays.items()}
            found[name] = repr((note, lengths))
        else:
            found[name] = file.read_bytes()
    return found


def assert_same(one, other):
    ours, theirs = contents(one), contents(other)
    assert sorted(ours) == sorted(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


def no_other_line(stderr):
    """Nothing is said beside what the harness says; JAX may find its cache in use."""
    lines = [line for line in stderr.splitlines() if not line.startswith("killing: ")]
    return [line for line in lines if "persistent compilation cache" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("plan", plans(KILLS, SEED), ids=str)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(plan, unbroken, tmp_path):
    print(f"PDML_KILL_SEED={SEED}: {plan}")
    whole = unbroken(plan.family)
    path = tmp_path / "run"
    words = begun(path, family_config(plan.family))
    for i, kill in enumerate(plan.kills):
        resumed = ["--resume"] if i else []
        killed = pdml(*words, *resumed, kill=kill)
        while (
            killed.returncode == 0 and i == 0 and kill.count > 1
        ):  # a point the run did not come to: an earlier one will do
            shutil.rmtree(path)
            kill = kill._replace(count=kill.count // 2)
            killed = pdml(*words, kill=kill)
        if killed.returncode == 0 and i:
            break  # it was killed so late that nothing was left to do
        assert killed.returncode == -9, killed.stderr
        assert f"killing: {kill.point}" in killed.stderr
        assert not (path / "DONE").exists()
    if not (path / "DONE").exists():
        can_resume = bool(checkpoint.saved(path))
        done = pdml("resume", path) if can_resume else pdml(*words, "--resume")
        assert done.returncode == 0, done.stderr
        said = [] if can_resume else ["pdml: it has no checkpoint yet; it begins anew"]
        assert no_other_line(done.stderr) == said
    assert_same(path, whole)


def test_the_plans_cover_every_phase_and_family():
    for seed in range(20):
        chosen = plans(10, seed)
        assert len({plan.family for plan in chosen}) >= 5
        points = {kill.point for plan in chosen for kill in plan.kills}
        assert {"collect", "fit", "imagine", "improve"} <= points
        assert points & set(CHECKPOINTING)
    many = plans(100, 0)
    assert {kill.point for plan in many for kill in plan.kills} >= set(COUNTS) - {"diagnose"}
    assert {plan.family for plan in many} == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kill", "step"),
    [("INT", Kill("improve", 37, 0.0), 97), ("TERM", Kill("fit", 3, 0.01), 75), ("TERM", Kill("collect", 41, 0.0), 41)],
)
def test_a_signal_saves_the_run_and_says_how_to_go_on(name, kill, step, unbroken, tmp_path):
    path = tmp_path / "run"
    words = begun(path, family_config("vagram"))
    stopped = pdml(*words, kill=kill, number=name)
    assert stopped.returncode == {"INT": 130, "TERM": 143}[name]
    assert stopped.stderr.splitlines()[-1] == f"pdml: stopped (SIG{name}); go on with: pdml resume {path}"
    assert not (path / "error.txt").exists()
    saved = read_arrays(checkpoint.saved(path)[0])[1]["step"]
    assert saved == step or (kill.point == "fit" and saved >= 75)  # or the fit was over: then it is saved a step later
    done = pdml("resume", path) if name == "INT" else pdml(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(path, unbroken("vagram"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["INT", "TERM"])
def test_a_signal_ends_a_long_fit_within_ten_seconds(name, tmp_path):
    path = tmp_path / "run"
    config = change(family_config("vagram"), {"dynamics.max_epochs": 10**7, "dynamics.patience": 10**7})
    process = subprocess.Popen(
        [sys.executable, "-m", "pdml", *map(str, begun(path, config))],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    try:
        deadline = time.monotonic() + 120
        while not (path / "checkpoints" / "step_00000050.safetensors").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(4)  # step 60 comes at once, and its fit has no end
        asked = time.monotonic()
        process.send_signal({"INT": 2, "TERM": 15}[name])
        _, said = process.communicate(timeout=60)
        assert time.monotonic() - asked < 10
    finally:
        process.kill()
        process.wait()
    assert process.returncode == {"INT": 130, "TERM": 143}[name]
    assert said.splitlines()[-1] == f"pdml: stopped (SIG{name}); go on with: pdml resume {path}"
    assert [file.name for file in checkpoint.saved(path)] == ["step_00000050.safetensors", "step_00000025.safetensors"]


SMALL = {"checkpoint_every": EVERY, "eval_episodes": 0, "steps": 120}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run that is done quickly, with checkpoints at steps 100 and 120, and its configuration."""
    path, config = tmp_path_factory.mktemp("small") / "run", change(tiny_of("sac"), SMALL)
    run(config, path, 1, "pdml train")
    return path, config


@pytest.fixture
def copied(small, tmp_path):
    """The small run as if it had been killed just after its last checkpoint."""
    path = tmp_path / "run"
    shutil.copytree(small[0], path)
    (path / "DONE").unlink()
    return path


def loads(path, config):
    """Load a run; return its step and what was said."""
    said = []
    session = Session(config, problem_of(config))
    try:
        session.load(path, said.append)
        return session.state.step, said
    finally:
        session.close()


def flip(file, place, bit):
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


def header(file):
    """Return where the arrays begin."""
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 0.9999])
def test_a_truncated_checkpoint_is_found_and_the_one_before_is_used(share, copied, small):
    file = checkpoint.saved(copied)[0]
    os.truncate(file, int(share * file.stat().st_size))
    step, said = loads(copied, small[1])
    assert step == 100
    assert said == [f"'{file}' cannot be read as a file of this package; trying the one before"]


@pytest.mark.parametrize("where", ["length", "first name", "note", "first number", "middle", "last number"])
def test_a_flipped_bit_is_found_and_the_one_before_is_used(where, copied, small):
    file = checkpoint.saved(copied)[0]
    content, start = file.read_bytes(), header(file)
    place = {
        "length": 0,
        "first name": content.index(b"agent."),
        "note": content.index(b"evaluation_steps") + 3,
        "first number": start,
        "middle": (start + len(content)) // 2,
        "last number": len(content) - 1,
    }[where]
    flip(file, place, 1)
    step, said = loads(copied, small[1])
    assert step == 100
    assert len(said) == 1
    assert said[0].startswith(f"'{file}' ")
    assert said[0].endswith("; trying the one before")


def test_no_flipped_bit_changes_what_is_read(small, tmp_path):
    """Of six hundred, in all parts of the file: found, or without meaning (the last digit of a long number)."""
    source, drawn, found = checkpoint.saved(small[0])[0], random.Random(0), 0
    content, start = source.read_bytes(), header(source)
    arrays, note = read_arrays(source)
    places = [drawn.randrange(start) for _ in range(500)] + [drawn.randrange(start, len(content)) for _ in range(100)]
    file = tmp_path / "flipped.safetensors"
    for place in places:
        file.write_bytes(content)
        flip(file, place, drawn.randrange(8))
        try:
            others, noted = read_arrays(file)
        except UserError:
            found += 1
            continue
        assert repr(noted) == repr(note)
        assert {k: a.tobytes() for k, a in others.items()} == {k: a.tobytes() for k, a in arrays.items()}
    assert found > 550


def test_a_run_whose_last_checkpoint_is_damaged_ends_as_it_did(copied, small):
    file = checkpoint.saved(copied)[0]
    flip(file, file.stat().st_size // 2, 4)
    said = []
    resume(copied, None, 1, "pdml resume", said.append)
    assert [line for line in said if "may differ" not in line] == [
        f"'{file}' is damaged: its checksum does not fit; trying the one before"
    ]
    assert_same(copied, small[0])


def test_a_foreign_checkpoint_is_found_and_the_one_before_is_used(copied, small, tmp_path):
    other = change(small[1], {"seed": 1, "steps": 75})
    run(other, tmp_path / "other", 1, "pdml train")
    foreign = copied / "checkpoints" / "step_00000125.safetensors"
    shutil.copy(checkpoint.saved(tmp_path / "other")[0], foreign)
    said = []
    resume(copied, None, 1, "pdml resume", said.append)
    assert f"'{foreign}' is of another run: its seed is not this run's; trying the one before" in said
    assert_same(copied, small[0])


def test_a_file_that_is_no_checkpoint_is_found(copied, small):
    file = checkpoint.saved(copied)[0]
    write_arrays(file, {"a": np.zeros(3)}, {"step": 120})
    step, said = loads(copied, small[1])
    assert step == 100
    assert said == [f"'{file}' is of another run: its env is not this run's; trying the one before"]


def test_with_both_damaged_there_is_a_clear_refusal_and_nothing_is_lost(copied, capsys):
    for file in checkpoint.saved(copied):
        os.truncate(file, 1000)
    before = {file: file.read_bytes() for file in copied.rglob("*.csv")}
    assert main(["resume", str(copied)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == (f"pdml: run = '{copied}': cannot go on, none of its 2 checkpoints is whole; begin it anew")
    assert len(said) == 3
    assert {file: file.read_bytes() for file in before} == before


def test_the_two_kept_checkpoints_share_no_file(small):
    names = [file.name for file in checkpoint.saved(small[0])]
    assert names == ["step_00000120.safetensors", "step_00000100.safetensors"]
    assert {file.name for file in (small[0] / "checkpoints").iterdir()} == set(names)
    assert len({file.stat().st_ino for file in checkpoint.saved(small[0])}) == 2


def test_a_csv_that_lost_rows_of_the_checkpoint_is_refused(copied, capsys):
    os.truncate(copied / "progress.csv", 10)
    assert main(["resume", str(copied)]) == 2
    assert "progress.csv is shorter than at its checkpoint" in capsys.readouterr().err


def test_train_with_resume_begins_goes_on_or_has_nothing_to_do(small, tmp_path, capsys):
    path = tmp_path / "run"
    words = [str(word) for word in begun(path, small[1])[:-2]] + ["--resume"]
    assert main(words) == 0  # not there yet
    assert_same(path, small[0])
    assert main(words) == 0  # done
    assert capsys.readouterr().out.splitlines()[-1] == f"done already: {path}"
    (path / "DONE").unlink()
    checkpoint.saved(path)[0].unlink()
    assert main(words) == 0  # stopped
    assert_same(path, small[0])
    assert main([*words, "--seed", "3"]) == 2  # another one
    assert f"run-dir = '{path}': its run has seed = 0, not 3" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2
    assert "--resume needs --run-dir" in capsys.readouterr().err


def test_a_run_that_is_done_is_not_resumed_but_extended(small, tmp_path, capsys):
    path = tmp_path / "run"
    run(change(small[1], {"steps": 90}), path, 1, "pdml train")
    assert main(["resume", str(path)]) == 2
    assert "is done at 90 steps; go further with --steps" in capsys.readouterr().err
    assert main(["resume", str(path), "--steps", "80"]) == 2
    assert "steps = 80: the run is meant to have 90; give more" in capsys.readouterr().err
    assert main(["resume", str(path), "--steps", "120"]) == 0
    assert_same(path, small[0])
