"""Renewing the normaliser of DHMBPO's agent without changing what its networks compute."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array

from pdml.core.nets import Layer, Mlp
from pdml.dhmbpo.updates import DoubleState
from pdml.models.ensemble import Normaliser


def renew_normaliser(state: DoubleState, normaliser: Normaliser) -> DoubleState:
    """Return the agent with another normaliser; actor and critics give the same outputs as before.

    Departs from the published code, where a new normaliser moves actions and values. Before the first update there is
    nothing to keep: the networks were initialised for standardised observations.
    """
    if float(state.bounded) < 0.5:
        return replace(state, actor=replace(state.actor, normaliser=normaliser))
    old = state.actor.normaliser

    def folded(layers: Mlp) -> Mlp:
        return fold(layers, old, normaliser)

    return replace(
        state,
        actor=replace(state.actor, layers=folded(state.actor.layers), normaliser=normaliser),
        trained=folded(state.trained) if state.trained else (),
        critics=folded(state.critics),
        target_critics=folded(state.target_critics),
    )


def fold(layers: Mlp, old: Normaliser, new: Normaliser) -> Mlp:
    r"""Change the first layer so that inputs of the new normaliser give what those of the old one gave.

    $\frac{x - m}{s} = \frac{s'}{s} \cdot \frac{x - m'}{s'} + \frac{m' - m}{s}$. The observation comes first in the
    inputs.
    """
    first, size = layers[0], len(old.mean)
    rows: Array = first.w[..., :size, :]
    w = first.w.at[..., :size, :].set(jnp.einsum("n,...nm->...nm", new.scale / old.scale, rows))
    b = first.b + jnp.einsum("n,...nm->...m", (new.mean - old.mean) / old.scale, rows)
    return (Layer(w, b), *layers[1:])
