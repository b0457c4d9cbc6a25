"""What a run needs in memory, disk and time: it says so before its start, and is refused where there is less."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from faulty_runs import faulty_run

from pdml.cli import main
from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.core.errors import UserError
from pdml.envs.env_spec import spaces_of
from pdml.runs import resources


def needs_of(base, steps, prior=0, prior_learned=0):
    layout = spaces_of(base.learning.env).layout
    return resources.estimate(change(base, {"steps": steps}), layout, prior, prior_learned)


def test_too_little_memory_or_disk_is_refused_with_numbers(tmp_path, monkeypatch, capsys):
    path, settings = tmp_path / "run", faulty_run("mbpo")
    words = ["train", "--config", str(tmp_path / "config.json"), "--run-dir", str(path)]
    (tmp_path / "config.json").write_text(to_json(settings))
    needed = needs_of(settings, settings.run.steps)
    with monkeypatch.context() as small:
        small.setattr(resources, "available_memory", lambda: 5e8)
        small.setattr(resources, "_own_memory", lambda: 0.0)
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"memory: the run needs about {round(needed.memory / 1e6)} MB at its end, 500 MB are free" in err
    assert not path.exists()
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1e6))
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"the run needs about {max(1, round(needed.disk / 1e6))} MB of disk at its end" in err
        assert "1 MB are free" in err
        assert err.count("\n") == 1
    assert not path.exists()


def test_what_is_needed_grows_with_the_run():
    short, long = (needs_of(defaults("Hopper-v5", "pdml"), steps) for steps in (20_000, 125_000))
    assert all(a < b for a, b in zip(short[:-1], long[:-1], strict=True))
    assert short.first == long.first == 0  # there is no update phase before the first step after the warm-up
    with pytest.raises(UserError, match=r"memory: the run needs about [\d.]+ GB"):
        resources.require(long._replace(memory=1e15), Path())
    line = resources.describe_needs(long)
    assert " of memory, " in line
    assert " of disk and, on an idle machine, " in line


def test_the_work_of_a_block_of_double_horizon_learning_is_that_of_its_phases():
    """1000 updates of 3.82 GFLOP, 250 of the critics alone, and 150 epochs of six steps of 3.38 (see pdml bench)."""
    base = defaults("Hopper-v5", "dhmbpo")
    first, one, two = (needs_of(base, steps).flop for steps in (20_000, 21_000, 22_000))
    assert one - first == pytest.approx(1e9 * (1000 * 3.82 + 250 * 1.94 + 150 * 6 * 3.38), rel=0.02)
    assert two - one == pytest.approx(one - first, rel=1e-9)
    assert first == pytest.approx((15 + 5) * (one - first), rel=0.1)  # the first phase makes up for five blocks


def test_a_run_of_double_horizon_learning_says_how_long_its_first_update_phase_is():
    """Five blocks' work of the twenty; a run that ends within the warm-up has none."""
    long, short = (needs_of(defaults("Hopper-v5", "dhmbpo"), steps) for steps in (20_000, 4_000))
    assert long.first == pytest.approx(long.flop / 4, rel=0.05)
    assert resources.describe_needs(long).endswith(" of it before the first evaluation")
    assert needs_of(defaults("Hopper-v5", "pdml"), 20_000).first == 0.0
    assert (short.flop, short.first) == (0.0, 0.0)
    assert resources.describe_needs(short).endswith("the environment's own time")


@pytest.mark.parametrize(
    ("env", "preset", "steps", "tflop"),
    [
        ("Hopper-v5", "published", 125_000, 5.000 * 3.82 + 0.25 * 1.94 + 3.105 * 13.5),  # 1 minibatch of 2048 per epoch
        ("InvertedPendulum-v5", "paper", 6000, None),
    ],
)
def test_the_first_update_phase_counts_the_transitions_that_there_are_then(env, preset, steps, tflop):
    base = defaults(env, "dhmbpo", preset)
    long, short = (needs_of(base, n) for n in (steps, base.learning.warmup_steps))
    assert long.first == short.first == short.flop < long.flop
    assert tflop is None or long.first == pytest.approx(1e12 * tflop, rel=0.02)
    assert needs_of(base, steps, prior=50_000).first > 2 * long.first  # prior transitions are learned from as well
    known, new = (needs_of(base, steps, prior=50_000, prior_learned=learned) for learned in (50_000, 0))
    assert (
        long.first <= known.first < new.first - 0.5 * long.first
    )  # the fit has all rows, the updates are made already
