"""`pdml check`: what it finds about an environment before training."""

import itertools
import re
import sys
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from pdml.cli import main
from pdml.envs.env_check import check_env
from pdml.envs.episode import advance_episode, begin_episode
from pdml.envs.gym import EnvironmentFault, adapt

MODULE = '''
import time
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Line(gymnasium.Env):
    """A point that is pushed along a line; an episode ends beyond 3."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2).astype(np.float32), 0
        return self.obs(), {}

    def step(self, action):
        self.t += 1
        self.x[1] += 0.3 * float(action[0])
        self.x[0] += 0.3 * self.x[1]
        return self.obs(), self.reward(), bool(abs(self.x[0]) > 3.0), False, {}

    def obs(self):
        return np.array([*self.x, 1.0], np.float32)

    def reward(self):
        return -float(abs(self.x[0]))


class Unbounded(Line):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)


class Camera(Line):
    observation_space = Box(0, 255, (64, 64, 3), np.uint8)
    action_space = Discrete(3)


class Careless(Line):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=np.random.SeedSequence().entropy % 2**31)


class Leaky(Line):
    """Where an episode begins depends on the one before."""

    drift = 0.0

    def reset(self, *, seed=None, options=None):
        self.drift += 0.01
        super().reset(seed=seed)
        self.x[0] += self.drift
        return self.obs(), {}


class Broken(Line):
    def obs(self):
        return np.array([*self.x, np.nan if self.t == 7 else 1.0], np.float32)


class Raising(Line):
    def step(self, action):
        if self.t == 5:
            raise ValueError("the motor\\nis on fire")
        return super().step(action)


class Old(Line):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class Long(Line):
    def obs(self):
        return np.zeros(4, np.float32)


class Mislabelling(Line):
    """Reports its time limit as termination."""

    def step(self, action):
        obs, reward, *_ = super().step(action)
        return obs, 1.0, self.t == 20, False, {}


class Large(Line):
    observation_space = Dict({"a": Box(-1.0, 1.0, (2,), np.float32), "b": Box(-9e9, 9e9, (2, 2), np.float32)})

    def obs(self):
        return {"a": self.x, "b": np.array([[0.0, 5e4], [*self.x]], np.float32)}


class Narrow(Line):
    observation_space = Box(-0.1, 1.0, (3,), np.float32)


class Double(Line):
    def obs(self):
        return super().obs().astype(np.float64)


class Slow(Line):
    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


for kind in (Line, *Line.__subclasses__()):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=None if kind in (Line, Mislabelling) else 50)
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A module of environments where Python finds it."""
    import gymnasium

    before = set(gymnasium.registry)
    (tmp_path / "tried_envs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("tried_envs", None)
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


def texts(env_id, kind, **more):
    return [finding.text for finding in check_env(env_id, **more) if finding.kind == kind]


def has(sentences, start):
    return any(sentence.startswith(start) for sentence in sentences)


def test_pendulum_can_be_learned(capsys, monkeypatch):
    clock = itertools.count(0.0, 0.002)  # a step every two milliseconds, however busy the machine is
    monkeypatch.setattr("pdml.envs.env_check.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert main(["check", "Pendulum-v1"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == ""
    assert lines[0] == "ok       observation: 3 numbers, from Box(3,)"
    assert lines[1] == "ok       action: 1 number in [-2, 2]"
    assert lines[2] == "ok       time limit: 200 steps, its own"
    assert lines[3] == "ok       termination: learned, no rule is known for it"
    settings = "50000 steps, warm-up 1000, rollout length 1, 20 updates per step, target entropy -0.5"
    assert lines[4] == f"ok       settings: {settings}"
    assert re.search(r"ok +300 random steps, (49\d|500) per second: 2 s per 1000 steps; ", lines[5]), lines[5]
    assert lines[5].endswith("; a run of 50000 steps spends 2 min in the environment")
    evaluation = "10 episodes of at most 200 steps, 4 s, every 1000 steps of the run (--eval-every, --eval-episodes)"
    assert lines[6] == f"ok       evaluation: {evaluation}"
    assert "ok       the same seed and actions give the same observations: resuming is exact" in lines
    assert "ok       episodes: 0 terminated, 1 truncated by a time limit" in lines
    assert [line for line in lines if line.startswith("note")] == [
        "note     no episode terminated: a learned termination has nothing to learn from yet; if none ever does, "
        "set --termination never"
    ]
    assert lines[-1] == "PDML can train on it: pdml train --env Pendulum-v1"


def test_an_environment_of_the_paper_has_its_rule_and_settings():
    good = texts("Hopper-v5", "ok", steps=120)
    assert "termination: by the rule of its family" in good
    assert "time limit: 1000 steps, its own" in good
    settings = "125000 steps, warm-up 5000, rollout length 1 to 15, 20 updates per step, target entropy -1"
    assert has(good, f"settings: {settings}")
    assert has(good, "120 random steps")
    assert texts("Hopper-v5", "note", steps=120) == []
    assert texts("Hopper-v5", "problem", steps=120) == []


def test_the_observation_is_counted_as_it_is_learned_from():
    assert has(texts("Ant-v5", "ok", steps=10), "observation: 27 numbers")


@pytest.mark.parametrize(
    ("env_id", "sentences"),
    [
        ("CartPole-v1", ["its action space is Discrete; continuous actions are needed"]),
        ("tried_envs:Unbounded-v0", ["its action bounds are not finite (-inf to inf)"]),
        ("tried_envs:Camera-v0", ["its observations are images (64, 64, 3)", "its action space is Discrete"]),
    ],
)
def test_what_cannot_be_learned_is_one_problem_per_line(env_id, sentences, capsys):
    assert main(["check", env_id]) == 1
    captured = capsys.readouterr()
    *found, last = captured.out.splitlines()
    assert captured.err == ""
    assert len(found) == len(sentences)
    for line, sentence in zip(found, sentences, strict=True):
        assert line.startswith("problem ")
        assert sentence in line
    assert last == f"PDML cannot train on it: {len(found)} problem{'s' if len(found) > 1 else ''}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Broken", "the environment, at step 7 of an episode, returned nan in entry 2 of its observation"),
        ("Raising", "the environment, at step 6 of an episode, raised ValueError: the motor is on fire"),
        ("Old", "the environment, at step 1 of an episode,"),
        ("Long", "the environment, at reset, returned an observation of shape (4,), not (3,)"),
    ],
)
def test_what_it_does_wrong_is_named_with_its_step(name, sentence):
    found = texts(f"tried_envs:{name}-v0", "problem")
    assert len(found) == 1
    assert found[0].startswith(sentence)


def test_an_environment_of_the_old_form_is_named():
    with pytest.raises(EnvironmentFault, match=r"returned 4 values, not \(obs, reward, terminated, truncated, info\)"):
        begin_and_step(import_module("tried_envs").Old())


def begin_and_step(env):
    env = adapt(env, "env")
    advance_episode(env, 0, begin_episode(env, 0, 0), np.zeros(1, np.float32))


def test_without_a_time_limit_of_its_own_it_gets_one():
    notes = texts("tried_envs:Line-v0", "note")
    assert "time limit: it declares none; episodes are truncated after 1000 steps (--max-episode-steps)" in notes
    assert "observation: entry 2 never changed" in notes
    assert not has(notes, "no episode terminated")


@pytest.mark.parametrize("name", ["Careless", "Leaky"])
def test_an_environment_that_ignores_its_seed_is_noted(name):
    notes = texts(f"tried_envs:{name}-v0", "note")
    assert "the same seed and actions give different observations: resuming begins a new episode" in notes
    assert texts(f"tried_envs:{name}-v0", "problem") == []


def test_a_time_limit_in_disguise_is_noted():
    notes = texts("tried_envs:Mislabelling-v0", "note")
    assert has(notes, "every episode terminated after 20 steps: if that is a time limit")
    assert "reward: always 1" in notes


def test_observations_far_from_one_or_outside_their_space_are_noted():
    assert has(texts("tried_envs:Large-v0", "ok"), "observation: 6 numbers, from Dict")
    assert has(texts("tried_envs:Large-v0", "note"), "observation: entry 3 reached 50000 in magnitude")
    assert has(texts("tried_envs:Narrow-v0", "note"), "an observation lies outside its space: entry ")
    sentence = "an observation lies outside its space: its numbers are float64, not float32"
    assert sentence in texts("tried_envs:Double-v0", "note")


def test_a_slow_environment_is_stepped_only_for_the_given_time():
    found = [text for text in texts("tried_envs:Slow-v0", "ok", seconds=0.2) if "random step" in text]
    count, pace = re.match(r"(\d+) random steps?, (\d+) per second", found[0]).groups()
    assert int(count) <= 11
    assert int(pace) <= 50


def test_a_slow_environment_gets_more_time_on_request(capsys):
    assert main(["check", "tried_envs:Slow-v0", "--steps", "8", "--seconds", "900"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok       8 random steps, ") for line in lines)
    evaluation = re.search(r"10 episodes of at most 50 steps, (\d+) s, every 1000 steps", "\n".join(lines))
    assert int(evaluation.group(1)) >= 10  # 500 steps of at least 20 ms


def test_as_much_time_as_is_given_is_the_limit_of_one_step(monkeypatch):
    given = []

    def noted(env, name, max_episode_steps, timeout):
        given.append(timeout)
        return adapt(env, name, max_episode_steps, timeout)

    monkeypatch.setattr("pdml.envs.env_check.adapt", noted)
    check_env("tried_envs:Line-v0", steps=2)
    check_env("tried_envs:Line-v0", steps=2, seconds=900.0)
    assert given == [60.0, 60.0, 900.0, 900.0]  # each time once more to repeat the episodes


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_that_is_none_is_refused(seconds, capsys):
    assert main(["check", "Pendulum-v1", f"--seconds={seconds}"]) == 2
    assert capsys.readouterr().err == f"pdml: seconds = '{seconds}': must be a number above 0\n"
