"""The same data under three weightings: what weights alone change of the model's error on the current policy.

Runs of two methods also differ in their policies, and so in how hard the states are that a model has to predict. Here
the transitions, the policy and the initial networks are the same, and only the weights differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from pdml.config.methods import METHODS, Feature
from pdml.config.schema import Config
from pdml.core.errors import UserError
from pdml.core.rng import Purpose, generator, key
from pdml.data.replay import RealRows, Replay
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays
from pdml.studies.open_run import OpenRun, chosen_steps, opened
from pdml.training.diagnostics import Diagnosis, diagnosis
from pdml.training.state import section
from pdml.weighting.base import Context, Weighting, uniform
from pdml.weighting.by_policy import exponential_decay, policy_mixture
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import PolicyHistory, actor_from_flat, actor_shape


class Past(NamedTuple):
    """What a run had at the beginning of one of its blocks."""

    step: int
    """Real steps, warm-up included."""
    real: RealRows
    actors: list[Any]
    """The historical policies, the current one last."""
    leading: int
    """Blocks of transitions that no policy of the run collected."""


def weighted_errors(path: Path, steps: Sequence[int] = (), fresh: int = 1000) -> Iterator[dict[str, Any]]:
    """Fit new models to what a run had collected by a step, with each weighting, and test them on the step's policy.

    Args:
        steps: Steps after warm-up at which the run fitted its model; by default five, evenly spaced, from the first on
            that PDML's weights differ from uniform ones.
        fresh: Fresh steps of the policy.
    """
    with opened(path) as run:
        if Feature.LIKELIHOOD not in METHODS[run.config.method].features:
            raise UserError(f"run = '{path}': method '{run.config.method}' does not train a model as MBPO does")
        saved = saved_checkpoints(path)
        if not saved:
            raise UserError(f"run = '{path}': has no checkpoint, which keeps its transitions and policies")
        arrays, note = read_arrays(saved[0])
        replay = Replay(run.layout, run.config.replay_capacity)
        replay.restore(section(arrays, "replay."))
        if replay.count > replay.capacity:
            raise UserError(f"run = '{path}': its replay buffer no longer holds all transitions")
        snapshots, every = arrays["history.snapshots"], run.config.model_every
        known = [number * every for number in range(run.config.mixture.first_block, len(snapshots))]
        measure = diagnosis(run.layout, run.parts.model.dynamics.means)
        for step in chosen_steps(path, known, steps):
            past = _past(run, replay.stored(), snapshots[: 1 + step // every], step, note["prior"])
            yield _compare(run, measure, past, fresh)


def weightings(config: Config) -> dict[str, Weighting]:
    """Return the weightings: MBPO's, every block the same, and PDML's."""
    mixture = replace(config.mixture, misaligned=False)
    return {
        "uniform": uniform(),
        "blocks": exponential_decay(replace(mixture, decay=1.0)),
        "pdml": policy_mixture(mixture),
    }


def _past(
    run: OpenRun, real: RealRows, snapshots: Float32[np.ndarray, "policies parameters"], after_warmup: int, prior: int
) -> Past:
    """Return what the run had a number of steps after its warm-up."""
    step, leading = run.config.warmup_steps + after_warmup, 1 + (prior > 0)
    held = prior + step
    sizes = real.block_sizes[: leading + len(snapshots) - 1]
    shape = actor_shape(run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor)
    actors = [actor_from_flat(shape, flat) for flat in snapshots]
    return Past(step, RealRows(real.rows[:held], real.block[:held], real.number[:held], sizes), actors, leading)


def _compare(run: OpenRun, measure: Diagnosis, past: Past, fresh: int) -> dict[str, Any]:
    """Fit a model with each weighting, from the same initial networks, and measure it on the same fresh steps."""
    dynamics, context = run.parts.model.dynamics, _context(run, past)
    probe = run.fresh(past.actors[-1], past.step, fresh)
    row = {
        "step": past.step,
        "steps_after_warmup": run.config.schedule.after_warmup(past.step),
        "rows": len(past.real.rows),
        "fresh_steps": fresh,
    }
    for name, weigh in weightings(run.config).items():
        weights = weigh(context)
        model = dynamics.init(key(run.config.seed, Purpose.MODEL_INIT))
        model, fitted = dynamics.fit(model, past.real, weights.model, None, past.step)
        errors = measure.errors(model, probe.rows)
        row |= {
            f"{name}_effective_size": weights.metrics["weights/effective_size"],
            f"{name}_epochs": int(fitted["model/epochs"]),
            f"{name}_l2": errors.l2,
            f"{name}_mse": errors.mse,
            f"{name}_compounding": float(measure.compounding(model, probe)[-1]),
        }
    return row


def _context(run: OpenRun, past: Past) -> Context:
    """Return what weightings look at; those here look at blocks and policy shifts only."""
    mixture, seed, head = run.config.mixture, run.config.seed, run.parts.recipe.agent.head
    estimate = estimator(mixture, run.layout.action_size, seed)
    history = PolicyHistory(head, past.actors[0], run.layout, mixture.reservoir, seed, estimate)
    for actor in past.actors:
        history.push(actor)
    obs = past.real.rows[:, : run.layout.obs_size]
    return Context(
        block=past.real.block,
        block_sizes=past.real.block_sizes,
        shifts=lambda: history.shifts(obs, len(obs)),
        td_errors=_not_looked_at,
        values=_not_looked_at,
        model_errors=_not_looked_at,
        random=lambda: generator(seed, Purpose.MISALIGN, past.step),
        leading=past.leading,
    )


def _not_looked_at() -> Any:
    raise AssertionError("the weightings that are compared use no scores")
