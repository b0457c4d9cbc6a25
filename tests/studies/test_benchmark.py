"""Benchmarks: FLOP counts of the design, what they report, and that no update computes more than it must."""

import io
import json
import math
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import tiny_of

from pdml.cli import main
from pdml.config.defaults import defaults
from pdml.config.fields import change
from pdml.core.errors import RunError
from pdml.dhmbpo.fit import ADAM, StandardisedRows
from pdml.dhmbpo.learner import empty_state_buffer
from pdml.envs.episode import Step
from pdml.envs.termination_fns import RULES
from pdml.runs.device import cpu_model, device_name
from pdml.studies import bench_jobs, bench_phases, benchmark


@pytest.mark.slow
def test_gflop_counts_are_those_of_the_design():
    assert bench_phases._sac_update()[0] == pytest.approx(0.57, abs=0.005)
    assert bench_phases._ensemble_step()[0] == pytest.approx(1.37, abs=0.005)


@pytest.mark.slow
def test_gflop_counts_of_dhmbpo_are_those_of_the_lean_update():
    assert bench_phases._standardised_step()[0] == pytest.approx(3.38, abs=0.01)
    assert bench_phases._training_update(critics_only=False)[0] == pytest.approx(3.82, abs=0.01)
    assert bench_phases._training_update(critics_only=True)[0] == pytest.approx(1.94, abs=0.01)
    assert bench_phases._distribution_rollouts()[0] == pytest.approx(2.80, abs=0.01)


def products_in(jaxpr):
    """Count the FLOP of all products, those of a loop without a fixed length once."""
    flop = 0.0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0][0]
            shape = eqn.invars[0].aval.shape
            flop += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracted)
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            flop += times * products_in(inner) if hasattr(inner, "eqns") else 0.0
    return flop


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["all_networks", "critics_only", "distribution_rollouts", "train_epoch"])
def test_dhmbpo_computes_no_more_products_than_its_mathematics_needs(phase):
    """Gradients of frozen networks, or a second network per row, would each add 5 % and more; layer norms add 1 %."""
    bench = bench_phases._hopper("dhmbpo")
    update_phase, dynamics = bench.parts.recipe.update_phase, bench.parts.model.dynamics
    model, agent = bench.model(), bench.agent()
    buffer, key, one = empty_state_buffer(bench.config, bench.layout, 0), jax.random.key(0), np.int32(1)
    if phase == "distribution_rollouts":
        gflop, _ = bench_phases._distribution_rollouts()
        call, args = update_phase.compiled[phase], (agent.actor, model, buffer, buffer.rows[None, :256], one, key)
    elif phase == "train_epoch":
        gflop, _ = bench_phases._standardised_step()
        rows = StandardisedRows(jnp.zeros((600, 14)), jnp.zeros((600, 12)), jnp.ones((600, 8)))
        network = (model.network, ADAM.init(model.network), rows, np.zeros((6, 512), np.int32), one, np.float32(0))
        call, args = dynamics.compiled["train_epoch"], (*network, key)
    else:
        gflop, _ = bench_phases._training_update(critics_only=phase == "critics_only")
        call, args = update_phase.compiled[phase], (*update_phase.begin(agent, model), model, buffer, one, key)
    found = products_in(jax.make_jaxpr(call)(*args)) / 1e9
    assert found == pytest.approx(gflop, rel=0.02)


SMALLER = {
    "agent.hidden_sizes": (64, 64),
    "dynamics.hidden_sizes": (64, 64),
    "dynamics.weight_decay": (1e-5, 1e-5, 1e-5),
    "dynamics.num_members": 2,
    "dynamics.num_elites": 2,
    "double.dropout": (0.0, 0.0),
    "double.near": 2,
}


@pytest.mark.slow
def test_bench_reports_every_phase(monkeypatch):
    """On smaller networks: the numbers of the design are tested above."""
    monkeypatch.setattr(bench_phases, "defaults", lambda env, method="pdml": change(defaults(env, method), SMALLER))
    reweight, score, peak = bench_phases._reweight, bench_phases._score, benchmark.matmul_peak
    diagnose = bench_phases._diagnose
    monkeypatch.setattr(benchmark, "matmul_peak", lambda: peak(size=256))
    monkeypatch.setattr(bench_phases, "_reweight", lambda policies: reweight(policies=20))
    monkeypatch.setattr(bench_phases, "_score", lambda which: score(which, rows=5000))
    monkeypatch.setattr(bench_phases, "_diagnose", lambda: diagnose(steps=100))
    result = benchmark.measure(threads=1, repeats=1)
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
        assert row["gflops"] == pytest.approx(1e3 * row["gflop"] / row["ms"], rel=0.1, abs=0.05)  # rounded to 0.1
    assert json.loads(json.dumps(result)) == result
    assert result["device"] == device_name()
    assert benchmark.phase_table(result).startswith(f"device cpu, {cpu_model()}\n")
    assert benchmark.phase_table(result).count("\n") == 2 + len(result["phases"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["per-mbpo", "dhmbpo"])
def test_a_methods_cost_stands_next_to_mbpos(method, monkeypatch):
    """On the tiny programs that other tests compile too."""
    monkeypatch.setattr(benchmark, "defaults", lambda env, method="pdml": tiny_of(method))
    monkeypatch.setattr(benchmark, "RULES", {"Hopper": RULES["InvertedPendulum"]})
    result = benchmark.measure_method(method, threads=1, rows=200, repeats=1)
    phases = {row["phase"]: row for row in result["phases"]}
    assert list(phases) == ["collect", "weigh", "fit", "imagine", "refine", "improve", "total"]
    assert all(row["ms"] >= 0 and row["base_ms"] >= 0 for row in phases.values())
    assert phases["improve"]["ms"] > 0
    assert phases["fit"]["base_ms"] > 0
    assert (result["method"], result["base"]) == (method, "mbpo")
    assert result["ratio"] == pytest.approx(phases["total"]["ms"] / phases["total"]["base_ms"], rel=0.01)
    assert f"{method} costs" in benchmark.method_table(result)
    assert benchmark.method_table(result).startswith(f"device {device_name()}\n")


@pytest.mark.slow
def test_settings_are_measured_beside_the_method_without_them(monkeypatch):
    """Twenty times as many updates must show, whatever else the machine does."""
    monkeypatch.setattr(benchmark, "defaults", lambda env, method="pdml": tiny_of(method))
    monkeypatch.setattr(benchmark, "RULES", {"Hopper": RULES["InvertedPendulum"]})
    more = {"updates_per_step": 20 * tiny_of("dhmbpo").learning.updates_per_step}
    name = f"dhmbpo-updates_per_step={more['updates_per_step']}"
    result = benchmark.measure_method("dhmbpo", 1, more, rows=200, repeats=1)
    assert (result["method"], result["base"]) == (name, "dhmbpo")
    (improve,) = (row for row in result["phases"] if row["phase"] == "improve")
    assert improve["ms"] > 2 * improve["base_ms"]
    table = benchmark.method_table(result).splitlines()
    assert table[2].split() == ["phase", f"{name},", "ms", "dhmbpo,", "ms"]
    assert len({len(line) for line in table[2:-1]}) == 1
    assert table[-1].endswith(f"costs {result['ratio']:.3f} times as much as dhmbpo")


@pytest.mark.slow
def test_the_epochs_that_are_asked_for_are_those_that_are_measured(monkeypatch):
    monkeypatch.setattr(benchmark, "defaults", lambda env, method="pdml": tiny_of(method))
    monkeypatch.setattr(benchmark, "RULES", {"Hopper": RULES["InvertedPendulum"]})
    seen = []
    wire = benchmark.wire
    monkeypatch.setattr(benchmark, "wire", lambda config, *rest: seen.append(config.dynamics) or wire(config, *rest))
    for changes in ({}, {"dynamics.max_epochs": 3}):
        benchmark.step_times("mbpo", 200, changes)
    assert [(dynamics.max_epochs, dynamics.patience) for dynamics in seen] == [(10, 10), (3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("block", "walked"), [(5, 5), (20, 20), (60, 20)])
def test_every_call_walks_through_one_block_and_no_further(block, walked, monkeypatch):
    monkeypatch.setattr(benchmark, "defaults", lambda env, method="pdml": tiny_of(method))
    monkeypatch.setattr(benchmark, "RULES", {"Hopper": RULES["InvertedPendulum"]})
    spans = []

    def train(state, env, training, until, after_step):
        spans.append((state.step, until))
        obs, action = state.episode.obs, np.zeros(1, np.float32)
        after_step(state, Step(obs, action, 0.0, obs, terminated=False, finished=None))
        return replace(state, step=until)

    monkeypatch.setattr(benchmark, "train", train)
    go = benchmark.step_times("mbpo", 200, {"model_every": block})
    go()
    go()
    (first, _), (second, _) = spans
    assert [until - step for step, until in spans] == [walked, walked]
    assert second - first == block


def test_the_command_hands_over_the_settings(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(benchmark, "measure_method", lambda *words: asked.append(words) or {"ratio": 1.0})
    monkeypatch.setattr("pdml.cli.info.prepare", lambda threads: threads or 2)
    words = ["bench", "--method", "dhmbpo", "--json", "--threads", "1"]
    assert main([*words, "--set", "double.near=9", "dynamics.weight-decay=1e-5,1e-5,1e-5,1e-5"]) == 0
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"ratio": 1.0}
    changed = {"double.near": 9, "dynamics.weight_decay": (1e-5,) * 4}
    assert asked == [("dhmbpo", 1, changed), ("dhmbpo", 1, {})]


FAKE_RUN = """
import os, sys, time
method, threads = sys.argv[1], int(sys.argv[2])
print("ready on cpu, a model", flush=True)
assert sys.stdin.readline() == "go\\n"
print(10.0 if threads == 2 else 12.5, flush=True)
"""


def test_the_throughput_of_pinned_runs_is_the_sum_of_theirs(monkeypatch):
    monkeypatch.setattr(bench_jobs, "COMMAND", (sys.executable, "-c", FAKE_RUN))
    result = bench_jobs.measure_jobs("pdml", 2)
    assert result["one_run_steps_per_second"] == 100.0
    assert result["pinned_steps_per_second"] == [80.0, 80.0]
    assert result["ratio"] == 1.6
    assert json.loads(json.dumps(result)) == result
    assert bench_jobs.jobs_table(result).startswith("device cpu, a model\n")
    assert "2 pinned runs do 1.60 times as much as one run with 2 threads" in bench_jobs.jobs_table(result)


def test_a_run_of_the_benchmark_that_fails_ends_it(monkeypatch):
    monkeypatch.setattr(
        bench_jobs, "COMMAND", (sys.executable, "-c", "print('ready on cpu, a model'); raise SystemExit(1)")
    )
    with pytest.raises(RunError, match="a run of the benchmark ended early"):
        bench_jobs.measure_jobs("pdml", 2)


@pytest.mark.slow
def test_a_run_of_the_benchmark_measures_a_step_when_it_is_told_to(monkeypatch, capsys):
    """On the tiny programs that other tests compile too."""
    monkeypatch.setattr(benchmark, "defaults", lambda env, method="pdml": tiny_of(method))
    monkeypatch.setattr(benchmark, "RULES", {"Hopper": RULES["InvertedPendulum"]})
    monkeypatch.setattr(bench_jobs, "prepare", lambda threads: threads)
    for told, lines in (("go\n", 2), ("", 1)):  # the second: whoever measures has gone
        monkeypatch.setattr(sys, "stdin", io.StringIO(told))
        bench_jobs.serve("pdml", threads=1, rows=200, repeats=2)
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"ready on {device_name()}"
        assert len(said) == lines
    monkeypatch.setattr(sys, "stdin", io.StringIO("go\n"))
    bench_jobs.serve("pdml", threads=1, rows=200, repeats=1)
    assert float(capsys.readouterr().out.splitlines()[1]) > 0


def test_the_command_measures_the_default_method(monkeypatch, capsys):
    asked = []
    result = {"device": "cpu, a model", "method": "pdml", "jobs": 2, "real_rows": 5000, "one_run_steps_per_second": 1.0}
    result |= {"pinned_steps_per_second": [1.0, 1.0], "ratio": 2.0}
    monkeypatch.setattr(bench_jobs, "measure_jobs", lambda *words: asked.append(words) or result)
    assert main(["bench", "--jobs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["bench", "--jobs", "2", "--method", "mbpo"]) == 0
    assert asked == [("pdml", 2), ("mbpo", 2)]
