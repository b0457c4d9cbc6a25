import os

from pdml.runs.device import cache_dir

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
    import pdml.api
    import pdml.envs.env_check
    import pdml.models.learned_termination
    import pdml.reporting.figures
    import pdml.reporting.report
    import pdml.runs.session
    import pdml.studies.converged
    import pdml.studies.theory_text
    import pdml.studies.video  # noqa: F401

import jax
import pytest
from hypothesis import settings

settings.register_profile("pdml", deadline=None, derandomize=True)  # no test measures time
settings.load_profile("pdml")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from tiny import tiny_of

from pdml.config.schema import Config


@pytest.fixture
def tiny() -> Config:
    """A tiny run of PDML."""
    return tiny_of("pdml")
