"""The machine: threads and the compilation cache, which are set before JAX starts, and the matmul peak."""

import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from pdml.core.errors import UserError


def available_threads() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(threads: int | None = None) -> int:
    """Limit this process to a number of cores and switch on JAX's persistent compilation cache.

    Returns:
        The number of threads in use.
    """
    most = available_threads()
    if threads is not None and not 1 <= threads <= most:
        raise UserError(f"threads = {threads}: must lie in [1, {most}], the cores this process may use")
    if threads is not None and threads < most and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    count = threads or most
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(count))
    if count == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    # When XLA reads its own cache it reports two tuning preferences as missing features of the CPU, as errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "jax" in sys.modules:  # it has read the environment before
        config = import_module("jax").config
        config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        config.update("jax_persistent_cache_min_compile_time_secs", least)
    return count


def cache_dir() -> Path:
    """Return where compiled programs for this kind of CPU are kept: they do not run on another kind."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    kind = "\n".join(line for line in lines[:30] if line.startswith(("model name", "flags", "Features")))
    return home / "pdml" / "jax" / hashlib.sha256(kind.encode()).hexdigest()[:16]


def matmul_peak(
    more: Sequence[Callable[[int], Callable[[], object]]] = (), size: int = 2048, repeats: int = 6
) -> float:
    """Return the best FLOP per second of a large float32 product.

    Args:
        more: Other ways to compute it than NumPy's: from the size, a call that does it once.
    """
    x = np.random.default_rng(0).random((size, size), np.float32)
    calls: list[Callable[[], object]] = [lambda: x @ x, *(build(size) for build in more)]
    best = np.inf
    for _ in range(repeats):
        for call in calls:
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
