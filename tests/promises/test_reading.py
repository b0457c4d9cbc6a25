"""A run is read from its directory alone: its environment need not be installed, and is not imported."""

import html
import sys

import gymnasium
import pytest
from tiny import TINY

from pdml.cli import main
from pdml.config.fields import leaves
from pdml.config.parse import shown

MODULE = """
import gymnasium
import faulty

gymnasium.register("Arm-v0", faulty.Faulty, max_episode_steps=17)
"""


class Attempts:
    """Notes which modules are looked for."""

    def __init__(self):
        self.names = []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A run in an environment of a module that was removed after it."""
    folder, path = tmp_path_factory.mktemp("mylab"), tmp_path_factory.mktemp("runs") / "run"
    (folder / "mylab_envs.py").write_text(MODULE)
    read = {leaf.name for leaf in leaves() if "pdml" in leaf.methods}
    tiny = [f"--{name}={shown(value)}" for name, value in TINY.items() if name in read]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        words = ["--env", "mylab_envs:Arm-v0", "--steps", "120", "--archive-at", "100"]
        assert main(["train", "--run-dir", str(path), *tiny, *words]) == 0
    del sys.modules["mylab_envs"], gymnasium.registry["Arm-v0"]
    (folder / "mylab_envs.py").unlink()
    return path


@pytest.fixture(autouse=True)
def attempts(monkeypatch, tmp_path):
    """Modules that are looked for during a test, in a directory of its own."""
    found = Attempts()
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    monkeypatch.chdir(tmp_path)
    return found.names


@pytest.mark.parametrize("command", ["report", "report --no-frames", "figure curves", "figure weights", "summary"])
def test_a_run_is_read_where_its_environment_is_not_installed(command, foreign, attempts, tmp_path, capsys):
    assert main([*command.split(), str(foreign)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "mylab_envs" not in attempts
    assert "mylab_envs" not in sys.modules
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
