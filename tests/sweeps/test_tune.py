"""Tuning: proposals as ordinary runs, halving by resuming, the best settings as a file; runs here only write csv."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdml.cli import main
from pdml.config.files import read_config
from pdml.core.errors import BusyError, UserError
from pdml.core.signals import Stopped
from pdml.sweeps.study import Arm, Study
from pdml.sweeps.tune import (
    BEST,
    JOURNAL,
    best_trial,
    new_tuning,
    trial_runs,
    trial_value,
    tune,
)
from pdml.sweeps.tuned_field import tuned_field
from pdml.sweeps.worker import STOPPED, Outcome

RATE = "agent.learning_rate=1e-4..1e-2"
STUDY = Study("mini", "", ("InvertedPendulum-v5",), (Arm("mbpo", {}),), (1000, 1001), 9500, {}, False, ())


def written(path: Path, steps: int, value: float, every: int = 1000) -> None:
    """Write evaluations as a run of so many steps does."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / "evaluations.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "episode", "return", "length"])
        for step in sorted({*range(every, steps, every), steps}):
            rows.writerows([step, episode, value * step / 1000, 10] for episode in range(10))


def option(words, name, default):
    return float(words[words.index(name) + 1]) if name in words else default


def rate_of(words):
    return option(words, "--agent.learning-rate", 3e-4)


class Fake:
    """Does a run by writing its evaluations; its return is highest at a learning rate of 1e-3."""

    def __init__(self, fail=lambda words: ""):
        self.done: list[tuple[Path, int]] = []
        self.fail = fail

    def __call__(self, words, path, stop=None):
        if stop.is_set():
            return Outcome(STOPPED, "stopped")
        steps = int(option(words, "--steps", 4000))
        self.done.append((path, steps))
        if reason := self.fail(words):
            return Outcome(1, reason)
        written(path, steps, 100 - 1e4 * abs(rate_of(words) - 1e-3) + option(words, "--seed", 0) % 2)
        return Outcome(0, "")


def go(out, trials=12, jobs=1, fields=(RATE,), fake=None, study=STUDY):
    fake, lines = fake or Fake(), []
    ended = tune(new_tuning(study, fields, out), trials, jobs, lines.append, fake)
    return ended, fake, lines


def facts(trials):
    """Return what a trial is and became; numbers also count the broken ones."""
    return [trial._replace(number=0) for trial in trials]


@pytest.mark.parametrize(
    ("text", "log", "back"),
    [
        (RATE, True, "agent.learning_rate=0.0001..0.01"),
        ("agent.learning-rate=1e-4..9e-4", False, "agent.learning_rate=0.0001..0.0009"),
        ("agent.gamma=0..0.9", False, "agent.gamma=0.0..0.9"),
        ("batch_size=16..256", True, "batch_size=16..256"),
        ("agent.hidden_sizes=16|32,32", False, "agent.hidden_sizes=16|32,32"),
        ("dynamics.holdout=fresh|fixed", False, "dynamics.holdout=fresh|fixed"),
    ],
)
def test_a_field_is_a_range_or_choices_with_a_log_scale_from_a_factor_of_ten_on(text, log, back):
    assert tuned_field(text).log is log
    assert str(tuned_field(text)) == back


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent.learning_rate", "must be name=low..high"),
        ("agent.learning_rate=", "must be name=low..high"),
        ("agent.lerning_rate=1e-4..1e-3", "did you mean agent.learning_rate?"),
        ("agent.learning_rate=1e-3..1e-4", "must be below the second"),
        ("agent.learning_rate=a..b", "must be a number"),
        ("agent.learning_rate=1e-4", "at least two different values"),
        ("agent.learning_rate=1e-4|0.0001", "at least two different values"),
        ("batch_size=1.5..3", "must be a whole number"),
        ("batch_size=a|b", "must be a whole number"),
        ("agent.hidden_sizes=16..32", "no single number"),
        ("steps=100..200", "cannot be tuned"),
        ("seed=1000..2000", "cannot be tuned"),
    ],
)
def test_a_wrong_field_is_named(text, said):
    with pytest.raises(UserError, match="field = ") as caught:
        tuned_field(text)
    assert said in str(caught.value)


def with_arms(*arms):
    return STUDY._replace(arms=arms)


@pytest.mark.parametrize(
    ("study", "fields", "said"),
    [
        (STUDY, [RATE, RATE], "agent.learning_rate is there twice"),
        (STUDY, [], "needs at least one --field"),
        (STUDY, ["agent.learning_rate=0..1e-3"], "agent.learning_rate = 0.0: must lie in"),
        (STUDY, ["mixture.rate=0.01..0.5"], "method 'mbpo' has no such option"),
        (STUDY._replace(seeds=(0, 1000)), [RATE], "seeds from 1000 on"),
        (STUDY._replace(envs=("Hopper-v5", "Ant-v5")), [RATE], "has 2 environments; choose one with --envs"),
        (with_arms(Arm("mbpo", {}), Arm("sac", {})), [RATE], "has mbpo, sac; choose one with --methods"),
        (with_arms(Arm("mbpo", {"batch_size": (16, 32)})), [RATE], "batch_size has 2 values; choose one with --set"),
        (
            with_arms(Arm("mbpo", {"eval_episodes": (0,)}))._replace(steps=900),
            [RATE],
            "no evaluation between the warm-up of 500 steps and the end",
        ),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_written(study, fields, said, tmp_path):
    with pytest.raises(UserError) as caught:
        new_tuning(study, fields, tmp_path / "out")
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_trials_are_compared_at_a_ninth_and_a_third_after_the_warm_up_where_there_are_evaluations(tmp_path):
    assert new_tuning(STUDY, [RATE], tmp_path).rungs == (2000, 4000, 9500)
    assert new_tuning(STUDY._replace(steps=3000), [RATE], tmp_path).rungs == (1000, 2000, 3000)
    assert new_tuning(STUDY._replace(steps=1000), [RATE], tmp_path).rungs == (1000,)
    assert new_tuning(STUDY._replace(steps=900), [RATE], tmp_path).rungs == (900,)  # the last step is evaluated too


def test_a_trial_is_a_run_per_seed_where_a_sweep_would_have_it(tmp_path):
    tuning = new_tuning(STUDY, [RATE], tmp_path)
    runs = trial_runs(tuning, {"agent.learning_rate": 0.0005}, 2000)
    assert [run.path for run in runs] == [
        tmp_path / "InvertedPendulum-v5" / "mbpo-agent.learning_rate=0.0005" / f"seed_{seed}" for seed in (1000, 1001)
    ]
    assert {run.settings.run.steps for run in runs} == {2000}
    assert trial_value(runs) is None
    written(runs[0].path, 2000, 10.0)
    assert trial_value(runs) is None
    written(runs[1].path, 5000, 20.0)  # it has gone further
    assert trial_value(runs) == 30.0


def test_worse_trials_stop_early_and_the_best_goes_all_the_way(tmp_path):
    ended, fake, lines = go(tmp_path, trials=20)
    assert len(ended) == len(lines) == 20
    complete = [trial for trial in ended if trial.state == "complete"]
    assert {trial.steps for trial in complete} == {9500}
    early = [trial for trial in ended if trial.state == "stopped early"]
    assert {trial.steps for trial in early} <= {2000, 4000}
    assert len(early) >= 10
    reached = {path.parent: 0 for path, _ in fake.done}
    for path, steps in fake.done:  # each step was done once: every rung resumes the one before
        assert steps > 0
        reached[path.parent] = max(reached[path.parent], steps)
    assert sorted(reached.values()) == sorted(trial.steps for trial in ended)
    best = best_trial(ended)
    assert best.value == max(trial.value for trial in complete)
    assert abs(best.values["agent.learning_rate"] - 1e-3) < 5e-4


def test_a_trial_continues_if_it_is_among_the_best_third_that_reached_its_step(tmp_path):
    """Among its own third of those so far, itself included; of the first few, the best."""
    ended, _, _ = go(tmp_path, trials=20)
    scores = {steps: [] for steps in (2000, 4000)}
    for trial in ended:
        expected = 9500
        for steps, reached in scores.items():
            reached.append(trial.value)
            if trial.value < sorted(reached, reverse=True)[max(len(reached) // 3, 1) - 1]:
                expected = steps
                break
        assert trial.steps == expected
    assert [len(reached) for reached in scores.values()] == [20, sum(trial.steps > 2000 for trial in ended)]
    assert {trial.steps for trial in ended} == {2000, 4000, 9500}


def test_values_have_four_digits_and_stay_in_their_range(tmp_path):
    ended, _, _ = go(tmp_path, trials=10)
    for trial in ended:
        rate = trial.values["agent.learning_rate"]
        assert float(f"{rate:.4g}") == rate
        assert 1e-4 <= rate <= 1e-2


def test_the_best_settings_are_a_config_with_a_seed_that_reports_use(tmp_path):
    ended, _, _ = go(tmp_path, fields=(RATE, "agent.hidden_sizes=16|32,32"))
    best, settings = best_trial(ended), read_config(tmp_path / BEST)
    assert settings.learning.agent.learning_rate == best.values["agent.learning_rate"]
    assert settings.learning.agent.hidden_sizes == best.values["agent.hidden_sizes"]
    assert (settings.learning.seed, settings.run.steps, settings.learning.method) == (0, 9500, "mbpo")


def test_more_trials_continue_and_the_same_command_does_nothing_more(tmp_path):
    few, _, _ = go(tmp_path, trials=5)
    same, fake, lines = go(tmp_path, trials=5)
    assert (same, fake.done, lines) == (few, [], [])
    more, fake, _ = go(tmp_path, trials=8)
    assert more[:5] == few
    assert len(more) == 8
    assert facts(more) == facts(go(tmp_path / "unbroken", trials=8)[0])


def test_a_broken_command_resumes_and_proposes_what_an_unbroken_one_does(tmp_path):
    class Dies(Fake):
        def __call__(self, words, path, stop=None):
            if len(self.done) == 9:
                raise KeyboardInterrupt
            return super().__call__(words, path, stop)

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "broken", fake=Dies())
    ended, fake, _ = go(tmp_path / "broken")
    unbroken, whole, _ = go(tmp_path / "unbroken")
    assert facts(ended) == facts(unbroken)
    assert len(fake.done) == len(whole.done) - 9  # nothing is done twice
    assert (tmp_path / "broken" / BEST).read_text() == (tmp_path / "unbroken" / BEST).read_text()


def test_half_a_line_of_the_journal_and_its_lock_do_no_harm(tmp_path):
    few, _, _ = go(tmp_path, trials=4)
    journal = tmp_path / JOURNAL
    with journal.open("a") as file:
        file.write('{"op_code": 4, "wor')
    (tmp_path / f"{JOURNAL}.lock").symlink_to("nowhere")
    more, _, _ = go(tmp_path, trials=6)
    assert more[:4] == few
    assert [json.loads(line) for line in journal.read_text().splitlines()]


def test_several_jobs_do_all_trials_once(tmp_path):
    ended, fake, lines = go(tmp_path, trials=16, jobs=4)
    assert len(ended) == len(lines) == 16
    assert len(set(fake.done)) == len(fake.done)
    assert all(trial.state in ("complete", "stopped early") for trial in ended)


def test_a_trial_that_fails_is_named_and_the_others_go_on(tmp_path):
    def fail(words):
        return "it diverged" if rate_of(words) > 2e-3 else ""

    ended, _, lines = go(tmp_path, fake=Fake(fail))
    failed = [trial for trial in ended if trial.state == "failed"]
    assert failed
    assert all(trial.values["agent.learning_rate"] > 2e-3 and trial.reason == "it diverged" for trial in failed)
    assert sum("failed: it diverged" in line for line in lines) == len(failed)
    assert best_trial(ended).values["agent.learning_rate"] < 2e-3


def test_a_worker_that_raises_costs_a_trial_and_not_the_command(tmp_path):
    def full_disk(words):
        if rate_of(words) > 1e-3:
            raise OSError("no space left")
        return ""

    ended, _, _ = go(tmp_path, trials=6, fake=Fake(full_disk))
    assert len(ended) == 6
    assert {trial.reason for trial in ended} == {"", "OSError: no space left"}


def test_settings_that_do_not_fit_together_cost_a_trial_and_no_run(tmp_path):
    fields = ("rollouts.longest=1..200", "dynamics.num_elites=2..7")
    study = with_arms(Arm("mbpo", {"rollouts.max_rows": (700,)}))
    ended, fake, _ = go(tmp_path, fields=fields, study=study)
    failed = [trial for trial in ended if trial.state == "failed"]
    assert 0 < len(failed) < len(ended)
    for trial in ended:
        too_many = trial.values["rollouts.longest"] * trial.values["dynamics.num_elites"] > 700
        assert too_many == (trial in failed) == ("rollouts.max_rows = 700: at least" in trial.reason)
    assert len({path.parent for path, _ in fake.done}) == len(ended) - len(failed)


def test_nothing_is_best_if_all_fail(tmp_path):
    ended, _, _ = go(tmp_path, trials=3, fake=Fake(lambda words: "no"))
    assert best_trial(ended) is None
    assert not (tmp_path / BEST).exists()
    assert [trial.state for trial in ended] == ["failed"] * 3


@pytest.mark.parametrize(
    ("study", "fields", "said"),
    [
        (STUDY, ["agent.learning_rate=1e-4..2e-2"], "was tuned with field = agent.learning_rate=0.0001..0.01, not"),
        (STUDY._replace(steps=8000), [RATE], "was tuned with steps = 9500, not 8000"),
        (STUDY._replace(seeds=(1000,)), [RATE], "was tuned with seeds = 1000,1001, not 1000"),
        (with_arms(Arm("sac", {})), [RATE], "was tuned with method = mbpo, not sac"),
        (with_arms(Arm("mbpo", {"batch_size": (64,)})), [RATE], "was tuned with set = nothing, not batch_size=64"),
    ],
)
def test_another_tuning_in_the_same_directory_is_refused(study, fields, said, tmp_path):
    go(tmp_path, trials=2)
    before = (tmp_path / JOURNAL).read_bytes()
    with pytest.raises(UserError) as caught:
        go(tmp_path, fields=fields, study=study)
    assert said in str(caught.value)
    assert (tmp_path / JOURNAL).read_bytes() == before


def test_a_second_command_at_the_same_time_is_refused(tmp_path):
    class Twice(Fake):
        def __call__(self, words, path, stop=None):
            with pytest.raises(BusyError, match="another process is tuning there"):
                go(tmp_path)
            return super().__call__(words, path, stop)

    ended, _, _ = go(tmp_path, trials=1, fake=Twice())
    assert [trial.state for trial in ended] == ["complete"]


def test_a_signal_stops_and_the_same_command_resumes(tmp_path):
    class Asked(Fake):
        def __call__(self, words, path, stop=None):
            if len(self.done) == 4:
                os.kill(os.getpid(), signal.SIGTERM)
                assert stop.wait(10)
            return super().__call__(words, path, stop)

    with pytest.raises(Stopped, match="SIGTERM"):
        go(tmp_path / "stopped", fake=Asked())
    assert not (tmp_path / "stopped" / BEST).exists()
    ended, _, _ = go(tmp_path / "stopped")
    assert facts(ended) == facts(go(tmp_path / "unbroken")[0])


@pytest.mark.parametrize(
    ("seeds", "more", "used"),
    [
        ("1000-1003", [], (1000, 1001, 1002, 1003)),
        ("0-7", [], (1000, 1001)),
        ("1000-1003", ["--seeds", "2000"], (2000,)),
    ],
)
def test_the_seeds_are_the_studys_where_they_are_for_tuning(seeds, more, used, tmp_path, monkeypatch, capsys):
    text = f'envs = ["InvertedPendulum-v5"]\nmethods = ["mbpo"]\nseeds = "{seeds}"\nsteps = 9500\n'
    (tmp_path / "mine.toml").write_text(text)
    tried = []
    monkeypatch.setattr("pdml.sweeps.tune.tune", lambda tuning, *_: tried.append(tuning.study.seeds) or [])
    words = ["tune", str(tmp_path / "mine.toml"), "--field", RATE, "--trials", "2", "--out", str(tmp_path / "out")]
    assert main([*words, *more]) == 1
    assert tried == [used]


def test_without_optuna_the_command_says_how_to_install_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.chdir(tmp_path)
    words = ["tune", "comparison", "--envs", "Hopper-v5", "--methods", "pdml", "--field", RATE, "--trials", "3"]
    assert main(words) == 2
    assert "pip install 'pdml[tune]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--trials", "0"], "trials = '0'"),
        (["--trials", "3", "--jobs", "0"], "jobs = '0'"),
        (["--trials", "3", "--seeds", "0-1"], "seeds from 1000 on"),
        (["--trials", "3", "--methods", "pdml", "mbpo"], "choose one with --methods"),
        (["--trials", "3", "--out", "file"], "is a file"),
        (["--trials", "100000"], "of disk"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(more, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    words = ["tune", "comparison", "--envs", "Hopper-v5", "--methods", "pdml", "--field", RATE, *more]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


TINY = """
envs = ["InvertedPendulum-v5"]
methods = ["sac"]
steps = 160
[settings]
warmup_steps = 60
eval_every = 40
eval_episodes = 1
updates_per_step = 1
"agent.hidden_sizes" = "16"
"""


@pytest.mark.slow
def test_the_command_tunes_real_runs_and_its_best_can_be_trained(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    base = [sys.executable, "-m", "pdml"]
    words = ["tune", "tiny.toml", "--field", RATE, "--trials", "2", "--jobs", "2", "--seeds", "1000", "--out", "out"]
    done = subprocess.run([*base, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "best: trial" in done.stdout
    folders = sorted((tmp_path / "out" / "InvertedPendulum-v5").iterdir())
    assert len(folders) == 2
    assert all((folder / "seed_1000" / "evaluations.csv").exists() for folder in folders)
    words = ["train", "--config", "out/best.json", "--run-dir", "run", "--threads", "1"]
    trained = subprocess.run([*base, *words], cwd=tmp_path, capture_output=True, text=True)
    assert trained.returncode == 0, trained.stderr
    assert read_config(tmp_path / "run" / "config.json") == read_config(tmp_path / "out" / BEST)
