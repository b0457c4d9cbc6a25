"""The examples: each runs as it is written, in a size that takes a second, and does what it says."""

import json
import re
import runpy
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import jaxtyping
import matplotlib.pyplot as plt
import numpy as np
import pytest
from csv_rows import column, pick, read_back

import pdml
from pdml.cli import main
from pdml.runs.policy import Policy
from pdml.sweeps.plan import plan
from pdml.sweeps.study import study_from

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = json.loads((EXAMPLES / "first_policy.ipynb").read_text())
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A directory of its own; what an example imports and registers is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run them
    before, known = set(sys.modules), set(gymnasium.registry)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("examples", *(path.stem for path in EXAMPLES.iterdir())):
            del sys.modules[name]
    for name in set(gymnasium.registry) - known:
        del gymnasium.registry[name]


def run(name, *words):
    """Run an example as `python examples/NAME words` does, in this process, which has compiled the same before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLES / name), *words])
        patch.syspath_prepend(str(EXAMPLES))
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_has_a_test_and_a_row_of_the_table():
    files = {path.name for path in EXAMPLES.iterdir()} - {"README.md", "__pycache__", "runs"}
    table = re.findall(r"^\| \[`([\w.]+)`\]\(\1\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(table) == sorted(files)
    tests = [name for name in globals() if name.startswith("test_")]
    assert not [name for name in files if not any(test.startswith(f"test_{Path(name).stem}_") for test in tests)]


def test_every_example_is_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 60} == {}


@pytest.mark.slow
def test_first_policy_runs_cell_by_cell(place, capsys):
    """All code cells in order, in one namespace; what the cell of parameters sets is made small after it."""
    cells = {}
    for cell in CODE:
        exec("".join(cell["source"]), cells)
        if "parameters" in cell["metadata"].get("tags", ()):
            cells["STEPS"] = 10
    plt.close("all")
    assert cells["agent"].steps == 10
    assert cells["steps"][-1] == 10
    assert cells["episodes"].shape == (len(cells["steps"]), 5)
    assert np.isfinite(cells["error"]).all()
    kept = Policy.load(place / "runs" / "first_policy.safetensors")
    assert np.array_equal(kept(np.ones(4)), Policy.load(place / "runs" / "first_policy")(np.ones(4)))
    assert "last policy" in capsys.readouterr().out


def test_first_policy_is_kept_without_outputs_and_without_traces_of_a_machine():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert NOTEBOOK["metadata"] == {"kernelspec": kernel, "language_info": {"name": "python"}}
    assert {str(cell["metadata"]) for cell in NOTEBOOK["cells"]} == {"{}", "{'tags': ['parameters']}"}
    assert not any(line.startswith(("%", "!")) for cell in CODE for line in cell["source"])


@pytest.mark.slow
def test_own_environment_is_learned_in_and_the_shell_continues(place, capsys, monkeypatch):
    run("own_environment.py", "--steps", "9")
    printed = capsys.readouterr().out
    assert "resuming is exact" in printed
    assert "problem" not in printed
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert main(["resume", "runs/parking", "--steps", "11"]) == 0
    assert main(["eval", "runs/parking", "--episodes", "1"]) == 0
    assert Policy.load("runs/parking").step == 11


@contextmanager
def plant(*words):
    """Start the plant; yield its port."""
    command = [sys.executable, str(EXAMPLES / "socket_plant.py"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline().removeprefix("listening on port "))
        assert process.poll() is None, "it has ended"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def connected(port):
    """Connect to the plant; yield its first line, and a function that sends an action and returns the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as link, link.makefile("rw") as lines:

        def ask(valve=None):
            if valve is not None:
                print(json.dumps({"action": [valve]}), file=lines, flush=True)
            return json.loads(lines.readline())

        yield ask(), ask


@pytest.mark.slow
def test_socket_plant_ends_episodes_and_outlives_its_controllers():
    with plant("--length", "6") as port:
        with connected(port) as (first, ask):
            answers = [ask(0.7 * first["obs"][0] ** 0.5) for _ in range(6)]  # as much as flows out
            assert [answer["truncated"] for answer in answers] == [False] * 5 + [True]
            assert not any(answer["terminated"] for answer in answers)
            assert answers[5]["obs"] == pytest.approx(first["obs"])
            assert ask()["obs"] != answers[5]["obs"]  # the next episode has begun
            left = ask(0.5)["obs"]
        with socket.create_connection(("127.0.0.1", port), timeout=60.0) as link:
            link.sendall(b"hello\n")  # it is no controller
        with connected(port) as (again, ask):
            assert again == {"obs": left}
            answers = [ask(1.0) for _ in range(4)]  # it spills
            assert [answer["terminated"] for answer in answers] == [False] * 3 + [True]
            assert answers[3]["obs"][0] > 0.8
            assert not answers[3]["truncated"]


@pytest.mark.slow
def test_socket_controller_continues_after_a_restart(place, capsys):
    with plant("--length", "4") as port:
        run("socket_controller.py", "--port", str(port), "--steps", "10")
        run("socket_controller.py", "--port", str(port), "--steps", "13")
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in printed if re.match("from|to", line)] == [
        "from step 0",
        "to step 10",
        "from step 10",
        "to step 13",
    ]
    assert Policy.load("runs/tank").step == 13


@pytest.mark.slow
def test_callback_writes_blocks_and_stops_a_run_also_from_the_shell(place, monkeypatch):
    found = run("callback.py", "--steps", "24", "--goal", "1")
    assert found["agent"].steps == 5  # the third evaluation after the two steps of the warm-up
    lines = [json.loads(line) for line in (place / "runs/enough/blocks.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 4, 5]
    assert all(line["agent/critic_loss"] > 0.0 for line in lines)
    monkeypatch.syspath_prepend(str(EXAMPLES.parent))
    named = "examples.callback:GoodEnough(goal=1, over=2)"
    sizes = "--warmup-steps 2 --model-every 1 --updates-per-step 5 --steps 24 --eval-every 1 --eval-episodes 1"
    words = ["train", "--env", "InvertedPendulum-v5", "--method", "sac", "--run-dir", "runs/shell", *sizes.split()]
    assert main([*words, "--callback", named]) == 0
    assert set(column(read_back(place / "runs/shell/evaluations.csv"), "step")) == {3, 4}


@pytest.mark.slow
def test_sweep_plans_two_methods_on_two_seeds(monkeypatch, place):
    asked = []
    monkeypatch.setattr("pdml.sweeps.sweep.sweep", lambda study, out: asked.append(study) or pdml.Sweep((), {}))
    run("sweep.py")
    runs = plan(study_from("two_methods", asked[0]), place)
    chosen = [(run.settings.learning.method, run.settings.learning.seed, run.settings.run.steps) for run in runs]
    assert chosen == [("mbpo", 0, 2500), ("sac", 0, 2500), ("mbpo", 1, 2500), ("sac", 1, 2500)]


@pytest.mark.slow
def test_sweep_prints_the_returns_of_its_runs(place, capsys):
    """One run; tests/sweeps/test_sweep_from_python.py has several seeds and their intervals."""
    run("sweep.py", "--steps", "10", "--methods", "sac", "--seeds", "0")
    printed = capsys.readouterr().out.splitlines()
    (file,) = place.glob("runs/two_methods/*/*/seed_0/evaluations.csv")
    mean = column(pick(read_back(file), step=10), "return").mean()
    assert printed[-1].split() == ["sac", f"{mean:.1f}", "nan", "to", "nan", "1"]
