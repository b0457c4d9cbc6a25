"""Settings that must be made before JAX starts: threads and the compilation cache."""

import os
from pathlib import Path

from pdml.errors import UserError


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
    if threads is not None and threads < most:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    count = threads or most
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(count))
    if count == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdml" / "jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    return count
