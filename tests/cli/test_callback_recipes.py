"""The recipes of docs/callbacks.md, run as they stand there, without a network and without the libraries."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
from faulty_runs import faulty_run
from page_blocks import save_modules

from pdml.cli import main
from pdml.config.fields import change
from pdml.config.files import to_json
from pdml.views import Evaluation

ROOT = Path(__file__).parents[2]
SETTINGS = {"steps": 100, "eval_every": 10, "eval_episodes": 1}
RECIPES = ("early", "to_wandb", "to_mlflow", "to_chat", "plateau")


@pytest.fixture(autouse=True)
def recipes(tmp_path, monkeypatch):
    """A directory with the modules of the page, and the fake libraries that they import.

    It is the current one, and that is where `pdml train` looks for modules: it is not on the path as a script finds it.
    """
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support" / "fake_trackers"))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    monkeypatch.chdir(tmp_path)
    save_modules(ROOT / "docs" / "callbacks.md", tmp_path)
    assert {path.stem for path in tmp_path.glob("*.py")} == set(RECIPES)
    (tmp_path / "settings.json").write_text(to_json(change(faulty_run("sac"), SETTINGS)))
    yield
    for name in (*RECIPES, "wandb", "mlflow"):
        sys.modules.pop(name, None)


@pytest.fixture
def hook():
    """A server on this machine that keeps what is posted to it."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", posted
        server.shutdown()
        thread.join()


def train(*callbacks):
    words = [word for callback in callbacks for word in ("--callback", callback)]
    return main(["train", "--config", "settings.json", "--run-dir", "run", *words])


def returns():
    """Return the evaluations of the run, by step."""
    rows = [line.split(",") for line in Path("run/evaluations.csv").read_text().splitlines()[1:]]
    return {int(step): float(total) for step, _, total, _ in rows}


def test_numbers_reach_the_trackers_and_a_chat(hook, capsys):
    url, posted = hook
    chat = f"to_chat:ToChat(url='{url}', seconds=30)"
    assert train("to_wandb:ToWandb('hopper', mode='offline')", "to_mlflow:ToMlflow('hopper')", chat) == 0
    wandb, mlflow, found = sys.modules["wandb"].CALLS, sys.modules["mlflow"].CALLS, returns()
    assert list(found) == [70, 80, 90, 100]
    assert wandb[0] == ("init", "hopper", "run", "run", "allow", "offline")
    sent = {step: data["evaluation/return"] for _, data, step in wandb[1:] if "evaluation/return" in data}
    assert sent == pytest.approx(found)
    assert [step for _, data, step in wandb[1:] if "critic/loss" in data or "agent/temperature" in data] == [80, 100]
    assert mlflow[:3] == [("uri", "sqlite:///mlflow.db"), ("experiment", "hopper"), ("run", "run")]
    assert mlflow[3] == ("params", {"env": "faulty:Faulty-v0", "method": "sac", "seed": 0})
    metrics = [call for call in mlflow if call[0] == "metrics"]
    assert {step: data["evaluation/return"] for _, data, step in metrics if "evaluation/return" in data} == sent
    assert all(value == value for _, data, _ in metrics for value in data.values())
    best = [step for i, step in enumerate(found) if found[step] > max([*found.values()][:i], default=-1e9)]
    text = [{"text": f"run: return {found[step]:.0f} at step {step}"} for step in best]
    assert posted == [("/hook", message) for message in text]
    assert "no message was sent" not in capsys.readouterr().out


def test_a_chat_that_does_not_answer_ends_nothing(capsys):
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    assert train(f"to_chat:ToChat('http://127.0.0.1:{port}')") == 0
    out = capsys.readouterr().out
    assert "no message was sent: " in out
    assert out.endswith("done: run\n")


@pytest.mark.parametrize(
    ("callback", "last"),
    [("early:EarlyStop(goal=-1e9)", 70), ("early:EarlyStop(1e9)", 100), ("plateau:Plateau(evaluations=9)", 100)],
)
def test_a_run_stops_where_the_recipe_says(callback, last):
    assert train(callback) == 0
    assert max(returns()) == last
    assert Path("run/DONE").exists() == (last == 100)


def test_a_plateau_is_so_many_evaluations_that_are_not_better_than_the_best(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = import_module("plateau").Plateau(evaluations=2)
    answers = [recipe.on_evaluation(None, Evaluation(0, (value,), (1,))) for value in (1.0, 3.0, 2.0, 4.0, 4.0, 3.0)]
    assert answers == [True, True, True, True, True, False]
