"""The fit of DHMBPO's model: scales, minibatches, early stopping and the paired test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from double_parts import LAYOUT, constant_networks, fit_config, rows_of
from scipy import stats

from pdml.dhmbpo.fit import likelihood_scores, paired_p_value, standardised_fit_data, standardised_model


def test_scales_are_those_of_steps_without_the_jumps_between_episodes():
    real = rows_of(500)
    data = standardised_fit_data(real, np.ones(500) / 500, fit_config(), LAYOUT, 500)
    changes = real.rows[:, 4:6] - real.rows[:, :2]
    np.testing.assert_allclose(data.targets.scale[1:], changes.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(data.targets.mean[0], real.rows[:, 3].mean(), rtol=1e-4)
    jumps = np.diff(real.rows[:, :2], axis=0)  # what the published code takes for changes
    assert (jumps.std(axis=0) > 10 * np.asarray(data.targets.scale[1:])).all()
    np.testing.assert_allclose(data.normaliser.scale, real.rows[:, :2].std(axis=0), rtol=1e-4)


def test_rows_are_held_out_once_and_for_all_and_count_the_same_for_good():
    early, late = (standardised_fit_data(rows_of(n), np.ones(n), fit_config(), LAYOUT, n) for n in (300, 600))
    assert [row for row in late.holdout if row < 300] == list(early.holdout)
    assert len(late.holdout) / 600 == pytest.approx(0.2, abs=0.06)
    np.testing.assert_array_equal(late.rows.bootstrap[:300], early.rows.bootstrap[:300])
    bootstrap = np.asarray(late.rows.bootstrap[:600])
    assert bootstrap.mean() == pytest.approx(1.0, abs=0.1)
    assert bootstrap.var() == pytest.approx(1.0, abs=0.3)
    assert abs(np.corrcoef(bootstrap.T)[0, 1]) < 0.1
    moved = rows_of(300)._replace(number=np.arange(300, 600))  # the older ones are no longer stored
    again = standardised_fit_data(moved, np.ones(300), fit_config(), LAYOUT, 600)
    np.testing.assert_array_equal(again.rows.bootstrap[:300], late.rows.bootstrap[300:600])


def test_minibatches_go_through_all_rows_or_follow_the_weights():
    real, config = rows_of(500), fit_config()
    data = standardised_fit_data(real, np.full(500, 0.002), config, LAYOUT, 500)
    training = np.setdiff1d(np.arange(500), data.holdout)
    assert data.num_batches == 3
    drawn = np.concatenate([next(data.minibatches)[: data.num_batches].ravel() for _ in range(9)])
    counts = np.bincount(drawn, minlength=500)
    assert set(counts[training]) <= {len(drawn) // len(training), len(drawn) // len(training) + 1}
    assert not counts[data.holdout].any()
    weights = np.where(np.arange(500) < 250, 1.0, 3.0)
    data = standardised_fit_data(real, weights, config, LAYOUT, 500)
    drawn = np.concatenate([next(data.minibatches)[: data.num_batches].ravel() for _ in range(60)])
    assert not np.isin(drawn, data.holdout).any()
    late = (training >= 250).mean()
    assert (drawn >= 250).mean() == pytest.approx(3 * late / (3 * late + 1 - late), abs=0.005)
    expected = len(drawn) * weights[training] / weights[training].sum()
    assert abs(np.bincount(drawn, minlength=500)[training] - expected).max() < 1.5 * len(drawn) / len(training)


def fitted(config, real, seed=0):
    dynamics = standardised_model(config, LAYOUT)
    before = dynamics.init(jax.random.key(seed))
    after, metrics = dynamics.fit(before, real, np.ones(len(real.rows)), None, len(real.rows))
    return dynamics, before, after, metrics


@pytest.mark.slow
def test_a_fit_learns_each_entry_by_its_own_scale():
    real = rows_of(600)
    dynamics, before, after, metrics = fitted(fit_config(dynamics__max_epochs=150, dynamics__patience=60), real)
    y = np.concatenate([real.rows[:, 3:4], real.rows[:, 4:6] - real.rows[:, :2]], axis=1)

    def error(model):
        means = dynamics.means(model, jnp.asarray(real.rows[:, :2]), jnp.asarray(real.rows[:, 2:3]))
        return (np.square(np.asarray(means).mean(axis=0) - y).mean(axis=0) / y.var(axis=0)).max()

    assert error(after) < 0.1 < error(before)
    assert 0 < metrics["model/best_epoch"] <= metrics["model/epochs"]
    assert metrics["model/noise"] < 1.0


def test_a_fit_that_gains_nothing_for_certain_keeps_the_old_networks():
    config = fit_config(double__significance=1e-300)
    _, before, after, metrics = fitted(config, rows_of(300))
    assert metrics["model/best_epoch"] == 0.0
    assert metrics["model/epochs"] == 30.0
    for old, new in zip(jax.tree.leaves(before.network), jax.tree.leaves(after.network), strict=True):
        np.testing.assert_array_equal(old, new)
    assert not np.array_equal(before.targets.scale, after.targets.scale)


@pytest.mark.slow
def test_a_fit_stops_when_nothing_is_gained_and_the_first_has_more_patience():
    noise = rows_of(300)
    noise.rows[:, 3:6] = np.random.default_rng(1).standard_normal((300, 3))
    noise.rows[:, 4:6] += noise.rows[:, :2]
    config = fit_config(dynamics__max_epochs=200, dynamics__patience=4, double__judge_every=2)
    assert fitted(config, noise)[3]["model/capped"] == 0.0
    first = dict(double__judge_every=2, double__first_factor=3, dynamics__max_epochs=5, dynamics__patience=5)
    assert fitted(fit_config(**first, warmup_steps=300), rows_of(300))[3]["model/epochs"] == 15.0
    assert fitted(fit_config(**first, warmup_steps=299), rows_of(300))[3]["model/epochs"] == 5.0


def test_the_paired_test_is_that_of_the_textbook():
    rng = np.random.default_rng(0)
    for count in (20, 999, 3000):
        best, found = rng.standard_normal(count), rng.standard_normal(count) - 0.03
        p = stats.ttest_rel(best, found, alternative="greater").pvalue
        assert paired_p_value(best, found) == pytest.approx(p, rel=1e-6 if count < 1000 else 0.01)
        assert paired_p_value(best, best) == 1.0
        assert paired_p_value(best, best - 0.5) < 1e-9


def test_held_out_rows_are_scored_by_mean_spread_and_noise():
    outputs, stds = np.array([[1.0, 0.0, 2.0], [3.0, 0.5, -1.0]]), np.array([[0.5, 1.0, 2.0], [2.0, 1.0, 0.5]])
    network = constant_networks(outputs, np.log(stds)).network
    y = np.array([[1.5, 0.0, 0.0], [0.0, 1.0, 2.0]])
    variance = outputs.var(axis=0, ddof=1) + np.sqrt(stds.prod(axis=0)) ** 2
    expected = (0.5 * (y - outputs.mean(axis=0)) ** 2 / variance + 0.5 * np.log(variance)).sum(axis=1)
    found = likelihood_scores(network, jnp.zeros((2, 3)), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
