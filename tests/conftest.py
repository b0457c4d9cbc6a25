import functools
import gc
import os
from importlib.metadata import version
from pathlib import Path

from pdml.runs.device import cache_dir

# Nearly all of a test's time is XLA compiling a tiny program. Without LLVM's optimisation and without XLA's newer code
# for fused loops that takes a quarter of the time, and the arithmetic is the same but for rounding.
# runs/test_jax_build.py and some kill tests compile as users do.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.8."):  # the pinned version; 0.11.2 and later end a process that sets this flag
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker is not None and hasattr(os, "sched_setaffinity"):  # one core per worker: twice as fast as sharing both
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    os.environ["XLA_FLAGS"] += " --xla_cpu_multi_thread_eigen=false"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA complains about entries of its own cache
# Compile each program once, also for the next checkout.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.03")

from jaxtyping import install_import_hook

with install_import_hook("pdml", "beartype.beartype"):
    import pdml.training.methods

    # Tests of one worker share programs, of more configurations than a user has in one process.
    pdml.training.methods.wire = functools.lru_cache(maxsize=24)(pdml.training.methods.wire.__wrapped__)
    import pdml
    import pdml.api
    import pdml.cli
    import pdml.envs.env_check
    import pdml.reporting.behaviour_table
    import pdml.reporting.figures
    import pdml.reporting.report
    import pdml.studies.benchmark
    import pdml.studies.converged
    import pdml.studies.critics
    import pdml.studies.strips
    import pdml.studies.theory_text
    import pdml.studies.tsne

import jax
import pytest
from hypothesis import settings

settings.register_profile("pdml", deadline=None, derandomize=True)  # no test measures time
settings.load_profile("pdml")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

from tiny import tiny_of

from pdml.config.schema import Settings

gc.collect()
gc.freeze()  # what is imported stays; tracing makes so many objects that looking for garbage takes a quarter of it
gc.set_threshold(50_000, 20, 10)


MAPPINGS = Path("/proc/self/maps")
MANY_MAPPINGS = 40_000


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Drop compiled programs between files where there are many.

    Each takes several memory mappings, of which Linux allows 65530 per process. XLA has crashed in a process of many.
    """
    yield
    if MAPPINGS.exists() and MAPPINGS.read_bytes().count(b"\n") > MANY_MAPPINGS:
        pdml.training.methods.wire.cache_clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def tiny() -> Settings:
    """A tiny run of PDML."""
    return tiny_of("pdml")
