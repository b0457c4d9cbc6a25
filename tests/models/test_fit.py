"""The ensemble: its loss by hand, the fit's bookkeeping, and a linear-Gaussian system that it must recover."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import LAYOUT, NOISE, SMALL, A, B, fitted, likelihood_model, linear_system, predict, real_rows, uniform

from pdml.config.schema import Config
from pdml.core.errors import Diverged
from pdml.core.nets import Layer
from pdml.core.pytree import flatten
from pdml.data.replay import RealRows
from pdml.models.ensemble import Bounds, Network, elite_means
from pdml.models.fit_data import LEAST_SCALE, split_rows
from pdml.models.losses import nll

BRIEF = replace(SMALL, max_epochs=3)
"""Most tests take these settings, so that they share what is compiled."""


def test_loss_is_the_sum_over_members_of_the_mean_over_rows_and_outputs():
    w = jnp.asarray([[0.5, 0.0]])
    members = tuple((Layer(w * (i + 1), jnp.asarray([0.1, -1.0])),) for i in range(2))
    network = Network(members, Bounds(jnp.asarray([0.5]), jnp.asarray([-10.0])))
    x, y = jnp.asarray([[[1.0], [2.0]], [[0.0], [3.0]]]), jnp.asarray([[[1.0], [0.0]], [[2.0], [1.0]]])

    def softplus(v):
        return np.log1p(np.exp(v))

    ell = 0.5 - softplus(0.5 + 1.0)
    ell = -10.0 + softplus(ell + 10.0)
    total = 0.01 * (0.5 + 10.0)
    for i in range(2):
        mean = 0.5 * (i + 1) * np.asarray(x[i, :, 0]) + 0.1
        total += np.mean((mean - np.asarray(y[i, :, 0])) ** 2 * np.exp(-ell) + ell)
        total += 0.5 * 0.3 * (0.5 * (i + 1)) ** 2
    loss = nll(Config(dynamics=replace(SMALL, weight_decay=(0.3,))))
    assert float(loss.value(network, x, y, x[:, :, :0])) == pytest.approx(total, rel=1e-5)


@pytest.mark.slow
def test_recovers_a_linear_gaussian_system_and_its_noise():
    """Mean within 0.08 (of signals of size 1 to 2), standard deviations within 25 %, on rows not trained on."""
    model, metrics = fitted(replace(SMALL, max_epochs=150), linear_system(6000))
    test = linear_system(1000, seed=1).rows
    obs, action = test[:, :2], test[:, 2:3]
    truth = np.column_stack([2.0 * obs[:, 0] - action[:, 0], obs @ A.T + action * B - obs])
    for i in np.asarray(model.elites):
        mean, log_var = predict(model, test)[i]
        assert np.sqrt(np.mean((mean - truth) ** 2, axis=0)).max() < 0.08
        np.testing.assert_allclose(np.exp(0.5 * log_var).mean(axis=0), NOISE, rtol=0.25)
    assert metrics["model/capped"] in (0.0, 1.0)


@pytest.mark.slow
def test_a_fit_starts_from_the_weights_and_the_optimiser_it_is_given():
    real, dynamics = linear_system(600), likelihood_model(Config(dynamics=BRIEF))
    state, first = dynamics.fit(dynamics.init(jax.random.key(0)), real, uniform(real), None, 0)
    count = int(np.asarray(state.opt[0].count))
    again, second = dynamics.fit(state, real, uniform(real), None, 250)
    assert second["model/holdout_error"] < first["model/holdout_error"]
    assert int(np.asarray(again.opt[0].count)) > count  # the optimiser is not reset either


def test_a_fit_leaves_the_weights_near_where_they_were():
    """A step of Adam moves a weight by at most 3.2 times the learning rate."""
    real, dynamics = linear_system(600), likelihood_model(Config(dynamics=BRIEF))
    blank = dynamics.init(jax.random.key(0))
    far = jax.tree.map(lambda leaf: leaf + 1.0, blank.network.members)
    given = jax.tree.map(np.array, far)  # the fit consumes its argument
    model, metrics = dynamics.fit(
        replace(blank, network=Network(far, blank.network.bounds)), real, uniform(real), None, 0
    )
    most = 3.2 * BRIEF.learning_rate * metrics["model/batches"]
    assert most < 0.1
    for old, new in zip(jax.tree.leaves(given), jax.tree.leaves(model.network.members), strict=True):
        assert np.abs(np.asarray(new) - old).max() <= most


@pytest.mark.slow
def test_early_stopping_restores_each_members_best_weights():
    real = linear_system(400)
    config = replace(SMALL, learning_rate=0.05, patience=2, max_epochs=40)  # so coarse that errors go up again
    model, metrics = fitted(config, real)
    _, holdout = split_rows(real, config, 0, 0)
    errors = [
        np.mean((mean - LAYOUT.targets(real.rows)[holdout]) ** 2) for mean, _ in predict(model, real.rows[holdout])
    ]
    best_two = np.sort(errors)[:2]
    assert metrics["model/holdout_error"] == pytest.approx(best_two.mean(), rel=1e-3)
    assert sorted(np.asarray(model.elites).tolist()) == sorted(np.argsort(errors)[:2].tolist())


def test_fit_stops_when_no_member_improves_for_more_than_the_patience():
    real = linear_system(300)
    _, metrics = fitted(replace(SMALL, improvement=0.999, patience=3), real)  # no error falls to a thousandth
    assert metrics["model/epochs"] == 1 + 4  # the first epoch improves on nothing known; then 3 + 1 without
    assert metrics["model/capped"] == 0.0
    _, metrics = fitted(BRIEF, real)
    assert (metrics["model/epochs"], metrics["model/capped"]) == (3.0, 1.0)


@pytest.mark.slow
def test_weights_decide_which_rows_are_learned_in_any_order():
    n, rng = 3200, np.random.default_rng(0)
    obs = rng.standard_normal((n, 2))
    sign = np.where(np.arange(n) < n // 2, 1.0, -1.0)  # two policies' blocks with contradictory rewards
    rows = np.column_stack([obs, np.zeros((n, 1)), sign * obs[:, 0], obs, np.zeros(n)])
    straight = real_rows(rows, blocks=2)
    order = rng.permutation(n)
    shuffled = RealRows(straight.rows[order], straight.block[order], straight.number, straight.block_sizes)
    last = replace(SMALL, max_epochs=12, patience=12, restore_best=False)  # whatever the holdout says
    for real in (straight, shuffled):
        for block, slope in ((0, 1.0), (1, -1.0)):
            model, _ = fitted(last, real, (real.block == block) / (n / 2))
            for mean, _ in predict(model, straight.rows):
                assert np.mean((mean[:, 0] - slope * obs[:, 0]) ** 2) < 0.05


def test_normaliser_is_that_of_the_training_rows():
    real = linear_system(500)
    real.rows[:, 2] = 7.0  # a constant input is left as it is
    model, _ = fitted(BRIEF, real)
    training, _ = split_rows(real, BRIEF, 0, 0)
    inputs = LAYOUT.inputs(real.rows)[training]
    np.testing.assert_allclose(np.asarray(model.normaliser.mean), inputs.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.asarray(model.normaliser.scale), [*inputs.std(axis=0)[:2], 1.0], rtol=1e-4)


@pytest.mark.slow
def test_targets_of_mean_0_and_deviation_1_are_fitted_the_same_raw_and_standardised():
    real, config = linear_system(500), BRIEF
    training, _ = split_rows(real, config, 0, 0)
    signs = np.ones((500, 3))
    signs[training] = np.random.default_rng(0).permuted(np.tile([[1.0], [-1.0]], (200, 3)), axis=0)
    real.rows[:, :2] = np.round(16 * real.rows[:, :2]) / 16  # so that differences are exact
    real.rows[:, 3], real.rows[:, 4:6] = signs[:, 0], real.rows[:, :2] + signs[:, 1:]
    (plain, _), (delta, _) = (fitted(replace(config, target_norm=norm), real) for norm in ("none", "delta"))
    assert np.array_equal([delta.targets.mean, delta.targets.scale], [[0.0] * 3, [1.0] * 3])
    plain, delta = flatten(plain, ""), flatten(delta, "")
    assert delta.keys() - plain.keys() == {".targets.mean", ".targets.scale"}
    assert not plain.keys() - delta.keys()
    for name, array in plain.items():
        assert np.array_equal(array, delta[name]), name


@pytest.mark.parametrize("norm", ["delta", "direct"])
def test_targets_are_standardised_by_the_training_rows_whatever_these_weigh(norm):
    real, config = linear_system(500), replace(BRIEF, target_norm=norm)
    real.rows[:, 3] = 5.0  # a constant reward has the least scale
    blank = likelihood_model(Config(dynamics=config)).init(jax.random.key(0)).targets
    assert np.array_equal([blank.mean, blank.scale], [[0.0] * 3, [1.0] * 3])
    model, metrics = fitted(config, real, np.arange(500) / np.arange(500).sum())
    training, holdout = split_rows(real, config, 0, 0)
    y = np.column_stack([real.rows[:, 3], real.rows[:, 4:6] - (norm == "delta") * real.rows[:, :2]])
    mean, scale = y[training].mean(axis=0), y[training].std(axis=0)
    scale[0] = LEAST_SCALE
    np.testing.assert_allclose(model.targets.mean, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.targets.scale, scale, rtol=1e-4)
    said = predict(model, real.rows[holdout])  # in standardised units, as the error that chooses the elites
    errors = np.sort([np.mean((mean_of - ((y - mean) / scale)[holdout]) ** 2) for mean_of, _ in said])
    assert metrics["model/holdout_error"] == pytest.approx(errors[:2].mean(), rel=1e-3)


@pytest.mark.slow
def test_standardised_targets_are_learned_whatever_their_scale():
    """Root mean squared errors in deviations of the entry: a reward of size 0.001 beside a state of size 100."""
    size = np.array([100.0, 1.0, 1.0, 1e-3, 100.0, 1.0, 1.0])
    real, test = (real_rows(linear_system(n, seed, noise=0.0).rows * size) for n, seed in ((2000, 0), (1000, 1)))
    obs, action, y = jnp.asarray(test.rows[:, :2]), jnp.asarray(test.rows[:, 2:3]), LAYOUT.targets(test.rows)
    longer, errors = replace(SMALL, max_epochs=15), {}
    for norm in ("none", "delta", "direct"):
        model, _ = fitted(replace(longer, target_norm=norm), real)
        wrong = np.asarray(elite_means(model, obs, action)).mean(axis=0) - y
        errors[norm] = np.sqrt(np.square(wrong).mean(axis=0)) / y.std(axis=0)
    assert errors["none"][0] > 1.0
    assert errors["delta"].max() < 0.25
    assert errors["direct"].max() < 0.25


def test_holdout_and_training_rows_never_meet():
    real = linear_system(1000)
    for holdout in ("fresh", "fixed"):
        config = replace(SMALL, holdout=holdout, holdout_max=120)
        training, held = split_rows(real, config, 0, 250)
        assert not set(training) & set(held)
        assert len(held) == 120
        assert len(training) == 880 if holdout == "fresh" else 750 < len(training) < 850


def test_fresh_holdouts_change_and_fixed_labels_stay_as_rows_are_added_and_lost():
    real = linear_system(1000)
    fresh = [set(split_rows(real, SMALL, 0, step)[1]) for step in (0, 250)]
    assert fresh[0] != fresh[1]
    fixed = replace(SMALL, holdout="fixed")
    trained = {int(real.number[i]) for i in split_rows(real, fixed, 0, 0)[0]}
    later = RealRows(real.rows[300:], real.block[300:], real.number[300:], real.block_sizes)
    grown = RealRows(
        np.concatenate([later.rows, later.rows]),
        np.concatenate([later.block] * 2),
        np.arange(300, 1700),
        later.block_sizes,
    )
    trained_later = {int(grown.number[i]) for i in split_rows(grown, fixed, 0, 250)[0]}
    assert {number for number in trained if number >= 300} == {number for number in trained_later if number < 1000}


def test_a_diverged_fit_stops_the_run_by_name():
    real = linear_system(300)
    real.rows[:, 3] *= 1e25  # its square is not finite
    with pytest.raises(Diverged, match="model has diverged"):
        fitted(BRIEF, real)


def test_host_rows_may_be_overwritten_right_after_the_call():
    real = linear_system(400)
    expected, _ = fitted(BRIEF, real)
    handed = RealRows(real.rows.copy(), real.block, real.number, real.block_sizes)
    found, _ = fitted(BRIEF, handed)
    handed.rows[:] = np.nan
    for a, b in zip(jax.tree.leaves(expected.network), jax.tree.leaves(found.network), strict=True):
        assert np.array_equal(a, b)
