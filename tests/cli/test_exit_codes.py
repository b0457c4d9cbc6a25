"""Exit codes: every command has its row, and what is not tested beside its command is tested here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pdml.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()


def test_the_page_has_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    commands = set(re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE))
    assert len(commands) > 12
    rows = PAGE[PAGE.index("| command |") :]
    named = [name for cell in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE) for name in re.findall(r"\w+", cell)]
    assert sorted(named) == sorted(commands)


@pytest.mark.parametrize("what", ["presets", "settings"])
def test_output_that_nobody_reads_ends_a_command_quietly(what):
    """A short text is written when the command ends, a long one before: the code is the same."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "pdml", "list", what]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, env=env, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
