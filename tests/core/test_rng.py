"""Randomness by address."""

import jax

from pdml.core.rng import Purpose, generator, key


def test_draws_depend_on_seed_purpose_step_and_nothing_else():
    assert generator(1, Purpose.STARTS, 7).random() == generator(1, Purpose.STARTS, 7).random()
    others = [
        (2, Purpose.STARTS, 7, 0),
        (1, Purpose.HOLDOUT, 7, 0),
        (1, Purpose.STARTS, 8, 0),
        (1, Purpose.STARTS, 7, 1),
    ]
    draws = {generator(*address).random() for address in [(1, Purpose.STARTS, 7, 0), *others]}
    assert len(draws) == 5
    keys = {
        jax.random.key_data(key(*address)).tolist()[1]
        for address in [(1, Purpose.ACT, 7), (1, Purpose.ACT, 8), (1, Purpose.IMAGINE, 7), (2, Purpose.ACT, 7)]
    }
    assert len(keys) == 4
