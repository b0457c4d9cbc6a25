"""Analyses of a run after the fact: the converged model, and where its policies went.

[Wang et al. 2023, Sec. 3 and its appendices]. A running run will do, as far as it has got.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from pdml import checkpoint, reference, rundir
from pdml.algorithm import Parts, wire
from pdml.config import Config, change
from pdml.diagnostics import collect, diagnosis
from pdml.envs import make_env
from pdml.errors import UserError
from pdml.history import flat_form
from pdml.methods import World
from pdml.nets import Mlp
from pdml.randomness import Purpose, key
from pdml.replay import Replay
from pdml.runner import layout_of
from pdml.settings import check, read_config
from pdml.termination import RULES
from pdml.tree import unflatten

Row = dict[str, Any]


class Opened(NamedTuple):
    """A run whose parts are wired again."""

    path: Path
    config: Config
    parts: Parts


def opened(path: Path, changes: dict[str, Any] | None = None) -> Opened:
    """Wire a run's configuration, with some settings changed."""
    config = change(check(read_config(rundir.require(path) / "config.json")), changes or {})
    return Opened(path, config, wire(config, layout_of(config), RULES[reference.task_of(config.env)]))


def converged(
    path: Path, steps: Sequence[int] = (), patience: int = 20, max_epochs: int = 500, fresh: int = 1000
) -> list[Row]:
    """Train archived models on, on all data of their step alike, until the holdout error no longer falls.

    A fit usually stops after five epochs without a gain of 1 %; here after `patience` without one of 0.1 %. Before and
    after, the error is measured on fresh steps of the archived policy.

    Args:
        steps: Archived steps, warm-up included; by default all.
    """
    run = opened(path, {"dynamics.patience": patience, "dynamics.improvement": 1e-3, "dynamics.max_epochs": max_epochs})
    if run.parts.recipe.world is None:
        raise UserError(f"run = '{path}': method '{run.config.method}' has no model")
    known = {int(file.stem.removeprefix("step_")): file for file in sorted((path / "archive").glob("*.safetensors"))}
    if not known:
        raise UserError(f"run = '{path}': nothing archived; train with --archive-at STEPS")
    for step in steps:
        if step not in known:
            raise UserError(f"at = {step}: not archived; there are {', '.join(map(str, known))}")
    return [_converge(run, known[step], step, fresh) for step in (steps or known)]


def _converge(run: Opened, file: Path, step: int, fresh: int) -> Row:
    layout = layout_of(run.config)
    agent, dynamics = run.parts.recipe.agent, cast(World, run.parts.recipe.world).dynamics
    arrays, _ = checkpoint.read_arrays(file)
    try:
        state = unflatten(agent.init(key(0, Purpose.AGENT_INIT)), arrays, "agent")
        model = unflatten(dynamics.init(key(0, Purpose.MODEL_INIT)), arrays, "model")
    except ValueError as error:
        raise UserError(f"'{file}' does not belong to its run's configuration ({error})") from None
    replay = Replay(layout, run.config.replay_capacity)
    replay.restore(checkpoint.section(arrays, "replay."))
    measure, env = diagnosis(layout), make_env(run.config.env)
    probe = collect(layout, env, lambda obs, draw: run.parts.act(state.actor, obs, draw), run.config.seed, step, fresh)
    env.close()
    before = measure.errors(model, probe.rows)
    real = replay.stored()
    model, fitted = dynamics.fit(model, real, np.full(len(real.rows), 1.0 / len(real.rows)), state, step)
    after = measure.errors(model, probe.rows)
    learned = step - run.config.warmup_steps
    return {
        "step": step,
        "steps_after_warmup": learned,
        "rows": len(real.rows),
        "fresh_steps": fresh,
        "archived_l2": before.l2,
        "archived_mse": before.mse,
        "converged_l2": after.l2,
        "converged_mse": after.mse,
        "epochs": int(fitted["model/epochs"]),
        "capped": int(fitted["model/capped"]),
        "paper_archived": reference.model_error(run.config.env, run.config.method, learned),
        "paper_converged": reference.model_error(run.config.env, "converged", learned),
    }


def snapshots(run: Opened) -> dict[int, Callable[[], Mlp]]:
    """Return the policies that are kept, by steps after warm-up: every block's, and those archived."""
    agent = run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
    found: dict[int, Callable[[], Mlp]] = {}
    for file in sorted((run.path / "archive").glob("*.safetensors")):
        step = int(file.stem.removeprefix("step_")) - run.config.warmup_steps
        found[step] = lambda file=file: unflatten(agent.actor, checkpoint.read_arrays(file)[0], "agent.actor")
    saved = sorted((run.path / "checkpoints").glob("step_*.safetensors"))
    if saved:
        flat = checkpoint.read_arrays(saved[-1])[0]["history.snapshots"]
        _, restore = flat_form(agent.actor)
        for i, parameters in enumerate(flat):
            found[i * run.config.model_every] = lambda parameters=parameters: restore(jax.numpy.array(parameters))
    return found


def visitation(path: Path, steps: Sequence[int] = (), fresh: int = 1000, seed: int = 0) -> list[Row]:
    """Lay states and actions of a few policies out in the plane by t-SNE, each from fresh stochastic steps.

    Args:
        steps: Of the policies, after warm-up; by default five, evenly spread.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError("t-SNE needs scikit-learn: pip install 'pdml[analysis]'") from None
    run = opened(path)
    known = snapshots(run)
    if not known:
        raise UserError(f"run = '{path}': keeps no policies yet; they come with --archive-at or at the end of the run")
    order = sorted(known)
    chosen = list(steps) or [order[i] for i in np.unique(np.linspace(0, len(order) - 1, 5).round().astype(int))]
    for step in chosen:
        if step not in known:
            near = min(order, key=lambda other, step=step: abs(other - step))
            raise UserError(f"at = {step}: no policy is kept of that step; the nearest is {near}")
    layout, env, points, origin = layout_of(run.config), make_env(run.config.env), [], []
    for step in chosen:
        actor = known[step]()
        probe = collect(
            layout, env, lambda obs, draw, actor=actor: run.parts.act(actor, obs, draw), run.config.seed, step, fresh
        )
        points.append(layout.inputs(probe.rows))
        origin += [step] * len(probe.rows)
    env.close()
    data = np.concatenate(points).astype(np.float64)
    data = (data - data.mean(axis=0)) / np.maximum(data.std(axis=0), 1e-8)
    perplexity = min(30.0, (len(data) - 1) / 3.0)
    placed = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(data)
    return [{"step": step, "x": float(x), "y": float(y)} for step, (x, y) in zip(origin, placed, strict=True)]
