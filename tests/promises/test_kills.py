"""A run that is killed, wherever it is, resumes as if nothing had happened.

`PDML_KILLS` and `PDML_KILL_SEED` choose how many kills there are and where; `make torture` has a hundred.
"""

import fcntl
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from killing import PLACES
from run_files import assert_same_files
from tiny import tiny_of

from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.runs.checkpoint import saved_checkpoints

KILLING = Path(__file__).parents[1] / "support" / "killing.py"
SEED = int(os.environ.get("PDML_KILL_SEED", "0"))
KILLS = int(os.environ.get("PDML_KILLS", "3"))

DIAGNOSED = {"diagnose": True, "diagnose_every": 40, "diagnose_steps": 30, "archive_at": (80, 120)}
FAMILIES = {
    "pdml-diagnosed": ("pdml", DIAGNOSED),
    "pdml-learned-end": ("pdml", {"termination": "learned"}),
    "vagram": ("vagram", {}),
    "maper-mbpo": ("maper-mbpo", {}),
    "ampo": ("ampo", {}),
    "pdml-dhmbpo": ("pdml-dhmbpo", {}),
    "sac": ("sac", {}),
}
ABSENT = {"sac": {"weigh", "fit", "imagine", "refine"}, "pdml-dhmbpo": {"imagine", "refine"}}
"""Phases that a family does not have."""

EVERY = 25
COUNTS = {
    "collect": 320,  # to act, and to step the environment
    "weigh": 5,
    "fit": 5,
    "imagine": 5,
    "refine": 5,
    "improve": 100,
    "evaluate": 3,
    "diagnose": 3,
    "save": 7,
    "row": 5,
    "best": 3,  # while there are few evaluations, each of them judges it again
    **dict.fromkeys(("policy", "partial", "unnamed", "named"), 7),
}
"""How often each point is passed in a tiny run."""
PHASES_OF_DOUBLE = {"weigh": 6, "fit": 6, "improve": 6}
"""The same where all learning happens between blocks."""
SECONDS = {"collect": 0.0005, "fit": 0.05, "imagine": 0.005, "refine": 0.05, "improve": 0.005, "save": 0.03}
"""About how long a phase lasts; a kill comes somewhere within."""
CHECKPOINTING = ("save", *PLACES)
REQUIRED = ("fit", "improve", "checkpointing", "collect", "imagine")


class Kill(NamedTuple):
    """Where a run is killed."""

    point: str
    count: int
    delay: float

    @classmethod
    def chosen(cls, rng, point, family):
        if point == "checkpointing":
            point = rng.choice(CHECKPOINTING)
        if point in ABSENT.get(family, ()):
            point = "improve"
        if family != "pdml-diagnosed" and point == "diagnose":
            point = "evaluate"
        counts = COUNTS | PHASES_OF_DOUBLE if family == "pdml-dhmbpo" else COUNTS
        delay = rng.choice((0.0, rng.uniform(0.0, SECONDS.get(point, 0.01))))
        return cls(point, rng.randint(1, counts[point]), 0.0 if point in PLACES else round(delay, 5))


class Plan(NamedTuple):
    """What is done to a run before it comes to its end."""

    family: str
    kills: list[Kill]

    def __str__(self):
        return "-".join([self.family, *(f"{kill.point}{kill.count}+{kill.delay}" for kill in self.kills)])


def plans(number, seed):
    """Spread kills over phases and families; every fourth run is killed once more after it was resumed."""
    rng = random.Random(seed)
    found, left, others = [], [], []
    for i in range(number):
        left = left or rng.sample(sorted(FAMILIES), len(FAMILIES))
        others = others or rng.sample(sorted(COUNTS), len(COUNTS))
        point = REQUIRED[i % 5] if i < 10 or rng.random() < 0.7 else others.pop()
        fitting = [family for family in left if point not in ABSENT.get(family, ())]
        family = fitting[0] if fitting else rng.choice(sorted(set(FAMILIES) - set(ABSENT)))
        left = [other for other in left if other != family]
        kills = [Kill.chosen(rng, point, family)]
        if i % 4 == 3:
            again = rng.choice(("collect", "improve", "save"))  # passed at least once after every resume but the last
            kills.append(Kill(again, 1, 0.0))
        found.append(Plan(family, kills))
    return found


def pdml(*words, family, kill=None):
    """Run a command in a process of its own, which keeps all that it compiles: a killed one must not write the cache.

    Programs of one family are compiled as for users, in `make torture` all; others as in all tests (tests/conftest.py).
    """
    harness = ["-m", "pdml"] if kill is None else [KILLING, "KILL", *kill, "--"]
    line = [sys.executable, *map(str, harness), *map(str, words)]
    environment = os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    if family == "pdml-diagnosed" or "PDML_KILLS" in os.environ:
        environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    return subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment)


def words_of(path, family):
    """Return the words that train a run of a family."""
    method, changes = FAMILIES[family]
    file = path.with_name(path.name + ".json")
    file.write_text(to_json(change(tiny_of(method), {"checkpoint_every": EVERY, **changes})))
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
                done = pdml(*words_of(path, family), family=family)
                assert done.returncode == 0, done.stderr
        return path

    return find


def lines_of_the_command(stderr):
    """Leave out what the harness says; JAX may find its cache in use."""
    lines = [line for line in stderr.splitlines() if not line.startswith("killing: ")]
    return [line for line in lines if "persistent compilation cache" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("plan", plans(KILLS, SEED), ids=str)
def test_a_killed_run_resumes_as_if_nothing_had_happened(plan, unbroken, tmp_path):
    print(f"PDML_KILL_SEED={SEED}: {plan}")
    whole = unbroken(plan.family)
    path = tmp_path / "run"
    words = words_of(path, plan.family)
    for i, kill in enumerate(plan.kills):
        resumed = ["--resume"] if i else []
        killed = pdml(*words, *resumed, family=plan.family, kill=kill)
        while (
            killed.returncode == 0 and i == 0 and kill.count > 1
        ):  # it did not come to this point: take an earlier one
            shutil.rmtree(path)
            kill = kill._replace(count=kill.count // 2)
            killed = pdml(*words, family=plan.family, kill=kill)
        if killed.returncode == 0 and i:
            break  # it was killed so late that nothing was left to do
        assert killed.returncode == -9, killed.stderr
        assert f"killing: {kill.point}" in killed.stderr
        assert not (path / "DONE").exists()
    if not (path / "DONE").exists():
        can_resume = bool(saved_checkpoints(path))
        done = pdml(*(("resume", path) if can_resume else (*words, "--resume")), family=plan.family)
        assert done.returncode == 0, done.stderr
        said = [] if can_resume else ["pdml: it has no checkpoint yet; it starts again"]
        assert lines_of_the_command(done.stderr) == said
    assert_same_files(path, whole)


def test_the_plans_cover_every_phase_and_family():
    for seed in range(20):
        chosen = plans(10, seed)
        assert len({plan.family for plan in chosen}) >= 5
        assert len({plan.family for plan in chosen[:3]}) == 3
        points = {kill.point for plan in chosen for kill in plan.kills}
        assert {"collect", "fit", "imagine", "improve"} <= points
        assert points & set(CHECKPOINTING)
    many = plans(100, 0)
    assert {kill.point for plan in many for kill in plan.kills} >= set(COUNTS) - {"diagnose"}
    assert {plan.family for plan in many} == set(FAMILIES)
