"""A policy in the formats of other tools: ONNX for robots and other languages, npz for anything that reads arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from pdml.core.errors import UserError
from pdml.runs.policy import Policy

OPSET, IR_VERSION = 17, 8
"""Old enough for the runtimes of embedded machines."""


def export_policy(policy: Policy, path: Path, to: str) -> None:
    """Write a policy to a file; the file takes observations and gives actions, both in the environment's units."""
    if path.is_dir():
        raise UserError(f"'{path}' cannot be written: it is a directory")
    write = {"onnx": _write_onnx, "npz": _write_npz}[to]
    try:
        write(policy, path)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written: {error.strerror}") from None


def _write_npz(policy: Policy, path: Path) -> None:
    """Write the arrays under the names that docs/export.md lists."""
    arrays: dict[str, Any] = {"low": policy.low, "high": policy.high, "step": np.int64(policy.step)}
    for i, (w, b) in enumerate(_layers(policy)):
        arrays |= {f"w{i}": w, f"b{i}": b}
    if policy.normaliser is not None:
        arrays |= dict(zip(("mean", "scale"), policy.normaliser, strict=True))
    with path.open("wb") as file:  # np.savez would add an ending
        np.savez(file, **arrays)


def _write_onnx(policy: Policy, path: Path) -> None:
    """Write the policy as one graph: `obs` [batch, observation] to `action` [batch, action], float32."""
    onnx = _require_onnx()
    graph = _Graph(onnx)
    x = "obs"
    if policy.normaliser is not None:
        mean, scale = policy.normaliser
        x = graph.node("Div", graph.node("Sub", x, graph.array(mean)), graph.array(scale))
    layers = _layers(policy)
    for i, (w, b) in enumerate(layers):
        x = graph.node("Gemm", x, graph.array(w), graph.array(b))
        if i < len(layers) - 1:
            x = graph.node("Relu", x) if policy.normaliser is None else graph.node("Mul", x, graph.node("Sigmoid", x))
    half, low, high = (policy.high - policy.low) / 2.0, policy.low, policy.high
    x = graph.node("Add", graph.node("Tanh", x), graph.array(np.ones_like(low)))
    x = graph.node("Add", graph.node("Mul", x, graph.array(half)), graph.array(low))
    graph.node("Min", graph.node("Max", x, graph.array(low)), graph.array(high), name="action")
    model = graph.model(len(layers[0][0]), len(low))
    onnx.helper.set_model_props(model, {"step": str(policy.step)})
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())


def _layers(policy: Policy) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return weights and biases; the last layer without the outputs of the standard deviation."""
    *hidden, (w, b) = policy.layers
    return [*hidden, (w[:, : len(policy.low)], b[: len(policy.low)])]


class _Graph:
    """The nodes and constants of an ONNX graph, named as they are added."""

    def __init__(self, onnx: Any):
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._arrays: list[Any] = []

    def array(self, values: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = f"constant{len(self._arrays)}"
        self._arrays.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, name: str = "") -> str:
        """Add an operation; return the name of its output."""
        name = name or f"value{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name]))
        return name

    def model(self, obs_size: int, action_size: int) -> Any:
        """Return the model from `obs` to `action`."""
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        obs = helper.make_tensor_value_info("obs", kind, ["batch", obs_size])
        action = helper.make_tensor_value_info("action", kind, ["batch", action_size])
        graph = helper.make_graph(self._nodes, "policy", [obs], [action], self._arrays)
        versions = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=versions, ir_version=IR_VERSION, producer_name="pdml")


def _require_onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise UserError("export to onnx needs ONNX: pip install 'pdml[onnx]' (in a checkout, '.[onnx]')") from None
    return onnx
