"""`Agent(start_from=...)` and `pdml train --start-from`: a run that begins with parts of another one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from fake_runs import write_run
from faulty_runs import FAULTY
from point_env import Point, learned, new_agent, tables
from run_files import assert_same_files
from tiny import TINY, assert_same_run

from pdml.api import Agent
from pdml.cli import main
from pdml.config.fields import leaves
from pdml.config.parse import shown
from pdml.config.start_from import StartFrom, StartRecord, require_same_start
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, generator, key
from pdml.reporting.read import read_all
from pdml.reporting.report import write
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays

OBS = np.random.default_rng(0).normal(size=(8, 2))
ACTIONS = np.linspace(-2.0, 4.0, 8).reshape(8, 1)


class Windy(Point):
    """The same spaces, another reward and other dynamics."""

    def step(self, action):
        _, reward, *ends = super().step(action)
        self.state[1] += 0.05
        return self.state.copy(), reward - 1.0, *ends


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run of 101 steps."""
    path = tmp_path_factory.mktemp("source") / "old"
    learned(path, 101).close()
    return path


def files(path):
    """Return every file of a run with its content and its time."""
    found = (file for file in path.rglob("*") if file.is_file())
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in found}


def state_of(agent):
    return agent._live.state


def same_predictions(one, other):
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_it_acts_and_predicts_as_the_run_did_and_has_its_rows(old, tmp_path):
    agent, source = new_agent(tmp_path / "new", env=Windy, start_from=old), Agent.load(old, env=Point)
    assert agent.steps == 0
    assert np.array_equal(agent.predict(OBS), source.predict(OBS))
    assert same_predictions(agent.model.predict(OBS, ACTIONS), source.model.predict(OBS, ACTIONS))
    rows, first = (state_of(one).replay.stored() for one in (source, agent))
    assert np.array_equal(rows.rows, first.rows)
    assert first.block_sizes.tolist() == [101]
    assert (state_of(agent).prior, state_of(agent).prior_learned) == (101, 101)


@pytest.mark.parametrize("part", ["agent", "model", "rows"])
def test_what_is_left_out_is_as_in_a_new_run(part, old, tmp_path):
    agent, source = new_agent(tmp_path / "new", start_from=old, start_with=[part]), Agent.load(old, env=Point)
    blank = new_agent(tmp_path / "blank")
    for name, expected in (("agent", source), ("model", source)):
        expected = expected if name == part else blank
        if name == "agent":
            assert np.array_equal(agent.predict(OBS), expected.predict(OBS))
        else:
            predicted = (one.model.predict(OBS, ACTIONS) for one in (agent, expected))
            assert same_predictions(*predicted)
    state = state_of(agent)
    assert state.prior == (101 if part == "rows" else 0)
    assert (state.warm_started, state.prior_learned) == (part == "agent", 0)


def test_the_policy_that_was_taken_over_collects_the_warm_up(old, tmp_path):
    agent = new_agent(tmp_path / "new", start_from=old, start_with="agent")
    state, parts = state_of(agent), agent._live.training.parts
    expected = np.asarray(parts.act(state.agent.actor, state.episode.obs, key(0, Purpose.ACT, 0)))
    agent.learn(2, progress_bar=False)
    uniform = new_agent(tmp_path / "rows", start_from=old, start_with=("model", "rows")).learn(2, progress_bar=False)
    cold = new_agent(tmp_path / "cold").learn(2, progress_bar=False)
    actions = [state_of(one).replay.stored().rows[-2:, 2] for one in (agent, uniform, cold)]
    assert actions[0][0] == expected[0]
    later = [generator(0, Purpose.WARMUP, 101 + i).uniform(-1.0, 1.0, 1) for i in range(2)]
    assert np.array_equal(actions[1], np.float32(later).ravel())  # behind those of the old run: no step is taken twice
    assert not np.isin(actions[1], actions[2]).any()


@pytest.fixture(scope="module")
def windy(old, tmp_path_factory):
    """A run of 121 steps in a changed environment that started from the old one, which it leaves as it was."""
    path, before = tmp_path_factory.mktemp("windy") / "run", files(old)
    learned(path, 121, env=Windy, start_from=old).close()
    assert files(old) == before
    return path


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_exactly_without_the_other_run(windy, old, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(old, moved)
    learned(tmp_path / "run", 30, env=Windy, start_from=moved).close()  # inside the warm-up
    shutil.rmtree(moved)
    Agent.load(tmp_path / "run", env=Windy).learn(91, progress_bar=False).close()
    assert tables(tmp_path / "run") == tables(windy)
    assert_same_run(tmp_path / "run", windy)


def test_the_weight_of_the_old_rows_is_reported(windy):
    rows = np.genfromtxt(windy / "progress.csv", delimiter=",", names=True, deletechars="")
    blocks = [read_arrays(file)[0]["model"] for file in sorted((windy / "blocks").glob("*"))]
    reported = rows["weights/prior"]
    assert reported[0] == pytest.approx(101 / 161)  # still uniform over rows
    assert np.allclose(reported, [block[0] for block in blocks])
    assert reported[2] == pytest.approx(blocks[2][1])  # as the warm-up, the share of the first policy


def test_the_same_run_is_known_from_every_directory(old, tmp_path, monkeypatch):
    monkeypatch.chdir(old.parent)
    learned(tmp_path / "run", 1, env=Windy, start_from=old.name).close()
    other = tmp_path / "elsewhere" / old.name
    other.mkdir(parents=True)
    monkeypatch.chdir(other.parent)  # where another run has the same name
    parts = ("agent", "model", "rows")
    require_same_start(StartFrom(old, parts), tmp_path / "run")
    with pytest.raises(UserError, match=rf"its run has start-from = '{old}', not '{old.name}'"):
        require_same_start(StartFrom(Path(old.name), parts), tmp_path / "run")


@pytest.mark.parametrize("damage", [{"parts": [1, 2]}, {"rows": "many"}, {"path": None}, {"more": 1}])
def test_a_damaged_record_of_the_start_does_not_stop_a_report(damage, tmp_path):
    path = write_run(tmp_path / "run", returns=(500.0,))
    good = StartRecord("runs/old", 30000, "Hopper-v5", "mbpo", 3, "0" * 16, ("rows",), 1234)._asdict()
    (path / "metadata.json").write_text(json.dumps({"start_from": good | damage}))
    assert write(read_all([path]), tmp_path / "report.html", {}, []) > 0


def test_metadata_says_what_a_run_started_from_and_a_copy_keeps_it(windy, old, tmp_path):
    found = json.loads((windy / "metadata.json").read_text())["start_from"]
    assert len(found.pop("config")) == 16
    assert found == {
        "path": str(old),
        "step": 101,
        "env": "python:Point",
        "method": "pdml",
        "seed": 0,
        "parts": ["agent", "model", "rows"],
        "rows": 101,
    }
    Agent.load(windy, env=Windy).save(tmp_path / "copy")
    copied, own = (json.loads((path / "metadata.json").read_text()) for path in (tmp_path / "copy", windy))
    assert copied["start_from"] == own["start_from"]


def test_rows_of_a_run_that_had_prior_rows_come_all_and_others_may_join_them(windy, tmp_path):
    prior = {"obs": OBS, "action": ACTIONS, "reward": np.zeros(8), "next_obs": OBS, "terminated": np.zeros(8, bool)}
    agent = new_agent(tmp_path / "run", start_from=windy, prior=prior)
    rows = state_of(agent).replay.stored().rows
    assert len(rows) == 101 + 121 + 8
    assert np.allclose(rows[-8:, :2], OBS, atol=1e-6)
    assert (state_of(agent).prior, state_of(agent).prior_learned) == (230, 222)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(old, tmp_path):
    shutil.copytree(old, tmp_path / "old")
    newest = saved_checkpoints(tmp_path / "old")[0]
    shutil.copyfile(newest, newest.with_name("step_00000090.safetensors"))
    newest.write_bytes(b"garbage")
    with pytest.warns(UserWarning, match=rf"{newest.name}' cannot be read .*; the one before it is taken"):
        agent = new_agent(tmp_path / "run", start_from=tmp_path / "old")
    assert np.array_equal(agent.predict(OBS), Agent.load(old, env=Point).predict(OBS))


@pytest.mark.slow
def test_parts_that_do_not_fit_are_named_with_what_is_left(old, tmp_path):
    for more, sentence in [
        (
            {"agent": {"hidden_sizes": (8,)}},
            "its agent does not fit this run's (agent.actor[0].w is float32(2, 16), expected float32(2, 8)); take "
            f"its settings too: --config {old}/config.json, or start without its agent: start-with model,rows",
        ),
        ({"method": "maper-mbpo"}, "its agent does not fit this run's (agent.critics"),
        (
            {"method": "dhmbpo", "start_with": "model", "batch_size": 36, "double": {"dropout": (0.01,)}},
            "its model does not fit this run's (the saved state has no",
        ),
        (
            {"dynamics": {"target_norm": "delta"}},
            "its model has dynamics.target_norm = none, this run's delta; start without its model: start-with",
        ),
        (
            {"replay_capacity": 120},
            "its 101 rows do not fit into replay_capacity = 120; give a larger one, or",
        ),
        ({"start_with": ["agent", "raws"]}, "start-with = 'raws': unknown (did you mean rows?); allowed: agent, model"),
    ]:
        with pytest.raises(UserError) as caught:
            new_agent(tmp_path / "run", **({"start_from": old} | more))
        assert sentence in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_a_run_that_has_not_learned_yet_gives_only_its_rows(tmp_path):
    learned(tmp_path / "old", 30).close()
    sentence = "has not begun to learn, it is at step 30 of its warm-up; take its rows alone: start-with rows"
    with pytest.raises(UserError, match=sentence):
        new_agent(tmp_path / "new", start_from=tmp_path / "old")
    assert state_of(new_agent(tmp_path / "new", start_from=tmp_path / "old", start_with="rows")).prior == 30


def train(*words, method="sac"):
    """Run `pdml train` with tiny settings; return its exit code."""
    read = {leaf.name: TINY[leaf.name] for leaf in leaves() if leaf.name in TINY and method in leaf.methods}
    settings = [f"--{name}={shown(value)}" for name, value in (read | {"eval_episodes": 0}).items() if name != "steps"]
    return main(["train", "--env", FAULTY, "--method", method, *settings, *map(str, words)])


@pytest.mark.slow
def test_the_command_starts_once_and_resumes_after_that(tmp_path, capsys):
    old, new, other = tmp_path / "old", tmp_path / "new", tmp_path / "other"
    assert train("--steps", 62, "--run-dir", old) == 0
    start = ("--start-from", old, "--run-dir", new, "--resume")
    capsys.readouterr()
    assert train("--steps", 61, *start) == 0
    assert f"starts from '{old}', sac on {FAULTY} at step 62: agent, 62 rows\nneeds about" in capsys.readouterr().out
    assert train("--steps", 61, *start) == 0
    assert f"done already: {new}" in capsys.readouterr().out
    for words, sentence in [
        (("--start-from", other), f"its run has start-from = '{old}', not '{other}'"),
        (("--start-from", old, "--start-with", "agent"), "its run has start-with = agent,rows, not agent"),
        ((), f"its run has start-from = '{old}', not none"),
    ]:
        assert train("--steps", 61, *words, "--run-dir", new, "--resume") == 2
        assert sentence in capsys.readouterr().err

    # killed before its first checkpoint, while the other run was at an earlier step
    shutil.copytree(new, other)
    for file in (*saved_checkpoints(new), new / "DONE"):
        file.unlink()
    about = json.loads((new / "metadata.json").read_text())
    earlier = {**about, "start_from": {**about["start_from"], "step": 61, "rows": 61}}
    (new / "metadata.json").write_text(json.dumps(earlier))
    assert train("--steps", 61, *start) == 0
    assert_same_files(new, other)
    assert json.loads((new / "metadata.json").read_text())["start_from"] == about["start_from"]
