import json

import pytest

from pdml import bench
from pdml.config import change


def test_gflop_counts_are_those_of_the_design():
    assert bench._sac_update()[0] == pytest.approx(0.57, abs=0.005)
    assert bench._ensemble_step()[0] == pytest.approx(1.37, abs=0.005)


def test_gflop_counts_of_double_horizon_learning_are_those_of_the_lean_update():
    assert bench._smooth_model_step()[0] == pytest.approx(3.38, abs=0.01)
    assert bench._near_update(alone=False)[0] == pytest.approx(3.82, abs=0.01)
    assert bench._near_update(alone=True)[0] == pytest.approx(1.94, abs=0.01)
    assert bench._far_rollout()[0] == pytest.approx(2.80, abs=0.01)


@pytest.mark.slow
def test_bench_reports_every_phase(monkeypatch):
    monkeypatch.setattr(bench, "PEAK_SIZE", 256)
    reweight = bench._reweight
    monkeypatch.setattr(bench, "_reweight", lambda policies: reweight(policies=20))
    score = bench._score
    monkeypatch.setattr(bench, "_score", lambda which: score(which, rows=5000))
    result = bench.measure(threads=1, repeats=1)
    assert [row["phase"] for row in result["phases"]] == [
        "sac_update",
        "ensemble_step",
        "imagine_100k",
        "reweight_1200",
        "td_errors_100k",
        "values_100k",
        "model_errors_100k",
        "diagnose_1000",
        "smooth_model_step",
        "near_update",
        "near_critic_update",
        "far_rollout",
    ]
    for row in result["phases"]:
        assert set(row) == {"phase", "ms", "gflop", "gflops", "percent_of_peak"}
        assert row["gflops"] == pytest.approx(1e3 * row["gflop"] / row["ms"], rel=0.1)
    assert json.loads(json.dumps(result)) == result
    assert bench.table(result).count("\n") == 1 + len(result["phases"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["per-mbpo", "dhmbpo"])
def test_a_methods_cost_stands_next_to_mbpos(method, monkeypatch):
    from conftest import tiny_of

    monkeypatch.setattr(bench, "defaults", lambda env, method="pdml": change(tiny_of(method), {"env": env}))
    result = bench.measure_method(method, threads=1, rows=200, repeats=1)
    phases = {row["phase"]: row for row in result["phases"]}
    assert list(phases) == ["collect", "weigh", "fit", "imagine", "refine", "improve", "total"]
    assert all(row["ms"] >= 0 and row["mbpo_ms"] >= 0 for row in phases.values())
    assert phases["improve"]["ms"] > 0
    assert phases["fit"]["mbpo_ms"] > 0
    assert result["ratio"] == pytest.approx(phases["total"]["ms"] / phases["total"]["mbpo_ms"], rel=0.01)
    assert f"{method} costs" in bench.method_table(result)
