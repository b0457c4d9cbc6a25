"""A policy in other formats gives the same actions."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pdml.cli import main
from pdml.core.errors import UserError
from pdml.runs.export import export_policy
from pdml.runs.policy import Policy

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
LOW, HIGH = np.array([-1.0, -0.4], np.float32), np.array([1.0, 2.0], np.float32)


def policy(smooth):
    rng = np.random.default_rng(1)
    sizes = (5, 64, 64, 4)
    layers = tuple(
        ((rng.normal(size=(n, m)) / n**0.5).astype(np.float32), 0.1 * rng.normal(size=m).astype(np.float32))
        for n, m in pairwise(sizes)
    )
    normaliser = (np.linspace(-1, 1, 5, dtype=np.float32), np.linspace(0.5, 2, 5, dtype=np.float32)) if smooth else None
    return Policy(layers, LOW, HIGH, 3000, normaliser)


def observations(count=1000):
    return np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)


@pytest.mark.parametrize("smooth", [False, True])
def test_onnx_gives_the_same_actions(tmp_path, smooth):
    runtime = pytest.importorskip("onnxruntime")
    made = policy(smooth)
    made.to_onnx(tmp_path / "policy.onnx")
    session = runtime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    (given,), (taken,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("obs", ["batch", 5], "tensor(float)")
    assert (taken.name, taken.shape) == ("action", ["batch", 2])
    assert session.get_modelmeta().custom_metadata_map == {"step": "3000"}
    (found,) = session.run(None, {"obs": observations()})
    np.testing.assert_allclose(found, made(observations()), atol=1e-6)
    assert (found >= LOW).all()
    assert (found <= HIGH).all()
    (one,) = session.run(None, {"obs": observations(1)})
    np.testing.assert_allclose(one, made(observations(1)), atol=1e-6)


def test_onnx_has_the_versions_that_the_docs_name(tmp_path):
    onnx = pytest.importorskip("onnx")
    policy(True).to_onnx(tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert (model.ir_version, [(each.domain, each.version) for each in model.opset_import]) == (8, [("", 17)])


@pytest.mark.parametrize("smooth", [False, True])
def test_the_recipe_of_the_docs_gives_the_same_actions(tmp_path, smooth, monkeypatch):
    made = policy(smooth)
    monkeypatch.chdir(tmp_path)
    export_policy(made, Path("policy.npz"), "npz")
    recipe = PAGE.read_text().partition("In numpy:")[2].split("```")[1].removeprefix("text\n")
    names = {"np": np, "obs": observations()}
    exec(recipe, names)
    np.testing.assert_allclose(names["action"], made(observations()), atol=2e-6)
    assert int(names["p"]["step"]) == 3000


@pytest.mark.parametrize("to", ["onnx", "npz"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnx")
    with pytest.raises(UserError, match="cannot be written: it is a directory"):
        export_policy(policy(False), tmp_path, to)
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        export_policy(policy(False), Path(tmp_path) / "absent" / "policy", to)


def test_the_command_writes_the_policy_that_was_asked_for(tmp_path, capsys):
    policy(False).save(tmp_path / "policy.safetensors")
    (policy(False)._replace(step=2000)).save(tmp_path / "best_policy.safetensors")
    for which, step in (("last", 3000), ("best", 2000)):
        assert main(["export", str(tmp_path), "--to", "npz", "--policy", which]) == 0
        file = Path(capsys.readouterr().out.strip())
        assert file == tmp_path / ("policy.npz" if which == "last" else "best_policy.npz")
        assert int(np.load(file)["step"]) == step
    assert main(["export", str(tmp_path / "policy.safetensors"), "--to", "npz", "--out", str(tmp_path / "x")]) == 0
    assert int(np.load(tmp_path / "x")["step"]) == 3000


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"needs ONNX: pip install 'pdml\[onnx\]'"):
        policy(False).to_onnx(tmp_path / "policy.onnx")
