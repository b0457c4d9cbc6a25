"""Analyses, videos and strips of frames of a trained run."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_of

from pdml.cli import main
from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.methods import METHODS
from pdml.config.validate import check
from pdml.core.errors import UserError
from pdml.core.nets import gaussian
from pdml.reporting.read import read_all
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.session import start_run
from pdml.runs.tensor_file import read_arrays, write_arrays
from pdml.studies import critics, video
from pdml.studies.converged import converged_errors, with_longer_fits
from pdml.studies.critics import fresh_episode
from pdml.studies.open_run import opened, restored_tree
from pdml.studies.strips import strips
from pdml.studies.tsne import kept_policies


def can_render():
    made = "rendering_env(defaults('InvertedPendulum-v5'), width=64, height=64)"
    code = f"from pdml.config.defaults import defaults; from pdml.studies.video import rendering_env; {made}.close()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def renders():
    if not can_render():
        pytest.skip("nothing renders on this machine (apt-get install libegl1)")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    changes = {"diagnose": True, "diagnose_every": 40, "diagnose_steps": 50, "archive_at": (80, 160)}
    start_run(change(tiny_of("pdml"), changes), path, 1, "test")
    return path


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_archived_model_has_the_error_that_was_diagnosed_at_its_step(trained):
    found = list(converged_errors(trained, fresh=50, max_epochs=30, patience=30))
    diagnosed = {row["step"]: row for row in rows(trained / "diagnostics.csv")}
    assert [row["step"] for row in found] == [80, 160]
    for row in found:
        assert row["archived_l2"] == pytest.approx(float(diagnosed[str(row["step"])]["current_l2"]), rel=1e-5)
        assert row["rows"] == row["step"] == row["steps_after_warmup"] + 60
        assert row["epochs"] == 30
        assert row["capped"] == 1


def test_a_model_that_was_hardly_trained_improves_when_trained_further(trained):
    (first,) = converged_errors(trained, [20], fresh=50, max_epochs=300)
    assert first["converged_l2"] < 0.5 * first["archived_l2"]


def test_models_that_are_done_are_kept_when_the_next_one_fails(trained, monkeypatch):
    def converge(run, file, after_warmup, fresh):
        if after_warmup == 100:
            raise UserError("the second one fails")
        return {"step": 60 + after_warmup, "converged_l2": 0.5}

    monkeypatch.setattr("pdml.studies.converged._converge", converge)
    assert main(["analyse", "converged", str(trained)]) == 2
    assert rows(trained / "analysis" / "converged.csv") == [{"step": "80", "converged_l2": "0.5"}]


def test_a_step_that_is_not_archived_is_refused_with_those_that_are(trained):
    with pytest.raises(UserError, match=r"at = 80: not archived; there are 20, 100"):
        list(converged_errors(trained, [80]))


class Steady(gymnasium.Env):
    """Pays 1 per step; an episode has so many steps, after which it is terminated or truncated."""

    def __init__(self, length, terminates):
        self.length, self.terminates = length, terminates

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.time += 1
        ended = self.time == self.length
        return np.zeros(4, np.float32), 1.0, ended and self.terminates, ended and not self.terminates, {}


@pytest.fixture
def constant(trained, tmp_path):
    """An archive whose two critics say 3 and 1 everywhere, and whose temperature is almost 0."""
    arrays, note = read_arrays(trained / "archive" / "step_00000080.safetensors")
    for entry in arrays:
        if entry.startswith("agent.critics"):
            arrays[entry] = np.zeros_like(arrays[entry])
    for critic, value in enumerate((3.0, 1.0)):
        arrays[f"agent.critics[{critic}][1].b"][:] = value
    arrays["agent.log_alpha"] = np.full_like(arrays["agent.log_alpha"], -80.0)
    write_arrays(tmp_path / "constant.safetensors", arrays, note)
    return tmp_path / "constant.safetensors"


@pytest.mark.parametrize(
    ("length", "terminates", "expected"),
    [
        (3, True, (1.75, 1.5, 1.0)),
        (8, False, (2 - 2**-7, 2 - 2**-6)),  # 0.5**7 is the first discount below 0.01
        (6, False, ()),
    ],
)
def test_constant_critics_against_returns_by_hand(trained, constant, length, terminates, expected):
    with opened(trained) as run:
        agent = replace(run.config.agent, gamma=0.5)
        steady = run._replace(env=Steady(length, terminates), config=replace(run.config, agent=agent))
        row = critics.compare(steady, critics.compiled_critics(run), constant, 20, episodes=2)
    assert (row["step"], row["steps_after_warmup"], row["episodes"]) == (80, 20, 2)
    assert (row["states"], row["return_undiscounted"]) == (2 * len(expected), length)
    names = ("value_mean", "value_min", "return_mean", "bias", "bias_min", "rmse")
    found = [row[name] for name in names]
    if expected:
        mean, error = np.mean(expected), np.sqrt(np.mean(np.square(2.0 - np.array(expected))))
        np.testing.assert_allclose(found, [2.0, 1.0, mean, 2.0 - mean, 1.0 - mean, error], rtol=1e-6)
    else:
        assert np.isnan(found).all()
    assert np.isnan(row["correlation"])  # the values do not vary


def test_a_run_whose_returns_are_all_cut_short_is_refused(trained, monkeypatch):
    monkeypatch.setattr(critics, "negligible_after", lambda gamma: 10**6)
    monkeypatch.setattr(critics, "fresh_episode", lambda *args: fresh_episode(*args)._replace(terminated=False))
    with pytest.raises(UserError, match=r"its episodes are truncated before their discount is small \(1000000 steps"):
        critics.critic_bias(trained, [20], episodes=1)


def test_soft_returns_count_the_entropy_of_all_but_the_first_action():
    found = critics.soft_returns(np.ones(3), np.array([9.0, -2.0, -4.0]), alpha=0.5, gamma=0.5)
    np.testing.assert_allclose(found, [1 + 0.5 * (2.5 + 1), 1 + 0.5 * (1 + 2), 1])


def test_episodes_of_an_archived_policy_have_the_log_probability_of_their_actions(trained):
    with opened(trained) as run:
        arrays, _ = read_arrays(trained / "archive" / "step_00000160.safetensors")
        state = run.parts.recipe.agent.init(jax.random.key(0))
        state = restored_tree(state, arrays, "agent", trained)
        episode = critics.fresh_episode(run, critics.compiled_critics(run), state, 160, number=1)
        mean, log_std = map(np.asarray, gaussian(state.actor, jnp.asarray(episode.inputs[:, :4])))
    action = episode.inputs[:, 4:].astype(np.float64)
    u = np.arctanh(action)
    normal = -0.5 * np.square((u - mean) / np.exp(log_std)) - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(episode.log_prob, (normal - np.log(1 - action**2)).sum(axis=1), atol=1e-2)
    assert len(np.unique(action)) == len(action) == len(episode.reward)


@pytest.mark.parametrize("subset", [1, 2, 4])
def test_the_minimum_is_averaged_over_the_subsets_of_critics(subset):
    values = np.random.default_rng(0).normal(size=(4, 5))
    each = [values[list(chosen)].min(axis=0) for chosen in combinations(range(4), subset)]
    np.testing.assert_allclose(critics.expected_minimum(values, subset), np.mean(each, axis=0))


def test_the_minimum_is_that_of_the_methods_targets():
    subsets = {name: critics.target_subset(defaults("Hopper-v5", name).learning, 10) for name in METHODS}
    assert subsets == dict.fromkeys(METHODS, 10) | dict.fromkeys(("redq", "dhmbpo", "pdml-dhmbpo"), 2)


def test_critics_are_compared_at_the_archived_steps(trained, capsys):
    assert main(["analyse", "critics", str(trained), "--episodes", "2"]) == 0
    found = rows(trained / "analysis" / "critics.csv")
    assert [(row["step"], row["steps_after_warmup"], row["episodes"]) for row in found] == [
        ("80", "20", "2"),
        ("160", "100", "2"),
    ]
    for row in found:
        assert float(row["bias"]) == pytest.approx(float(row["value_mean"]) - float(row["return_mean"]))
        assert float(row["value_min"]) <= float(row["value_mean"])
        assert abs(float(row["correlation"])) <= 1
    (again,) = critics.critic_bias(trained, [100], episodes=2)
    assert {key: str(value) for key, value in again.items()} == found[1]
    assert main(["analyse", "critics", str(trained), "--at", "80"]) == 2
    assert "at = 80: not archived; there are 20, 100" in capsys.readouterr().err
    assert main(["analyse", "critics", str(trained), "--at", "100", "--episodes", "3"]) == 0
    assert [row["episodes"] for row in rows(trained / "analysis" / "critics.csv")] == ["2", "3"]


def test_every_block_keeps_its_policy_and_archives_keep_the_same(trained):
    with opened(trained) as run:
        known = kept_policies(run)
        assert sorted(known) == [0, 20, 40, 60, 80, 100]
        (trained / "checkpoints").rename(trained / "hidden")
        archived = kept_policies(run)
        (trained / "hidden").rename(trained / "checkpoints")
    assert sorted(archived) == [20, 100]
    np.testing.assert_array_equal(archived[20]()[0].w, known[20]()[0].w)
    assert not np.array_equal(known[20]()[0].w, known[40]()[0].w)


@pytest.fixture(scope="module")
def between_blocks(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "b"
    settings = change(tiny_of("dhmbpo"), {"archive_at": (70, 80, 100), "steps": 150})
    assert (settings.learning.warmup_steps, settings.learning.model_every) == (60, 20)
    start_run(settings, path, 1, "test")
    return path


@pytest.mark.slow
def test_dhmbpo_has_at_a_step_the_policy_after_its_update_phase(between_blocks):
    with opened(between_blocks) as run:
        archived = {step: read() for step, read in kept_policies(run).items()}
        assert sorted(archived) == [0, 10, 20, 40, 60, 80]
        (between_blocks / "archive").rename(between_blocks / "hidden")
        known = {step: read() for step, read in kept_policies(run).items()}
        (between_blocks / "hidden").rename(between_blocks / "archive")
        last = read_arrays(saved_checkpoints(between_blocks)[0])[0]["agent.actor.layers[0].w"]
    assert sorted(known) == [0, 20, 40, 60, 80]
    for step, block in ((10, 0), (20, 20), (40, 40)):
        for kept, snapshot in zip(jax.tree.leaves(archived[step]), jax.tree.leaves(known[block]), strict=True):
            np.testing.assert_array_equal(kept, snapshot)
    np.testing.assert_array_equal(known[80].layers[0].w, last)  # of the block that the run ended in
    assert len({np.asarray(policy.layers[0].w).tobytes() for policy in known.values()}) == 5


@pytest.mark.slow
def test_dhmbpos_critics_are_compared_in_their_own_scale(between_blocks):
    (row,) = critics.critic_bias(between_blocks, [40], episodes=2)
    arrays, _ = read_arrays(between_blocks / "archive" / "step_00000100.safetensors")
    low, high = arrays["agent.bounds"]
    assert row["states"] > 0
    assert low - (high - low) < row["value_min"] <= row["value_mean"] < high + (high - low)
    assert row["bias"] == pytest.approx(row["value_mean"] - row["return_mean"])


@pytest.mark.slow
def test_dhmbpos_model_is_trained_further_at_least_as_patiently_as_in_its_run(between_blocks):
    for preset, patience, expected in (
        ("paper", 20, (40, 500)),
        ("paper", 60, (60, 500)),
        ("published", 20, (124, 621)),
    ):
        run = defaults("Hopper-v5", "dhmbpo", preset)
        changes = dict(zip(("dynamics.patience", "dynamics.max_epochs"), expected, strict=True))
        assert check(with_longer_fits(run, patience, 500)) == change(run, changes | {"double.first_factor": 1})
    (row,) = converged_errors(between_blocks, [20], max_epochs=100, fresh=50)
    assert row["epochs"] > 20
    assert row["converged_l2"] < row["archived_l2"]


def test_visitation_has_the_steps_of_the_chosen_policies(trained, capsys):
    assert main(["analyse", "tsne", str(trained), "--at", "0,100", "--steps", "40"]) == 0
    found = rows(trained / "analysis" / "tsne.csv")
    assert [row["step"] for row in found] == ["0"] * 40 + ["100"] * 40
    places = np.array([[float(row["x"]), float(row["y"])] for row in found])
    assert np.isfinite(places).all()
    assert len(np.unique(places, axis=0)) > 70
    assert main(["figure", "tsne", str(trained), "--out", str(trained / "figures")]) == 0
    assert main(["analyse", "tsne", str(trained), "--at", "30"]) == 2
    assert "at = 30: no policy is kept of that step; the nearest is 20" in capsys.readouterr().err


@pytest.mark.slow
def test_a_video_is_written(trained, renders):
    assert main(["video", str(trained), "--episodes", "2"]) == 0
    found = sorted((trained / "videos").glob("*.mp4"))
    assert [path.name for path in found] == ["step_00000160-episode-0.mp4", "step_00000160-episode-1.mp4"]
    assert all(path.read_bytes()[4:8] == b"ftyp" for path in found)


def test_a_report_shows_the_policy_at_work(trained, renders):
    pictures = strips(read_all([trained]))
    assert list(pictures) == [trained]
    assert pictures[trained].jpeg[:2] == b"\xff\xd8"
    picture, width = video.strip(trained, frames=4, width=80, height=60)
    assert 80 < width <= 4 * 80
    assert width % 80 == 0
    assert picture[:2] == b"\xff\xd8"


@pytest.mark.slow
def test_without_a_renderer_one_line_says_what_to_install(trained, tmp_path):
    env = os.environ | {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"}
    words = [sys.executable, "-m", "pdml"]
    done = subprocess.run([*words, "video", str(trained)], capture_output=True, text=True, env=env, check=False)
    if done.returncode == 0:
        pytest.skip("osmesa renders on this machine")
    assert done.returncode == 2
    assert done.stderr.startswith("pdml: nothing can render here (MUJOCO_GL=osmesa: ")
    assert "apt-get install libegl1" in done.stderr
    assert done.stderr.count("\n") == 1
    out = str(tmp_path / "r.html")
    done = subprocess.run(
        [*words, "report", str(trained), "--out", out], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no pictures: nothing can render here" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("package", "words", "extra"), [("moviepy", ["video"], "video"), ("sklearn", ["analyse", "tsne"], "analysis")]
)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(trained, package, words, extra, tmp_path):
    code = (
        f"import importlib.util as u, sys; sys.modules[{package!r}] = None; found = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name == {package!r} else found(name, *a)\n"
        f"from pdml.cli import main; sys.exit(main({[*words, str(trained)]!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"pip install 'pdml[{extra}]'" in done.stderr


def test_an_environment_that_is_drawn_has_the_limits_of_its_run(monkeypatch):
    made = []

    class Drawn(gymnasium.Env):
        def reset(self, **kwargs):
            return None, {}

        def render(self):
            return None

    monkeypatch.setattr("pdml.envs.gym.make_env", lambda *args, **kwargs: made.append((args, kwargs)) or Drawn())
    settings = change(defaults("InvertedPendulum-v5"), {"max_episode_steps": 7, "env_timeout": 60.0})
    video.rendering_env(settings, width=64)
    assert made == [(("InvertedPendulum-v5", 7, 60.0), {"render_mode": "rgb_array", "width": 64})]
