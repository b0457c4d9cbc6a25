"""Scores of real transitions by the current critics and model, for the weightings that use them."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from pdml.agents.base import SACState, critic_values, td_errors
from pdml.config.schema import Config
from pdml.core.batching import in_chunks
from pdml.core.errors import Diverged
from pdml.core.nets import choose
from pdml.core.transition import Layout
from pdml.models.ensemble import ModelState, deal, normalise, raw

Scored = Float64[np.ndarray, " n"]


class RowScores(NamedTuple):
    """A part: each function returns one number per transition."""

    td_errors: Callable[[SACState, np.ndarray, PRNGKeyArray], Scored]
    values: Callable[[SACState, np.ndarray], Scored]
    model_errors: Callable[[ModelState, np.ndarray, PRNGKeyArray], Scored]


def row_scores(config: Config, layout: Layout) -> RowScores:
    """Build the scores; each is compiled once, for chunks of one size."""
    elites = config.dynamics.num_elites
    size = 4096 // elites * elites if elites <= 4096 else elites

    def td(agent: SACState, rows: Float[Array, "b width"], key: PRNGKeyArray) -> Float[Array, " b"]:
        noise = jax.random.normal(key, (len(rows), layout.action_size))
        return td_errors(agent, layout.unpack(rows), noise, config.agent.gamma, config.log_action_scale)

    def value(agent: SACState, rows: Float[Array, "b width"]) -> Float[Array, " b"]:
        batch = layout.unpack(rows)
        return critic_values(agent.critics, batch.obs, batch.action).min(axis=0)

    def model_error(model: ModelState, rows: Float[Array, "b width"], key: PRNGKeyArray) -> Float[Array, " b"]:
        """Return the squared error of one random elite's mean; its expectation is the elites' average."""
        batch = layout.unpack(rows)
        x = normalise(model.normaliser, jnp.concatenate([batch.obs, batch.action], axis=-1))
        output, back = deal(choose(model.network.members, model.elites), x, key)
        y = jnp.concatenate([batch.reward[:, None], batch.next_obs - batch.obs], axis=-1)
        return jnp.square(raw(model, batch.obs, output[back][:, : y.shape[1]]) - y).mean(axis=1)

    jitted = jax.jit(td), jax.jit(value), jax.jit(model_error), jax.jit(jax.random.fold_in)
    td_jit, value_jit, error_jit, fold = jitted
    return RowScores(
        td_errors=lambda agent, rows, key: _float64(lambda part, i: td_jit(agent, part, fold(key, i)), rows, size),
        values=lambda agent, rows: _float64(lambda part, i: value_jit(agent, part), rows, size),
        model_errors=lambda model, rows, key: _float64(
            lambda part, i: error_jit(model, part, fold(key, i)), rows, size
        ),
    )


def _float64(function: Callable[[np.ndarray, int], Array], rows: np.ndarray, size: int) -> Scored:
    scores = in_chunks(function, rows, size).astype(np.float64)
    if not np.isfinite(scores).all():
        raise Diverged("a score of a real transition is not finite: the critics or the model have diverged")
    return scores
