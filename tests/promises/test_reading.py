"""A run is read from its directory alone: what it names need not be installed, and is not imported."""

import html
import sys

import gymnasium
import numpy as np
import pytest
from tiny import TINY

from pdml.cli import main
from pdml.config.fields import leaves
from pdml.config.parse import shown
from pdml.runs.policy import Policy

MODULE = """
import gymnasium
import faulty

gymnasium.register("Arm-v0", faulty.Faulty, max_episode_steps=17)
"""

RULES = """
def far(obs, action, next_obs):
    return next_obs[:, 0] > 9.0
"""

OTHERS = ("mylab_envs", "mylab_rules")


class Attempts:
    """Notes which modules are looked for."""

    def __init__(self):
        self.names = []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A run in an environment of a module, and with a rule of another, that were removed after it."""
    folder, path = tmp_path_factory.mktemp("mylab"), tmp_path_factory.mktemp("runs") / "run"
    (folder / "mylab_envs.py").write_text(MODULE)
    (folder / "mylab_rules.py").write_text(RULES)
    read = {leaf.name for leaf in leaves() if "pdml" in leaf.methods}
    tiny = [f"--{name}={shown(value)}" for name, value in TINY.items() if name in read]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        words = [
            "--env",
            "mylab_envs:Arm-v0",
            "--steps",
            "120",
            "--archive-at",
            "100",
            "--termination",
            "mylab_rules:far",
        ]
        assert main(["train", "--run-dir", str(path), *tiny, *words]) == 0
    del gymnasium.registry["Arm-v0"]
    for name in OTHERS:
        del sys.modules[name]
        (folder / f"{name}.py").unlink()
    return path


@pytest.fixture(autouse=True)
def attempts(monkeypatch, tmp_path):
    """Modules that are looked for during a test, in a directory of its own."""
    found = Attempts()
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    monkeypatch.chdir(tmp_path)
    return found.names


READING = (
    *("report", "report --no-frames", "figure curves", "figure weights", "summary", "summary --short", "status"),
    *("results collect --into kept", "results claims"),
)


@pytest.mark.parametrize("command", READING)
def test_a_run_is_read_where_its_environment_is_not_installed(command, foreign, attempts, tmp_path, capsys):
    assert main([*command.split(), str(foreign)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert not set(OTHERS) & {*attempts, *sys.modules}
    assert str(tmp_path) not in sys.path  # nothing of the current directory is imported either
    if command.startswith("report"):
        assert "mylab_envs:Arm-v0" in (tmp_path / "report.html").read_text()
        assert "1 runs" in captured.out
    if command.startswith("figure"):
        assert len(list((tmp_path / "figures").iterdir())) == 3
    if command == "summary":
        assert "| pdml | 120 |" in captured.out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "they need the module of mylab_envs:Arm-v0; `pdml report --frames` imports it"),
        (["--frames"], "env = 'mylab_envs:Arm-v0': there is no module 'mylab_envs' to import it from"),
    ],
)
def test_the_report_says_why_it_has_no_pictures_of_such_a_run(words, why, foreign, tmp_path, capsys):
    assert main(["report", str(foreign), *words]) == 0
    assert capsys.readouterr().err == ""
    assert f"no pictures: {why}" in html.unescape((tmp_path / "report.html").read_text())


@pytest.mark.parametrize("command", ["resume", "eval", "video", "analyse converged"])
def test_what_needs_its_environment_says_in_one_line_that_it_is_missing(command, foreign, attempts, capsys):
    words = ["--steps", "140"] if command == "resume" else []
    before = {path: path.stat().st_mtime_ns for path in foreign.rglob("*")}
    assert main([*command.split(), str(foreign), *words]) == 2
    captured = capsys.readouterr()
    assert captured.err == "pdml: env = 'mylab_envs:Arm-v0': there is no module 'mylab_envs' to import it from\n"
    assert captured.out == ""
    assert "mylab_envs" in attempts  # so the other test would notice an import
    assert {path: path.stat().st_mtime_ns for path in foreign.rglob("*")} == before


@pytest.fixture
def env_alone(tmp_path, monkeypatch):
    """The module of the environment, in the current directory; that of the rule is missing."""
    (tmp_path / "mylab_envs.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    del sys.modules["mylab_envs"], gymnasium.registry["Arm-v0"]


@pytest.mark.usefixtures("env_alone")
def test_an_evaluation_imports_the_environment_but_no_rule(foreign, attempts, capsys):
    assert main(["eval", str(foreign), "--episodes", "1"]) == 0
    assert "policy of step 120" in capsys.readouterr().out
    assert "mylab_envs" in sys.modules
    assert "mylab_rules" not in attempts


@pytest.mark.usefixtures("env_alone")
def test_resuming_imports_the_rule_too(foreign, capsys):
    assert main(["resume", str(foreign), "--steps", "140"]) == 2
    assert "termination = 'mylab_rules:far': cannot import 'mylab_rules'" in capsys.readouterr().err


def test_a_policy_by_itself_imports_nothing(foreign, attempts):
    assert Policy.load(foreign)(np.zeros(2)).shape == (1,)
    assert not set(OTHERS) & set(attempts)
