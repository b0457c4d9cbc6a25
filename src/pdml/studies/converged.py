"""Analyses of a run after the fact: the converged model, and where its policies went.

[Wang et al. 2023, Sec. 3 and its appendices]. A running run will do, as far as it has got.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np

from pdml.config.schema import DOUBLE, Config, change
from pdml.config.validate import check, read_config
from pdml.core.errors import UserError
from pdml.core.pytree import unflatten
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.data.replay import Replay
from pdml.reporting import published
from pdml.reporting.read import Row
from pdml.runs import checkpoint, directory
from pdml.runs.session import build
from pdml.runs.tensor_file import read_arrays
from pdml.training.diagnostics import Probe, collect, diagnosis
from pdml.training.loop import Parts
from pdml.training.methods import World
from pdml.weighting.policy_history import flatten, form_of, restored


class Opened(NamedTuple):
    """A run whose parts are wired again, with an environment for fresh steps."""

    path: Path
    config: Config
    env: gymnasium.Env
    layout: Layout
    parts: Parts

    def fresh(self, actor: Any, step: int, count: int) -> Probe:
        """Take fresh stochastic steps of a policy."""
        act = self.parts.act
        return collect(self.layout, self.env, lambda obs, draw: act(actor, obs, draw), self.config.seed, step, count)


@contextmanager
def opened(path: Path, changed: Callable[[Config], Config] = lambda config: config) -> Iterator[Opened]:
    """Wire a run's configuration, or what is made of it."""
    config = changed(check(read_config(directory.require(path) / "config.json")))
    env, layout, parts = build(config)
    with closing(env):
        yield Opened(path, config, env, layout, parts)


def converged(
    path: Path, steps: Sequence[int] = (), patience: int = 20, max_epochs: int = 500, fresh: int = 1000
) -> list[Row]:
    """Train archived models on, on all data of their step alike, until the holdout error no longer falls.

    Before and after, the error is measured on fresh steps of the archived policy.

    Args:
        steps: Archived steps, after warm-up; by default all.
    """
    with opened(path, lambda config: longer(config, patience, max_epochs)) as run:
        if run.parts.recipe.world is None:
            raise UserError(f"run = '{path}': method '{run.config.method}' has no model")
        known = archives(run)
        if not known:
            raise UserError(f"run = '{path}': nothing archived; train with --archive-at STEPS")
        for step in steps:
            if step not in known:
                raise UserError(f"at = {step}: not archived; there are {', '.join(map(str, known))}")
        return [_converge(run, known[step], step, fresh) for step in (steps or known)]


def longer(config: Config, patience: int, max_epochs: int) -> Config:
    """Let fits go on for longer.

    A fit usually stops after five epochs without a gain of 1 %; here after `patience` without one of 0.1 %. That of
    double-horizon learning stops by a test of its own, and waits and goes on for no less than in the run.
    """
    own = config.dynamics
    if config.method in DOUBLE:
        patience, max_epochs = max(patience, own.patience), max(max_epochs, own.max_epochs)
        config = change(config, {"double.first_factor": 1})
    else:
        config = change(config, {"dynamics.improvement": 1e-3})
    return change(config, {"dynamics.patience": patience, "dynamics.max_epochs": max_epochs})


def archives(run: Opened) -> dict[int, Path]:
    """Return the archived states, by steps after warm-up."""
    found = sorted((run.path / "archive").glob("step_*.safetensors"))
    return {int(file.stem.removeprefix("step_")) - run.config.warmup_steps: file for file in found}


def _converge(run: Opened, file: Path, learned: int, fresh: int) -> Row:
    agent, dynamics = run.parts.recipe.agent, cast(World, run.parts.recipe.world).dynamics
    arrays, note = read_arrays(file)
    state = _restored(agent.init(key(0, Purpose.AGENT_INIT)), arrays, "agent", file)
    model = _restored(dynamics.init(key(0, Purpose.MODEL_INIT)), arrays, "model", file)
    replay = Replay(run.layout, run.config.replay_capacity)
    replay.restore(checkpoint.section(arrays, "replay."))
    measure, real = diagnosis(run.layout, dynamics.means), replay.stored()
    probe = run.fresh(state.actor, note["step"], fresh)
    before = measure.errors(model, probe.rows)
    alike = np.full(len(real.rows), 1.0 / len(real.rows))
    model, fitted = dynamics.fit(model, real, alike, state, note["step"])
    after = measure.errors(model, probe.rows)
    return {
        "step": note["step"],
        "steps_after_warmup": learned,
        "rows": len(real.rows),
        "fresh_steps": fresh,
        "archived_l2": before.l2,
        "archived_mse": before.mse,
        "converged_l2": after.l2,
        "converged_mse": after.mse,
        "epochs": int(fitted["model/epochs"]),
        "capped": int(fitted["model/capped"]),
        "paper_archived": published.model_error(run.config.env, run.config.method, learned),
        "paper_converged": published.model_error(run.config.env, "converged", learned),
    }


def _restored(template: Any, arrays: dict[str, np.ndarray], prefix: str, file: Path) -> Any:
    try:
        return unflatten(template, arrays, prefix)
    except ValueError as error:
        raise UserError(f"'{file}' does not belong to its run's configuration ({error})") from None


def snapshots(run: Opened) -> dict[int, Callable[[], Any]]:
    """Return the policies that are kept, by steps after warm-up: every block's, and those archived.

    A snapshot closes its block. With a lesson it has collected the block, and is the policy since the block's first
    step; the agent itself is that of the block that has not ended.
    """
    agent = run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT))
    found: dict[int, Callable[[], Any]] = {
        step: lambda file=file: _restored(agent.actor, read_arrays(file)[0], "agent.actor", file)
        for step, file in archives(run).items()
    }
    saved = sorted((run.path / "checkpoints").glob("step_*.safetensors"))
    if saved:
        arrays = read_arrays(saved[-1])[0]
        flat, form = arrays["history.snapshots"], form_of(agent.actor)
        if run.parts.recipe.lesson is not None and len(flat):
            current = flatten(_restored(agent.actor, arrays, "agent.actor", saved[-1]))
            flat = np.concatenate([flat[1:], current[None]])
        for i, parameters in enumerate(flat):
            found.setdefault(i * run.config.model_every, lambda parameters=parameters: restored(form, parameters))
    return found


def visitation(path: Path, steps: Sequence[int] = (), fresh: int = 1000, seed: int = 0) -> list[Row]:
    """Lay states and actions of a few policies out in the plane by t-SNE, each from fresh stochastic steps.

    Args:
        steps: Of the policies, after warm-up; by default five, evenly spread.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError(
            "t-SNE needs scikit-learn: pip install 'pdml[analysis]' (in a checkout, '.[analysis]')"
        ) from None
    with opened(path) as run:
        known = snapshots(run)
        chosen = _chosen(path, sorted(known), steps)
        points = [run.layout.inputs(run.fresh(known[step](), step, fresh).rows) for step in chosen]
    data = np.concatenate(points).astype(np.float64)
    data = (data - data.mean(axis=0)) / np.maximum(data.std(axis=0), 1e-8)
    perplexity = min(30.0, (len(data) - 1) / 3.0)
    placed = TSNE(n_components=2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(data)
    origin = np.repeat(chosen, fresh).tolist()
    return [{"step": step, "x": float(x), "y": float(y)} for step, (x, y) in zip(origin, placed, strict=True)]


def _chosen(path: Path, known: list[int], wanted: Sequence[int]) -> list[int]:
    """Return the wanted steps if all are known; by default five of the known, evenly spread."""
    if not known:
        when = "with --archive-at, and of methods with a model at the end of the run"
        raise UserError(f"run = '{path}': keeps no policies yet; they come {when}")
    for step in wanted:
        if step not in known:
            near = min(known, key=lambda other, step=step: abs(other - step))
            raise UserError(f"at = {step}: no policy is kept of that step; the nearest is {near}")
    return list(wanted) or [known[i] for i in np.unique(np.linspace(0, len(known) - 1, 5).round().astype(int))]
