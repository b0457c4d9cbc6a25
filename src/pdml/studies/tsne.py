"""Where the policies of a run go: states and actions they visit, laid out in the plane by t-SNE.

[Wang et al. 2023, Sec. 3 and its appendices].
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdml.config.methods import METHODS
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, key
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays
from pdml.studies.open_run import OpenRun, opened, restored_tree
from pdml.weighting.policy_history import actor_from_flat, actor_shape, flat_actor


def visited_points(path: Path, steps: Sequence[int] = (), fresh: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """Lay out states and actions of a few policies in the plane, each from fresh stochastic steps.

    Args:
        steps: Of the policies, after warm-up; by default five, evenly spaced.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(
            "t-SNE needs scikit-learn: pip install 'pdml[analysis]' (in a checkout, '.[analysis]')"
        ) from None
    with opened(path) as run:
        known = kept_policies(run)
        chosen = _chosen(path, sorted(known), steps)
        points = [run.layout.inputs(run.fresh(known[step](), step, fresh).rows) for step in chosen]
    data = np.concatenate(points).astype(np.float64)
    data = (data - data.mean(axis=0)) / np.maximum(data.std(axis=0), 1e-8)
    perplexity = min(30.0, (len(data) - 1) / 3.0)
    placed = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(data)
    origin = np.repeat(chosen, fresh).tolist()
    return [{"step": step, "x": float(x), "y": float(y)} for step, (x, y) in zip(origin, placed, strict=True)]


def kept_policies(run: OpenRun) -> dict[int, Callable[[], Any]]:
    """Return how to load the policies that are kept, by steps after warm-up: every block's, and those archived.

    A snapshot closes its block. DHMBPO's snapshot also collected the block, so it is the policy since the block's first
    step, and the agent itself is the policy of the newest block.
    """
    agent = run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
    found: dict[int, Callable[[], Any]] = {
        step: lambda file=file: restored_tree(agent.actor, read_arrays(file)[0], "agent.actor", file)
        for step, file in run.archives().items()
    }
    saved = saved_checkpoints(run.path)
    if saved:
        arrays = read_arrays(saved[0])[0]
        flat, shape = arrays["history.snapshots"], actor_shape(agent.actor)
        if METHODS[run.config.method].is_double_horizon and len(flat):
            current = flat_actor(restored_tree(agent.actor, arrays, "agent.actor", saved[0]))
            flat = np.concatenate([flat[1:], current[None]])
        for i, parameters in enumerate(flat):
            found.setdefault(
                i * run.config.model_every, lambda parameters=parameters: actor_from_flat(shape, parameters)
            )
    return found


def _chosen(path: Path, known: list[int], wanted: Sequence[int]) -> list[int]:
    """Return the wanted steps if all are known; by default five of the known, evenly spaced."""
    if not known:
        when = "with --archive-at, and of methods with a model at the end of the run"
        raise UserError(f"run = '{path}': keeps no policies yet; they come {when}")
    for step in wanted:
        if step not in known:
            near = min(known, key=lambda other, step=step: abs(other - step))
            raise UserError(f"at = {step}: no policy is kept of that step; the nearest is {near}")
    return list(wanted) or [known[i] for i in np.unique(np.linspace(0, len(known) - 1, 5).round().astype(int))]
