"""What an agent learns from: real transitions, completed with uniform draws of the model buffer."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from tiny import new_parts, tiny_of

from pdml.config.fields import change
from pdml.core.transition import Layout
from pdml.data.model_buffer import ModelBuffer
from pdml.training.recipe import compiled, real_rows

LAYOUT, UPDATES, FILLED = Layout(4, 1), 300, 30


def test_minibatches_are_the_real_rows_and_uniform_draws_of_the_filled_model_buffer():
    settings = change(tiny_of("mbpo"), {"batch_size": 40, "real_ratio": 0.25, "updates_per_step": UPDATES})
    config = settings.learning
    recipe = new_parts(settings).recipe
    learned_from = recipe.agent._replace(improve=lambda agent, batches, importance, key: (batches, {}, None))
    parts = compiled(config, LAYOUT, recipe._replace(agent=learned_from))
    assert real_rows(config, recipe) == 10
    real = np.full((UPDATES, 10, LAYOUT.width), -1.0, np.float32)
    numbered = jnp.broadcast_to(jnp.arange(50.0)[:, None], (50, LAYOUT.width))  # from 30 on: not filled yet
    buffer = ModelBuffer(numbered, jnp.asarray(50), jnp.asarray(FILLED), jnp.asarray(FILLED))
    batches, _, _ = parts.improve(jnp.zeros(()), buffer, real, None, None, jax.random.key(0))
    assert batches.shape == (UPDATES, 40, LAYOUT.width)
    np.testing.assert_array_equal(batches[:, :10], real)
    counts = Counter(np.asarray(batches)[:, 10:, 0].ravel().tolist())
    assert set(counts) == set(map(float, range(FILLED)))
    expected = UPDATES * 30 / FILLED
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())
