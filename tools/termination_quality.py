"""Print how well termination is learned: python tools/termination_quality.py RUN [--rows 20000] [--epochs 200].

The learned termination sees the first rows of a run, fitted after each block as in a run, and is asked about all later
rows: with the real next states, and with those predicted by a model that was fitted to the same first rows. The run
needs terminal rows, as that of `pdml train --env Hopper-v5 --method sac --steps 45000 --seed 100` has.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.config.files import from_json
from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.nets import choose
from pdml.core.rng import Purpose, generator, key
from pdml.core.transition import Layout
from pdml.data.replay import RealRows
from pdml.envs.termination_fns import RULES
from pdml.models.ensemble import ModelState, predict
from pdml.models.fit import ensemble
from pdml.models.learned_termination import learned_termination
from pdml.models.losses import nll
from pdml.runs.checkpoint import saved_checkpoints
from pdml.runs.tensor_file import read_arrays

CHUNK = 4000  # a multiple of the number of elites


def first_rows(rows: np.ndarray, count: int) -> RealRows:
    """Return the first rows as those of one block."""
    return RealRows(rows[:count].copy(), np.zeros(count, np.int32), np.arange(count), np.array([count]))


def fitted_termination(
    config: Config, layout: Layout, rows: np.ndarray, count: int
) -> tuple[Callable[[np.ndarray], np.ndarray], list[float]]:
    """Fit as in a run; return the probability that rows are terminal, and the seconds of each fit."""
    classifier, seconds = learned_termination(config, layout), []
    state = classifier.init(key(config.seed, Purpose.ENDING_INIT))
    for size in range(config.warmup_steps, count + 1, config.model_every):
        begin = time.perf_counter()
        state, _ = classifier.fit(state, first_rows(rows, size), size)
        seconds.append(time.perf_counter() - begin)
    ask = jax.jit(lambda state, step: classifier.probability(state, step.obs, step.action, step.next_obs))

    def probability(rows: np.ndarray) -> np.ndarray:
        return in_chunks(lambda chunk, _: ask(state, layout.unpack(jnp.asarray(chunk))), rows, CHUNK)

    return probability, seconds


def fitted_model(config: Config, layout: Layout, rows: np.ndarray, count: int) -> tuple[ModelState, float, float]:
    """Fit a model to the first rows; return it with its epochs and seconds."""
    dynamics, begin = ensemble(config, layout, nll(config)), time.perf_counter()
    blank, weights = dynamics.init(key(config.seed, Purpose.MODEL_INIT)), np.full(count, 1 / count)
    model, fitted = dynamics.fit(blank, first_rows(rows, count), weights, None, 0)
    return model, fitted["model/epochs"], time.perf_counter() - begin


def predicted_rows(config: Config, layout: Layout, model: ModelState, rows: np.ndarray) -> np.ndarray:
    """Return rows with next states sampled from the model."""
    elites = choose(model.network.members, model.elites)
    sample = jax.jit(lambda obs, action, key: predict(model, elites, obs, action, key)[1])

    def next_obs(chunk: np.ndarray, number: int) -> jax.Array:
        step = layout.unpack(jnp.asarray(chunk))
        return sample(step.obs, step.action, key(config.seed, Purpose.IMAGINE, number))

    imagined = rows.copy()
    imagined[:, layout.obs_size + layout.action_size + 1 : -1] = in_chunks(next_obs, rows, CHUNK)
    return imagined


def table(run: Path, count: int, epochs: int) -> str:
    """Return what was trained on and held out, errors on real next states, and rates on predicted ones."""
    arrays, note = read_arrays(saved_checkpoints(run)[0])
    env = from_json(note["config"], str(run)).learning.env
    config = change(defaults(env), {"dynamics.max_epochs": epochs}).learning
    rows, layout = arrays["replay.rows"], Layout(arrays["episode.obs"].size, arrays["episode.actions"].shape[1])
    ended = layout.unpack(rows[count:]).terminated > 0.5
    probability, seconds = fitted_termination(config, layout, rows, count)
    model, model_epochs, model_seconds = fitted_model(config, layout, rows, count)
    imagined = predicted_rows(config, layout, model, rows[count:])
    on_real, on_imagined = probability(rows[count:]), probability(imagined)
    drawn = generator(config.seed, Purpose.IMAGINE, 0).random(len(imagined)) < on_imagined
    hits = int((ended & (on_real > 0.5)).sum())
    precision, recall = hits / max(1, int((on_real > 0.5).sum())), hits / max(1, int(ended.sum()))
    lines = {
        "rows trained on, terminal": f"{count}, {int(rows[:count, -1].sum())}",
        "rows held out, terminal": f"{len(ended)}, {int(ended.sum())}",
        "precision, real next states": f"{precision:.3f}",
        "recall": f"{recall:.3f}",
        "F1": f"{2 * precision * recall / max(1e-9, precision + recall):.3f}",
        "real rate, terminations per step": f"{ended.mean():.5f}",
        "imagined rate, probability > 0.5": f"{(on_imagined > 0.5).mean():.5f}",
        "imagined rate, drawn": f"{drawn.mean():.5f}",
        "imagined rate, mean probability": f"{on_imagined.mean():.5f}",
    }
    family = config.env.rpartition("-")[0]
    if family in RULES:
        by_rule = np.asarray(RULES[family](layout.unpack(jnp.asarray(imagined)).next_obs))
        lines["imagined rate, the true rule"] = f"{by_rule.mean():.5f}"
    lines["seconds per fit: first, median of later"] = f"{seconds[0]:.2f}, {np.median(seconds[1:]):.2f}"
    lines["the model's fit: epochs, seconds"] = f"{model_epochs:.0f}, {model_seconds:.1f}"
    return "\n".join([f"| {config.env} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines.items())])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=200, help="cap on the epochs of the model's fit")
    options = parser.parse_args()
    print(table(options.run, options.rows, options.epochs))
