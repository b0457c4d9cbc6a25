import os
from pathlib import Path

from pdml.device import cache_dir

worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker is not None and hasattr(os, "sched_setaffinity"):  # one core a worker: twice as fast as sharing both
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA finds fault with what it reads from its own cache
# Tests wire the same tiny programs again and again: compile each of them once, also for the next checkout.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.03")

from jaxtyping import install_import_hook

with install_import_hook("pdml", "beartype.beartype"):
    import pdml
    import pdml.analyses
    import pdml.api
    import pdml.ending
    import pdml.figures
    import pdml.report
    import pdml.runner
    import pdml.theory_text
    import pdml.trial
    import pdml.video  # noqa: F401

import jax
import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("pdml", deadline=None, derandomize=True)  # no test measures time
settings.load_profile("pdml")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from pdml.arrays import read_arrays
from pdml.checkpoint import saved
from pdml.config import DOUBLE, Config, change, defaults, leaves

TINY = {
    "steps": 160,
    "warmup_steps": 60,
    "model_every": 20,
    "epoch_steps": 40,
    "updates_per_step": 2,
    "batch_size": 32,
    "eval_every": 40,
    "eval_episodes": 2,
    "agent.hidden_sizes": (16,),
    "dynamics.num_members": 3,
    "dynamics.num_elites": 2,
    "dynamics.hidden_sizes": (16,),
    "dynamics.weight_decay": (1e-5, 1e-5),
    "dynamics.batch_size": 32,
    "dynamics.max_epochs": 4,
    "rollouts.batch": 40,
    "mixture.first_block": 2,
    "mixture.reservoir": 96,
    "ampo.first_steps": 2,
    "ampo.last_steps": 2,
    "ampo.batch_size": 16,
    "vagram.mse_steps": 40,
}

TINY_DOUBLE = {
    "dynamics.num_members": 2,
    "dynamics.patience": 2,
    "agent.num_critics": 3,
    "double.far": 3,
    "double.near": 2,
    "double.refresh": 15,
    "double.retain": 2,
    "double.dropout": (0.01,),
    "double.first_factor": 2,
}


def tiny_of(method: str) -> Config:
    """A run of a method that takes a second and still passes through every part."""
    read = {leaf.name for leaf in leaves() if not leaf.methods or method in leaf.methods}
    changes = TINY | TINY_DOUBLE if method in DOUBLE else TINY
    return change(
        defaults("InvertedPendulum-v5", method), {name: value for name, value in changes.items() if name in read}
    )


@pytest.fixture
def tiny() -> Config:
    """A tiny run of PDML."""
    return tiny_of("pdml")


def assert_same_run(one: Path, other: Path) -> None:
    """The last checkpoints of two runs are the same, but for the clock."""
    (arrays, note), (others, noted) = (read_arrays(saved(path)[0]) for path in (one, other))
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, others[name], equal_nan=array.dtype.kind == "f"), name
    assert repr({**note, "files": None}) == repr({**noted, "files": None})  # a text, since nan is not nan
