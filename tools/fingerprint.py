"""Print one hash per method over what a tiny run writes: a change that must not change learning keeps every hash.

    python tools/fingerprint.py > before.txt     # on the commit before
    python tools/fingerprint.py > after.txt      # on the commit after, same machine and versions
    diff before.txt after.txt

Each case is trained for 300 steps with small networks through the command line, so the tool also runs on old commits.
The hash covers `evaluations.csv`, `progress.csv` and `policy.safetensors`, byte by byte.
"""

import argparse
import contextlib
import hashlib
import io
import sys
import tempfile
from pathlib import Path

from pdml.cli import main

HASHED = ("evaluations.csv", "progress.csv", "policy.safetensors")

COMMON = {
    "env": "InvertedPendulum-v5",
    "steps": 300,
    "seed": 3,
    "threads": 1,
    "warmup_steps": 100,
    "model_every": 40,
    "updates_per_step": 2,
    "batch_size": 32,
    "eval_every": 80,
    "eval_episodes": 2,
    "agent.hidden_sizes": "16,16",
}
MODEL = {
    "dynamics.hidden_sizes": "16,16",
    "dynamics.weight_decay": "1e-5,1e-5,1e-5",
    "dynamics.batch_size": 32,
    "dynamics.max_epochs": 4,
}
BRANCHED = {
    "epoch_steps": 80,
    "dynamics.num_members": 3,
    "dynamics.num_elites": 2,
    "rollouts.batch": 40,
    "rollouts.longest": 3,
    "rollouts.last_epoch": 2,
}
MIXTURE = {"mixture.first_block": 2}
DISTANCE = {**MIXTURE, "mixture.reservoir": 96}
DOUBLE = {
    "dynamics.num_members": 2,
    "dynamics.patience": 2,
    "agent.num_critics": 3,
    "double.far": 3,
    "double.near": 2,
    "double.refresh": 15,
    "double.retain": 2,
    "double.dropout": "0.01,0.01",
    "double.first_factor": 2,
}
AMPO = {"ampo.first_steps": 2, "ampo.last_steps": 2, "ampo.batch_size": 16}

CASES: dict[str, dict[str, object]] = {
    "pdml": {**MODEL, **BRANCHED, **DISTANCE},
    "mbpo": {**MODEL, **BRANCHED},
    "pdml-model-only": {**MODEL, **BRANCHED, **DISTANCE},
    "pdml-starts-only": {**MODEL, **BRANCHED, **DISTANCE},
    "decay-mbpo": {**MODEL, **BRANCHED, **MIXTURE},
    "per-mbpo": {**MODEL, **BRANCHED},
    "recall-mbpo": {**MODEL, **BRANCHED},
    "maper-mbpo": {**MODEL, **BRANCHED},
    "maper-mbpo-model": {**MODEL, **BRANCHED},
    "ampo": {**MODEL, **BRANCHED, **AMPO},
    "vagram": {**MODEL, **BRANCHED, "vagram.mse_steps": 80},
    "dhmbpo": {**MODEL, **DOUBLE},
    "pdml-dhmbpo": {**MODEL, **DOUBLE, **DISTANCE},
    "redq": {},
    "sac": {},
}
"""Every method, with the settings that make it small."""

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "pdml, learned termination": ("pdml", {"termination": "learned"}),
    "pdml, diagnosed": ("pdml", {"diagnose": "true", "diagnose_every": 80, "diagnose_steps": 30, "archive_at": 200}),
    "pdml, standardised targets": ("pdml", {"dynamics.target_norm": "direct", "dynamics.holdout": "fixed"}),
    "pdml, weighted holdout": ("pdml", {"dynamics.holdout_weights": "weighted", "throttle": 1}),
    "pdml, monte-carlo shifts": ("pdml", {"mixture.shift": "monte-carlo", "mixture.misaligned": "true"}),
    "pdml, released": ("pdml", {"preset": "released"}),
    "dhmbpo, learned termination": ("dhmbpo", {"termination": "learned", "double.clear": "true"}),
}
"""Options that take another way through the code: a method and what is changed."""


def fingerprint(directory: Path, method: str, settings: dict[str, object]) -> str:
    """Train and return the hash of what the run wrote."""
    words = ["train", "--method", method, "--run-dir", str(directory)]
    for name, value in {**COMMON, **settings}.items():
        words += [f"--{name}", str(value)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words)
    if code != 0:
        raise SystemExit(f"pdml {' '.join(words)} ended with code {code}:\n{said.getvalue()}")
    digest = hashlib.sha256()
    for name in HASHED:
        digest.update((directory / name).read_bytes())
    return digest.hexdigest()[:16]


def run(names: list[str]) -> None:
    """Print the fingerprint of each case, or of the named ones."""
    cases = {method: (method, settings) for method, settings in CASES.items()}
    cases |= {name: (method, {**CASES[method], **changes}) for name, (method, changes) in VARIANTS.items()}
    for name in names:
        if name not in cases:
            raise SystemExit(f"case = '{name}': unknown; allowed: {', '.join(cases)}")
    for name in names or cases:
        with tempfile.TemporaryDirectory() as directory:
            print(f"{fingerprint(Path(directory) / 'run', *cases[name])}  {name}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print one hash per method over what a tiny run writes.")
    parser.add_argument("cases", nargs="*", help="which cases (default: all)")
    sys.exit(run(parser.parse_args().cases))
