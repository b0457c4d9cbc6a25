"""The paper's numbers as the package ships them."""

import csv
from importlib.resources import files

import numpy as np
import pytest

from pdml.config.methods import METHODS
from pdml.config.tasks import TASKS
from pdml.reporting import published

BANDED = ("pdml", "mbpo", "decay-mbpo", "per-mbpo", "recall-mbpo", "maper-mbpo", "pdml-model-only", "pdml-starts-only")


def rows(name):
    with (files("pdml.reporting") / "paper" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("env", "step", "value"), [("Hopper-v5", 120_000, 3641.07), ("Walker2d-v4", 200_000, 5304.42)])
def test_final_points_agree_with_the_printed_table(env, step, value):
    found = published.curve(env, "pdml")
    assert found is not None
    assert found.steps[-1] + found.half_bin == step
    assert found.mean[-1] == pytest.approx(value, abs=5.0)


def test_every_figure_draws_the_same_curve():
    for env in ("Hopper-v5", "Walker2d-v5"):
        for method in ("pdml", "mbpo"):
            ends = [published.curve(env, method, figure) for figure in ("ablation", "experience_replay")]
            assert all(end is not None for end in ends)
            means = np.array([end.mean for end in ends if end is not None])
            assert np.ptp(means, axis=0).max() < 0.005 * means.max()


@pytest.mark.parametrize("method", BANDED)
@pytest.mark.parametrize("env", ["Hopper-v5", "Walker2d-v5"])
def test_bands_lie_around_the_mean_where_the_data_have_them(env, method):
    found = published.curve(env, method)
    assert found is not None
    assert found.source in ("experience_replay", "exponential_decay", "ablation")
    assert (found.low < found.mean).all()
    assert (found.mean < found.high).all()


@pytest.mark.parametrize("method", ["ampo", "vagram", "redq", "sac"])
def test_curves_read_off_the_main_comparison_have_no_band(method):
    found = published.curve("Hopper-v5", method)
    assert found is not None
    assert found.source == "main comparison"
    assert np.isnan(found.low).all()
    assert np.isnan(found.high).all()
    assert np.isfinite(found.mean).all()


def test_points_are_the_middles_of_bins_that_begin_at_0_and_leave_no_gap():
    for env, width in (
        ("Hopper", 10_000),
        ("Walker2d", 10_000),
        ("Humanoid", 10_000),
        ("Ant", 10_000),
        ("Pusher", 3000),
    ):
        for method in ("pdml", "mbpo", "sac"):
            found = published.curve(f"{env}-v5", method)
            assert found is not None
            assert found.half_bin == width / 2
            np.testing.assert_array_equal(found.steps, width * (np.arange(len(found.steps)) + 0.5))


def test_the_first_bins_of_hopper_are_those_that_results_are_compared_with():
    found = {method: published.curve("Hopper-v5", method) for method in ("pdml", "mbpo")}
    assert found["pdml"].steps[:3].tolist() == [5000, 15_000, 25_000]
    assert found["pdml"].mean[:3].round().tolist() == [471, 1533, 2761]
    assert found["mbpo"].mean[:3].round().tolist() == [318, 429, 745]


def test_rates():
    finals = {}
    for rate in (0.02, 0.1, 0.3, 0.5, 0.7):
        found = published.rate_curve("Hopper-v5", rate)
        assert found is not None
        finals[rate] = found.mean[-1]
    assert finals[0.02] == 3640.77
    assert max(finals, key=lambda rate: finals[rate]) == 0.02
    assert published.rate_curve("Hopper-v5", 0.2) is None
    assert published.rate_curve("Walker2d-v5", 0.02) is None


@pytest.mark.parametrize(("step", "policies"), [(50_000, 199), (100_000, 399)])
def test_mixture_weights_are_those_of_the_historical_policies(step, policies):
    found = published.mixture("Humanoid-v5", step)
    assert found is not None
    assert found.shape == (policies,)  # a policy every 250 steps, without the newest
    assert found.sum() == pytest.approx(1.0, abs=1e-5)
    assert (found > 0).all()
    assert found[-20:].mean() > 2 * found[:20].mean()


def test_tables():
    assert published.training_hours("Hopper-v5", "pdml") == 35.7
    assert published.training_hours("Hopper-v5", "mbpo") == 35.5
    assert published.model_error("Walker2d-v5", "pdml", 20_000) == 0.673
    assert published.model_error("Walker2d-v5", "converged", 100_000) == 0.272
    assert published.model_error("HalfCheetah-v4", "mbpo", 60_000) == 0.324


def test_scale_and_threshold():
    assert published.scale("Hopper-v5") == (210.9, 3525.8)
    assert published.scale("InvertedPendulum-v5") == (0.0, 1000.0)
    assert published.threshold("Hopper-v5") == pytest.approx(3125.56, abs=5.0)
    assert published.threshold("InvertedPendulum-v4") == 950.0
    for env in ("Walker2d-v5", "Ant-v5", "HalfCheetah-v5", "Humanoid-v5", "Pusher-v5"):
        scale = published.scale(env)
        assert scale is not None
        assert scale.zero < scale.one


def test_what_the_paper_lacks_is_none():
    assert published.curve("InvertedPendulum-v5", "pdml") is None
    assert published.curve("Hopper-v5", "maper-mbpo-model") is None
    assert published.curve("Ant-v5", "per-mbpo") is None
    assert published.curve("Pusher-v5", "vagram") is None
    assert published.curve("Humanoid-v5", "pdml", "ablation") is None
    assert published.curve("Swimmer-v5", "pdml") is None
    assert published.training_hours("Hopper-v5", "sac") is None
    assert published.model_error("Walker2d-v5", "pdml", 30_000) is None
    assert published.model_error("Hopper-v5", "pdml", 20_000) is None
    assert published.mixture("Humanoid-v5", 60_000) is None
    assert published.mixture("Hopper-v5", 50_000) is None
    assert published.scale("Swimmer-v5") is None
    assert published.threshold("Swimmer-v5") is None


@pytest.mark.parametrize("env", published.DHMBPO_TASKS)
@pytest.mark.parametrize("updates", [1, 2])
def test_dhmbpos_curves_are_the_published_ones_after_warm_up(env, updates):
    found = published.dhmbpo_curve(f"{env}-v5", updates)
    assert found is not None
    assert TASKS[env].warmup_steps == published.DHMBPO_WARMUP
    own = [row for row in rows("dhmbpo_curves") if row["env"] == env and row["variant"] == f"UTD{updates}"]
    assert found.steps.tolist() == [5000, 15_000, 25_000, 45_000, 70_000, 95_000, 145_000, 195_000]
    assert found.mean.tolist() == [float(row["mean"]) for row in own]
    np.testing.assert_allclose((found.high - found.low) / 2, [float(row["std"]) for row in own])
    np.testing.assert_allclose((found.high + found.low) / 2, found.mean)
    assert {str(found.seeds)} == {row["n_seeds"] for row in own}
    assert found.half_bin == 0.0
    assert (
        f"{found.seeds} seeds, mean ± standard deviation; its {env} differs slightly from Gymnasium's v5 ("
        in found.note
    )


def test_dhmbpos_curve_has_one_update_per_step_by_default():
    found, twice = published.curve("Hopper-v5", "dhmbpo"), published.dhmbpo_curve("Hopper-v5", 2)
    assert found is not None
    assert twice is not None
    assert (found.mean[2], found.high[2] - found.mean[2]) == pytest.approx((3171.2, 399.9))
    assert twice.mean[-1] == pytest.approx(3773, abs=1)
    assert (found.label, twice.label) == ("DHMBPO as published", "DHMBPO as published, 2 updates per step")
    assert published.dhmbpo_curve("Hopper-v5", 4) is None
    assert published.dhmbpo_curve("Pusher-v5") is None
    assert published.curve("Hopper-v5", "dhmbpo", "ablation") is None
    assert published.curve("Hopper-v5", "pdml-dhmbpo") is None  # nobody has published any


def test_every_method_of_the_paper_has_its_name_and_every_name_its_data():
    names = {name: method.paper_name for name, method in METHODS.items() if method.paper_name}
    assert set(names) == set(METHODS) - {"maper-mbpo-model", "dhmbpo", "pdml-dhmbpo"}
    known = {row["method"] for table in ("curves", "figure2_digitised") for row in rows(table)}
    assert set(names.values()) <= known
    assert names["pdml"] == published.OWN_METHOD


def test_every_number_of_the_tables_is_a_number():
    for name in ("curves", "figure2_digitised", "mixture_weights", "dhmbpo_curves"):
        for row in rows(name):
            for column, text in row.items():
                assert column in ("figure", "env", "method", "variant") or np.isfinite(float(text))
