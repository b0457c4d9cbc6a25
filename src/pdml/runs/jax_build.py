"""A check at start-up that this build of JAX computes right: 0.10.2 computes wrong rows on CPUs, and others might."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from pdml.core.errors import UserError
from pdml.core.version import package_version

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""What the code that JAX compiles depends on, together with `VARIABLES`."""

VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS")

TOLERANCE = 0.01
"""The wrong row of 0.10.2 is off by 13 %; products in the reduced precision of GPUs are off by about 0.1 %."""


def require_right_rows(folder: Path) -> None:
    """Refuse a build of JAX that computes a row wrong.

    The two programs compile in a tenth of a second, so a build that has passed is remembered.

    Args:
        folder: Where to remember it, one for each kind of machine.
    """
    passed = folder / f"right-rows-{_build()}"
    if passed.exists():
        return
    wrong = wrong_rows()
    if any(wrong):
        raise UserError(
            f"jaxlib {package_version('jaxlib')}: computes wrong rows on this machine ({wrong[0]} and {wrong[1]} in "
            "two small programs); install another: pip install 'jax>=0.8,!=0.10.2' 'jaxlib!=0.10.2'"
        )
    with suppress(OSError):  # then the next start computes it again
        folder.mkdir(parents=True, exist_ok=True)
        passed.touch()


def _build() -> str:
    parts = [f"{name} {package_version(name)}" for name in PACKAGES]
    parts += [f"{name}={os.environ.get(name, '')}" for name in VARIABLES]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def wrong_rows(tolerance: float = TOLERANCE) -> tuple[int, int]:
    """Return how many rows of each program are wrong: a product and a sum under vmap, and small chained products."""
    return _vmapped_product_and_sum(tolerance), _small_chained_products(tolerance)


def _vmapped_product_and_sum(tolerance: float) -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np

    rows = np.random.default_rng(0).standard_normal((32_769, 3)).astype(np.float32)
    found = np.asarray(jax.jit(jax.vmap(lambda row: ((jnp.eye(3) @ row) ** 2).sum()))(rows))
    return int((~np.isclose(found, (rows**2).sum(axis=1), rtol=tolerance, atol=0.0)).sum())


def _small_chained_products(tolerance: float) -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4, 7), (7, 2)))
    found = np.asarray(jax.jit(lambda x, a, b: jnp.tanh(x @ a) @ b)(x, a, b))
    return int((~np.isclose(found, np.tanh(x @ a) @ b, rtol=tolerance, atol=tolerance)).any(axis=1).sum())
