"""The policy by itself, as a function of numpy arrays. Needs no JAX, so it can be used anywhere."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pdml.core.batching import as_batch
from pdml.core.errors import UserError
from pdml.runs.policy_files import policy_file
from pdml.runs.tensor_file import read_arrays, write_arrays

SMOOTH, NORMALISER = "actor.layers", "actor.normaliser"
"""Names in the file, for an actor with a normaliser."""


class Policy(NamedTuple):
    """The deterministic policy of an agent: call it with one observation or a batch."""

    layers: tuple[tuple[np.ndarray, np.ndarray], ...]
    """Weights and biases of the actor."""
    low: np.ndarray
    """Bounds of the environment's actions."""
    high: np.ndarray
    step: int
    """Real steps learned from."""
    normaliser: tuple[np.ndarray, np.ndarray] | None = None
    """Mean and scale of observations, for actors that standardise them; these use SiLU instead of ReLU."""

    def __call__(self, obs: Any) -> np.ndarray:
        """Return the action in the environment's own range, for one observation or for each of a batch."""
        x, activation = as_batch(obs, len(self.layers[0][0])), _relu
        if self.normaliser is not None:
            x, activation = (x - self.normaliser[0]) / self.normaliser[1], _silu
        for i, (w, b) in enumerate(self.layers):
            x = (activation(x) if i else x) @ w + b
        action = np.tanh(x[:, : len(self.low)])
        scaled = (self.low + (action + 1.0) * (self.high - self.low) / 2.0).astype(np.float32)
        return np.clip(scaled, self.low.astype(np.float32), self.high.astype(np.float32)).reshape(
            *np.shape(obs)[:-1], len(self.low)
        )

    def save(self, path: str | Path) -> None:
        """Write the policy to one safetensors file."""
        path = Path(path)
        if path.is_dir():
            raise UserError(f"'{path}' cannot be written: it is a directory")
        if not path.parent.is_dir():
            raise UserError(f"'{path}' cannot be written: there is no directory '{path.parent}'")
        write_arrays(path, self.arrays(), {"step": self.step})

    def to_onnx(self, path: str | Path) -> None:
        """Write the policy as an ONNX graph from `obs` to `action`; needs the extra onnx."""
        from pdml.runs.export import export_policy

        export_policy(self, Path(path), "onnx")

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what the file holds."""
        arrays, name = {"low": self.low, "high": self.high}, "actor"
        if self.normaliser is not None:
            arrays |= dict(zip((f"{NORMALISER}.mean", f"{NORMALISER}.scale"), self.normaliser, strict=True))
            name = SMOOTH
        for i, (w, b) in enumerate(self.layers):
            arrays |= {f"{name}[{i}].w": w, f"{name}[{i}].b": b}
        return arrays

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], low: np.ndarray, high: np.ndarray, step: int) -> "Policy":
        """Make a policy from the arrays of an actor, named as in its file."""
        normaliser, name = None, "actor"
        if f"{NORMALISER}.mean" in arrays:
            normaliser, name = (arrays[f"{NORMALISER}.mean"], arrays[f"{NORMALISER}.scale"]), SMOOTH
        count = sum(entry.endswith(".w") for entry in arrays)
        layers = tuple((arrays[f"{name}[{i}].w"], arrays[f"{name}[{i}].b"]) for i in range(count))
        return cls(layers, low, high, step, normaliser)

    @classmethod
    def load(cls, path: str | Path, which: str = "last") -> "Policy":
        """Read a policy: its file, or the directory of a run.

        Args:
            which: Of a run, the last policy or the best one: "last" or "best".
        """
        file = policy_file(Path(path), which) if Path(path).is_dir() else Path(path)
        if which != "last" and file == Path(path):
            raise UserError(f"which = {which!r}: '{path}' is not the directory of a run")
        arrays, note = read_arrays(file)
        try:
            return cls.of(arrays, arrays["low"], arrays["high"], int(note["step"]))
        except KeyError as error:
            raise UserError(f"'{file}' is not a policy: it has no {error}") from None


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def _silu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1.0 + np.tanh(0.5 * x))
