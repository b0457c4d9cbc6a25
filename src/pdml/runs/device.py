"""The machine: cores, threads and the compilation cache, which are set before JAX starts, and the matmul peak."""

import fcntl
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from pdml.core.errors import UserError
from pdml.core.version import package_version
from pdml.runs.jax_build import require_right_rows

RUNS_PER_CORE = 64
"""Most runs on one core that are counted."""

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container says how much CPU time it has: microseconds in so many microseconds, or `max`."""

GPU_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin")

DEVICES, GPU_NAMES = Path("/dev"), ("nvidia[0-9]*", "dxg", "kfd")
"""The kernel's devices of NVIDIA, WSL and AMD."""


def available_threads() -> int:
    """Return how many cores this process may use."""
    return len(_usable_cores())


def physical_cores() -> int:
    """Return how many of the cores that this process may use are cores of their own, not threads of another.

    A container may have the CPU time of fewer.
    """
    cores = len({_siblings(core) for core in _usable_cores()})
    try:
        quota, period = map(int, CPU_QUOTA.read_text().split())
    except (OSError, ValueError):  # there is no limit
        return cores
    return max(min(cores, quota // period), 1)


def _usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _siblings(core: int) -> str:
    """Return the hardware threads that share a physical core, as the kernel writes them."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(core)


def cores_in_order() -> list[int]:
    """Return the cores that this process may use: one of each physical core first, then their other threads."""
    seen: dict[str, int] = {}
    order = []
    for core in _usable_cores():
        rank = seen[_siblings(core)] = seen.get(_siblings(core), -1) + 1
        order.append((rank, core))
    return [core for _, core in sorted(order)]


_held: dict[str, int] = {}
"""The locked files of the cores that this process took; the locks disappear with it."""


def take_cores(count: int) -> set[int]:
    """Return so many cores that no other run of this user was given; where there are too few, those with fewest runs.

    A core has a file for each run on it: the first run locks the first file, and so on.
    """
    order, taken = cores_in_order(), list[int]()
    for place in range(RUNS_PER_CORE):
        for core in order:
            if len(taken) < count and core not in taken and _hold(f"{core}.{place}"):
                taken.append(core)
    return set((taken + [core for core in order if core not in taken])[:count])


def _hold(name: str) -> bool:
    """Lock a file for the life of this process; say whether it is ours. Where there can be no locks, all are."""
    if name in _held:
        return True
    folder = Path(tempfile.gettempdir()) / f"pdml-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return True
        handle = os.open(folder / name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        return not isinstance(error, BlockingIOError)
    _held[name] = handle
    return True


def prepare(threads: int | None = None) -> int:
    """Limit this process to a number of cores, switch on JAX's persistent compilation cache, and try JAX.

    What only helps on a CPU, pinned cores and XLA's flags, is left alone where JAX will use a GPU.

    Returns:
        The number of threads in use.
    """
    most = available_threads()
    if threads is not None and not 1 <= threads <= most:
        raise UserError(f"threads = {threads}: must lie in [1, {most}], the cores this process may use")
    count = threads or most
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(count))
    if not uses_gpu():
        _prepare_cpu(count, most)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_dir()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
    if "jax" in sys.modules:  # it has read the environment before
        config = import_module("jax").config
        config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
        config.update("jax_persistent_cache_min_compile_time_secs", least)
    require_right_rows(cache_dir())
    return count


def _prepare_cpu(count: int, most: int) -> None:
    """Pin this process to cores if it is given fewer than there are, and set XLA's flags for them."""
    if count < most and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, take_cores(count))
    if count == 1 and "xla_cpu_multi_thread_eigen" not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
    quieten_xla()


def quieten_xla() -> None:
    """Hide what XLA reports as errors when it reads its own cache on a CPU; to be called before JAX is imported."""
    if not uses_gpu():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def uses_gpu() -> bool:
    """Say whether JAX will use something else than the CPU; asking JAX itself would start it before its flags are set.

    `JAX_PLATFORMS` decides if it is set, else an installed plugin of JAX together with a device of the kernel.
    """
    asked = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip()
    if asked:
        return asked != "cpu"
    has_plugin = any(package_version(name) is not None for name in GPU_PLUGINS)
    return has_plugin and any(any(DEVICES.glob(name)) for name in GPU_NAMES)


def cpu_model() -> str:
    """Return the name of this machine's CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or sys.platform


def device_name() -> str:
    """Return the platform that JAX computes on and the name of its device; this starts JAX."""
    device: Any = import_module("jax").devices()[0]
    return f"{device.platform}, {cpu_model() if device.platform == 'cpu' else device.device_kind}"


def cache_dir() -> Path:
    """Return where compiled programs for this kind of CPU are kept: they do not run on another kind."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else [platform.processor()]
    kind = "\n".join(line for line in lines[:30] if line.startswith(("model name", "flags", "Features")))
    return home / "pdml" / "jax" / hashlib.sha256(kind.encode()).hexdigest()[:16]


def matmul_peak(size: int = 2048, repeats: int = 6, of_cpu: bool = False) -> float:
    """Return the best FLOP per second of a large float32 product, by NumPy or JAX: on some CPUs one is half as fast.

    `prepare` must have set the number of threads.

    Args:
        of_cpu: Leave out JAX where it uses a GPU.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = np.random.default_rng(0).random((size, size), np.float32)
    calls: list[Callable[[], object]] = [lambda: x @ x]
    if not (of_cpu and uses_gpu()):
        y = jnp.array(x)
        product = jax.jit(lambda a: a @ a).lower(y).compile()
        calls.append(lambda: product(y).block_until_ready())
    best = np.inf
    for _ in range(repeats):
        for call in calls:
            start = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
