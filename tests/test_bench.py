import json

import pytest

from pdml import bench


def test_gflop_counts_are_those_of_the_design():
    assert bench._sac_update()[0] == pytest.approx(0.57, abs=0.005)
    assert bench._ensemble_step()[0] == pytest.approx(1.37, abs=0.005)


@pytest.mark.slow
def test_bench_reports_every_phase(monkeypatch):
    monkeypatch.setattr(bench, "PEAK_SIZE", 256)
    reweight = bench._reweight
    monkeypatch.setattr(bench, "_reweight", lambda policies: reweight(policies=20))
    result = bench.measure(threads=1, repeats=1)
    assert [row["phase"] for row in result["phases"]] == [
        "sac_update",
        "ensemble_step",
        "imagine_100k",
        "reweight_1200",
    ]
    for row in result["phases"]:
        assert set(row) == {"phase", "ms", "gflop", "gflops", "percent_of_peak"}
        assert row["gflops"] == pytest.approx(1e3 * row["gflop"] / row["ms"], rel=0.1)
    assert json.loads(json.dumps(result)) == result
    assert bench.table(result).count("\n") == 5
