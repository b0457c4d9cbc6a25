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
from pdml.runs.checkpoint import newest_checkpoint
from pdml.studies.converged import with_longer_fits
from pdml.studies.open_run import OpenRun, opened
from pdml.training.diagnostics import Diagnosis, diagnosis
from pdml.training.state import section
from pdml.weighting.base import Context, Weighting, uniform
from pdml.weighting.by_policy import exponential_decay, policy_mixture
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import PolicyHistory, actor_from_flat, actor_shape


class Past(NamedTuple):
    """What a run had when one of its blocks began."""

    step: int
    """Real steps, warm-up included."""
    real: RealRows
    policies: Float32[np.ndarray, "policies parameters"]
    """The historical policies, the current one last."""
    leading: int
    """Blocks of transitions that no policy of the run collected."""


def weighted_errors(
    path: Path, steps: Sequence[int] = (), patience: int = 20, max_epochs: int = 500, fresh: int = 1000
) -> Iterator[dict[str, Any]]:
    """Fit new models to what a run had collected by a step, with each weighting, and test them on the step's policy.

    Args:
        steps: Steps after warm-up at which the run fitted its model; by default five, evenly spaced, from the first on
            at which PDML's weights differ from uniform ones.
        patience: Epochs without a gain on the holdout after which a fit ends.
        max_epochs: At which every fit ends.
        fresh: Fresh steps of the policy.
    """
    with opened(path, lambda settings: with_longer_fits(settings, patience, max_epochs)) as run:
        if Feature.LIKELIHOOD not in METHODS[run.config.method].features:
            raise UserError(f"run = '{path}': method '{run.config.method}' does not train a model as MBPO does")
        arrays, note, _ = newest_checkpoint(path, "run")
        replay = Replay(run.layout, run.config.replay_capacity)
        replay.restore(section(arrays, "replay."))
        if replay.count > replay.capacity:
            raise UserError(f"run = '{path}': its replay buffer no longer holds all transitions")
        real, policies = replay.stored(), arrays["history.snapshots"]
        measure = diagnosis(run.layout, run.parts.model.dynamics.means)
        for step in _chosen(run, len(policies), steps):
            yield _compare(run, measure, _past(run, real, policies, step, note["prior"]), fresh)


def weightings(config: Config) -> dict[str, Weighting]:
    """Return the weightings: MBPO's, that of blocks without regard to policies, and PDML's."""
    mixture = replace(config.mixture, misaligned=False)
    return {
        "uniform": uniform(),
        "blocks": exponential_decay(replace(mixture, decay=1.0)),
        "pdml": policy_mixture(mixture),
    }


def _chosen(run: OpenRun, num_policies: int, wanted: Sequence[int]) -> list[int]:
    """Return the wanted steps after warm-up, if PDML's weights can be computed there; by default five of all."""
    every, first = run.config.model_every, run.config.mixture.first_block
    if num_policies <= first:
        uniform_until = f"{first * every} steps after warm-up"
        raise UserError(f"run = '{run.path}': too short, PDML's weights are uniform for the first {uniform_until}")
    known = range(first * every, num_policies * every, every)
    for step in wanted:
        if step not in known:
            allowed = f"a multiple of {every} from {known[0]} to {known[-1]}"
            raise UserError(f"at = {step}: must be {allowed}, where the run fitted its model with weights")
    return list(wanted) or [known[i] for i in np.unique(np.linspace(0, len(known) - 1, 5).round().astype(int))]


def _past(
    run: OpenRun,
    real: RealRows,
    policies: Float32[np.ndarray, "policies parameters"],
    after_warmup: int,
    prior: int,
) -> Past:
    """Return what the run had a number of steps after its warm-up."""
    step, num_blocks, leading = run.config.warmup_steps + after_warmup, after_warmup // run.config.model_every, 1
    leading += prior > 0
    rows, block, number = (column[: prior + step] for column in (real.rows, real.block, real.number))
    sizes = real.block_sizes[: leading + num_blocks]
    return Past(step, RealRows(rows, block, number, sizes), policies[: 1 + num_blocks], leading)


def _compare(run: OpenRun, measure: Diagnosis, past: Past, fresh: int) -> dict[str, Any]:
    """Fit a model with each weighting, from the same initial networks, and measure it on the same fresh steps."""
    dynamics, context = run.parts.model.dynamics, _context(run, past)
    probe = run.fresh(actor_from_flat(_shape(run), past.policies[-1]), past.step, fresh)
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
            f"{name}_capped": int(fitted["model/capped"]),
            f"{name}_l2": errors.l2,
            f"{name}_mse": errors.mse,
            f"{name}_compounding": float(measure.compounding(model, probe)[-1]),
        }
    return row


def _context(run: OpenRun, past: Past) -> Context:
    """Return what weightings look at; those here look at blocks and policy shifts only."""
    config, recipe = run.config, run.parts.recipe
    estimate = estimator(config.mixture, run.layout.action_size, config.seed)
    actor = actor_from_flat(_shape(run), past.policies[-1])
    history = PolicyHistory(recipe.agent.head, actor, run.layout, config.mixture.reservoir, config.seed, estimate)
    history.restore(history.arrays() | {"snapshots": past.policies})
    obs = past.real.rows[:, : run.layout.obs_size]
    return Context(
        block=past.real.block,
        block_sizes=past.real.block_sizes,
        shifts=lambda: history.shifts(obs, len(obs)),
        td_errors=_not_looked_at,
        values=_not_looked_at,
        model_errors=_not_looked_at,
        random=lambda: generator(config.seed, Purpose.MISALIGN, past.step),
        leading=past.leading,
    )


def _shape(run: OpenRun) -> Any:
    return actor_shape(run.parts.recipe.agent.init(key(0, Purpose.AGENT_INIT)).actor)


def _not_looked_at() -> Any:
    raise AssertionError("the weightings that are compared use no scores")
