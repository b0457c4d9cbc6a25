"""The runs of a study: their order, places, settings and commands, all checked before anything is written."""

import os
from itertools import groupby
from pathlib import Path

import pytest
from fake_runs import write_run

import pdml.envs.env_spec
import pdml.runs.session
from pdml.cli import main
from pdml.cli import train as train_command
from pdml.config.defaults import defaults
from pdml.config.files import to_json
from pdml.config.methods import METHODS
from pdml.core.errors import UserError
from pdml.sweeps.plan import plan, state_of
from pdml.sweeps.study import SHIPPED, Arm, Study, override, read_study, shipped_studies


def study_of(arms, envs=("Hopper-v5",), seeds=(0,), **changes):
    study = Study("mine", "", tuple(envs), tuple(arms), tuple(seeds), None, {}, False, ())
    return study._replace(**changes)


def names(runs, out):
    return [str(run.path.relative_to(out)) for run in runs]


def test_one_seed_of_everything_comes_first():
    study = study_of([Arm("pdml", {}), Arm("mbpo", {})], ("Hopper-v5", "Ant-v5"), (4, 2))
    assert names(plan(study, Path("out")), Path("out")) == [
        "Hopper-v5/pdml/seed_4",
        "Hopper-v5/mbpo/seed_4",
        "Ant-v5/pdml/seed_4",
        "Ant-v5/mbpo/seed_4",
        "Hopper-v5/pdml/seed_2",
        "Hopper-v5/mbpo/seed_2",
        "Ant-v5/pdml/seed_2",
        "Ant-v5/mbpo/seed_2",
    ]


SIZES = {
    "comparison": 6 * 6 * 8,
    "replay": 2 * 5 * 8,
    "decay": 3 * 6 * 8,
    "ablation": 2 * 4 * 8,
    "rate": 5 * 8,
    "model-error": 4 * 2 * 8,
    "converged": 2 * 2 * 8,
    "overhead": 6 * 2 * 8,
}
"""Runs of each study: tasks, methods with their settings, seeds."""


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_studies_have_the_papers_runs(name, tmp_path):
    runs = plan(read_study(name), tmp_path / "out")
    assert len(runs) == SIZES[name]
    assert len({run.path for run in runs}) == len(runs)
    sizes = [len(list(group)) for _, group in groupby(runs, lambda run: run.settings.learning.seed)]
    assert sizes == 8 * [SIZES[name] // 8]
    budgets = {run.settings.run.steps == defaults(run.settings.learning.env).run.steps for run in runs}
    assert budgets == {name != "converged"}  # nothing in its tables is later than its last archive
    assert not (tmp_path / "out").exists()


def test_studies_that_measure_and_archive_alike_share_their_runs():
    """As docs/sweeps.md says: in one directory, a run that several of them have is done once."""
    found = {}
    for name in ("comparison", "replay", "decay", "ablation", "rate", "overhead"):
        for run in plan(read_study(name), Path("out")):
            assert found.setdefault(run.path, run) == run
    assert len(found) < sum(SIZES[name] for name in ("comparison", "replay", "decay", "ablation", "rate", "overhead"))


def test_studies_are_listed_with_their_number_of_runs(capsys):
    assert main(["list", "studies"]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        [name, str(size), "runs"] for name, size in SIZES.items()
    ]


def test_settings_off_the_defaults_are_in_the_name_and_in_the_command():
    grid = {"mixture.rate": (0.02, 0.1), "agent.hidden_sizes": ((64, 64),)}
    runs = plan(study_of([Arm("pdml", grid)]), Path("out"))
    assert names(runs, Path("out")) == [
        "Hopper-v5/pdml-agent.hidden_sizes=64,64/seed_0",
        "Hopper-v5/pdml-agent.hidden_sizes=64,64-mixture.rate=0.1/seed_0",
    ]
    assert runs[1].words == (
        "train",
        *("--env", "Hopper-v5", "--method", "pdml"),
        *("--agent.hidden-sizes", "64,64", "--mixture.rate", "0.1", "--seed", "0"),
        *("--run-dir", "out/Hopper-v5/pdml-agent.hidden_sizes=64,64-mixture.rate=0.1/seed_0"),
        *("--threads", "1", "--resume"),
    )


def test_a_setting_at_its_default_names_the_same_run_as_none():
    """So studies in one directory share their runs."""
    plain, named = (plan(study_of([Arm("pdml", grid)]), Path("out")) for grid in ({}, {"mixture.rate": (0.02,)}))
    assert plain == named


def test_the_order_of_settings_does_not_change_the_place():
    one, other = {"agent.gamma": (0.9,), "agent.tau": (0.1,)}, {"agent.tau": (0.1,), "agent.gamma": (0.9,)}
    assert plan(study_of([Arm("sac", one)]), Path("out")) == plan(study_of([Arm("sac", other)]), Path("out"))


def test_threads_per_run():
    words = plan(study_of([Arm("sac", {})]), Path("out"), cpus=3)[0].words
    assert words[words.index("--threads") + 1] == "3"


def test_steps_are_the_budget_the_studys_or_the_environments():
    study = study_of([Arm("sac", {})], ("Hopper-v5", "Ant-v5"))
    assert [run.settings.run.steps for run in plan(study, Path("out"))] == [125_000, 205_000]
    study = study._replace(steps=9000, steps_by_env={"Ant-v5": 8000})
    assert [run.settings.run.steps for run in plan(study, Path("out"))] == [9000, 8000]


def test_only_methods_with_a_model_are_diagnosed():
    runs = plan(study_of([Arm("pdml", {}), Arm("sac", {})], diagnose=True), Path("out"))
    assert [run.settings.run.diagnose for run in runs] == [True, False]


def test_archives_are_those_of_the_study():
    run = plan(study_of([Arm("sac", {})], archive_at=(6000, 7000)), Path("out"))[0]
    assert run.settings.run.archive_at == (6000, 7000)
    assert run.words[run.words.index("--archive-at") + 1] == "6000,7000"


ODD = {
    "agent.target_entropy": (-1e-05,),
    "agent.temperature": (0.1, None),
    "agent.hidden_sizes": ((32,), (64, 64)),
    "ampo.stop_epoch": (-1,),
    "dynamics.train_bounds": (False,),
    "max_episode_steps": (7,),
    "termination": ("rules:ends",),
}


@pytest.mark.parametrize(
    "study",
    [
        study_of([Arm(method, {}) for method in METHODS], ("Humanoid-v5", "Hopper-v4"), diagnose=True, steps=20_000),
        study_of([Arm("ampo", ODD)]),
        study_of([Arm("mbpo", {"preset": ("released",)}), Arm("sac", {"preset": ("paper", "released")})]),
        study_of(
            [Arm("pdml-dhmbpo", {"preset": ("published",), "double.dropout": ((0.1, 0.2, 0.3),)})], seeds=[2**32 - 1]
        ),
        *(override(study, seeds="3", envs=study.envs[-2:]) for study in shipped_studies().values()),
    ],
    ids=lambda study: f"{study.name}-{study.arms[0].method}",
)
def test_the_command_has_the_planned_settings(study, tmp_path, monkeypatch):
    """What `pdml train` makes of the words is what was planned, in every setting."""
    started = []
    monkeypatch.setattr(train_command, "prepare", lambda threads=None: threads)
    monkeypatch.setattr(
        pdml.runs.session, "start_run", lambda settings, path, threads, *rest: started.append((settings, path, threads))
    )
    runs = plan(study, tmp_path, cpus=1)
    for run in runs:
        assert main(run.words) == 0
    assert started == [(run.settings, run.path, 1) for run in runs]


def test_a_preset_is_in_the_name():
    runs = plan(study_of([Arm("mbpo", {"preset": ("paper", "released")})]), Path("out"))
    assert names(runs, Path("out")) == ["Hopper-v5/mbpo/seed_0", "Hopper-v5/mbpo-preset=released/seed_0"]


def test_listed_environments_are_not_made(monkeypatch):
    def refuse(env_id):
        raise AssertionError(env_id)

    monkeypatch.setattr(pdml.envs.env_spec, "task_for", refuse)
    plan(study_of([Arm("pdml", {})], ("Hopper-v5", "Pusher-v5", "Humanoid-v4")), Path("out"))
    with pytest.raises(AssertionError, match="Pendulum-v1"):
        plan(study_of([Arm("pdml", {})], ("Pendulum-v1",)), Path("out"))


def test_other_environments_take_the_defaults_of_their_spaces():
    run = plan(study_of([Arm("pdml", {})], ("faulty:Faulty-v0",)), Path("out"))[0]
    assert run.path == Path("out/faulty_Faulty-v0/pdml/seed_0")
    assert run.words[1:3] == ("--env", "faulty:Faulty-v0")
    assert run.settings.learning.termination == "learned"


@pytest.mark.parametrize(
    ("study", "said"),
    [
        (
            study_of([Arm("mbpo", {"mixture.rate": (0.1,)})]),
            "'mine', mbpo on Hopper-v5: mixture.rate: method 'mbpo' has no",
        ),
        (study_of([Arm("mbpo", {"mixture.rate": (0.02,)})]), "mixture.rate: method 'mbpo' has no such option"),
        (study_of([Arm("pdml", {"mixture.rate": (0.1, 1.5)})]), r"mixture.rate = 1.5: must lie in \[0, 1\)"),
        (study_of([Arm("pdml", {"weigh": ("modle",)})]), r"weigh = 'modle': unknown \(did you mean model\?\)"),
        (study_of([Arm("pdml", {"preset": ("papr",)})]), r"preset = 'papr': unknown \(did you mean paper\?\)"),
        (study_of([Arm("pdml", {"preset": ("published",)})]), "preset = 'published': is for dhmbpo"),
        (study_of([Arm("sac", {})], steps=5000), "steps = 5000: must be above the warm-up of 5000 steps"),
        (study_of([Arm("sac", {})], steps=8000, archive_at=(9000,)), "archive_at = 9000: must lie in"),
        (study_of([Arm("sac", {})], ("Hoper-v5",)), "env = 'Hoper-v5': no such environment; did you mean Hopper-v5"),
        (study_of([Arm("sac", {})], ("Hopper-v2",)), "env = 'Hopper-v2': this version is not supported"),
        (
            study_of([Arm("sac", {}), Arm("sac", {"agent.gamma": (0.99,)})]),
            "two of its runs would be at 'out/Hopper-v5/sac",
        ),
        (
            study_of([Arm("pdml", {"agent.gamma": tuple(i / 1000 for i in range(999))})], seeds=range(1000)),
            "has 999000 runs, at most 100000",
        ),
    ],
)
def test_a_plan_that_cannot_be_done_is_refused_in_one_line(study, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        plan(study, Path("out"))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_system_takes_is_refused():
    changes = {
        leaf: (value,)
        for leaf, value in (
            ("agent.learning_rate", 0.00012345678901234),
            ("agent.first_temperature", 0.12345678901234567),
            ("dynamics.learning_rate", 0.00012345678901234),
            ("dynamics.holdout_ratio", 0.12345678901234567),
            ("mixture.rate", 0.12345678901234567),
            ("mixture.floor", 0.012345678901234567),
            ("rollouts.reward_penalty", 0.12345678901234567),
        )
    }
    with pytest.raises(UserError, match="is too long for a directory; change fewer settings"):
        plan(study_of([Arm("pdml", changes)]), Path("out"))


@pytest.mark.parametrize("place", ["out", "out/Hopper-v5", "out/Hopper-v5/sac", "out/Hopper-v5/sac/seed_0"])
def test_a_file_in_the_place_of_a_directory_is_refused(place, tmp_path):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("")
    with pytest.raises(UserError, match=f"^out = .*/{place}' is a file, a directory is needed"):
        plan(study_of([Arm("sac", {})]), tmp_path / "out")


def test_an_output_below_a_file_in_a_run_or_where_nothing_can_be_written_is_refused(tmp_path, monkeypatch):
    study = study_of([Arm("sac", {})])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="/file' is a file"):
        plan(study, tmp_path / "file" / "deeper" / "out")
    write_run(tmp_path / "run", "sac")
    with pytest.raises(UserError, match="is the directory of a run"):
        plan(study, tmp_path / "run")
    with pytest.raises(UserError, match="cannot be used"):
        plan(study, Path("x" * 300))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="cannot be written"):
        plan(study, tmp_path / "new")


def written(run, done=True, steps=9000, **changes):
    """Write the directory of a planned run, perhaps with other settings."""
    config = run.settings.learning
    after = steps - config.warmup_steps
    write_run(run.path, config.method, config.env, config.seed, after, finished=done, **changes)


def test_the_state_of_a_run_is_new_unfinished_or_done(tmp_path):
    new, broken, done = plan(study_of([Arm("sac", {})], seeds=range(3), steps=9000), tmp_path)
    (new.path).mkdir(parents=True)
    (new.path / "output.txt").write_text("")
    written(broken, done=False)
    written(done)
    assert [state_of(run) for run in (new, broken, done)] == ["new", "unfinished", "done"]


def test_a_run_that_was_shorter_is_unfinished_and_one_that_went_further_is_done(tmp_path):
    shorter, longer, aims_further = plan(study_of([Arm("sac", {})], seeds=range(3), steps=9000), tmp_path)
    written(shorter, steps=8000)
    written(longer, steps=10_000)
    written(aims_further, done=False, steps=10_000)
    assert [state_of(run) for run in (shorter, longer)] == ["unfinished", "done"]
    with pytest.raises(UserError, match="its run has steps = 10000, not 9000, and is not done"):
        state_of(aims_further)


def test_a_directory_with_other_settings_is_refused_by_name(tmp_path):
    run = plan(study_of([Arm("sac", {})], steps=9000), tmp_path)[0]
    written(run, **{"agent.gamma": 0.5})
    with pytest.raises(UserError, match=f"run-dir = '{run.path}': its run has agent.gamma = 0.5, not 0.99") as caught:
        state_of(run)
    assert "\n" not in str(caught.value)


def test_train_refuses_other_settings_with_the_same_words(tmp_path, capsys):
    run = plan(study_of([Arm("sac", {})], steps=9000), tmp_path)[0]
    written(run, **{"agent.gamma": 0.5})
    assert main(run.words) == 2
    assert f"run-dir = '{run.path}': its run has agent.gamma = 0.5, not 0.99" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_another_number_of_threads(tmp_path):
    (two,) = plan(study_of([Arm("sac", {})], steps=9000), tmp_path, 2)
    written(two, done=False)
    (two.path / "metadata.json").write_text('{"machine": {"threads": 1}}')
    said = r"its run has --threads 1, not 2, and is not done; resume it with --cpus-per-run 1"
    with pytest.raises(UserError, match=said):
        state_of(two)
    (two.path / "metadata.json").write_text('{"machine": {"threads": 2}}')
    assert state_of(two) == "unfinished"
    (two.path / "metadata.json").write_text('{"machine": {"threads": 1}}')
    (two.path / "DONE").touch()
    assert state_of(two) == "done"


def test_a_damaged_configuration_is_refused_in_one_line(tmp_path):
    run = plan(study_of([Arm("sac", {})]), tmp_path)[0]
    run.path.mkdir(parents=True)
    (run.path / "config.json").write_text(to_json(run.settings)[:50])
    with pytest.raises(UserError, match="not a configuration written by this package"):
        state_of(run)
