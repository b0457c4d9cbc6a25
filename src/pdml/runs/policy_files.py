"""Where a run keeps its policies. Needs no numpy, so that commands start quickly."""

from pathlib import Path

from pdml.core.errors import UserError

FILES = {"last": "policy.safetensors", "best": "best_policy.safetensors"}
"""The policies that a run keeps, and their files."""

FORMATS = ("onnx", "npz")
"""What a policy can be exported to; see `pdml.runs.export`."""


def policy_file(run: Path, which: str) -> Path:
    """Return the file of a policy of a run."""
    if which not in FILES:
        raise UserError(f"policy = {which!r}: allowed: {', '.join(FILES)}")
    file = run / FILES[which]
    if which == "best" and not file.exists():
        raise UserError(f"run = '{run}': has no best policy; it has not been evaluated yet, or not by this version")
    return file
