"""Kept outputs of `pdml bench` as tables."""

import pytest

from pdml.cli import main

PHASES = """peak 102.3 GFLOP/s with 1 thread(s)
phase                     ms     GFLOP   GFLOP/s  % of peak
sac_update              6.95      0.57      81.9       81.1
some_update            19.25      1.37      71.3       70.6
"""

METHOD = """a real step on Hopper with 20000 real rows, 2 thread(s)
phase                         dhmbpo, ms    mbpo, ms
collect                             0.26        0.80
weigh                               0.00        0.00
fit                                29.03       30.06
imagine                             0.00        1.71
refine                              0.00        0.00
improve                            43.20       74.97
total                              72.48      107.54
dhmbpo costs 0.674 times as much as mbpo
"""


@pytest.fixture
def speed(tmp_path, monkeypatch, capsys):
    """Return what the command prints about files of these texts."""

    def call(*texts):
        monkeypatch.chdir(tmp_path)
        names = [f"{i}.txt" for i in range(len(texts))]
        for name, text in zip(names, texts, strict=True):
            (tmp_path / name).write_text(text)
        code = main(["results", "speed", *names])
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return call


def test_phases_are_rows_and_outputs_are_columns(speed):
    two = PHASES.replace("1 thread", "2 thread").replace("6.95", "3.50").partition("some_update")[0]
    assert speed(two, PHASES).splitlines() == [
        "| phase (Hopper sizes, batch 256) | 2 threads, peak 102 GFLOP/s | 1 thread, peak 102 GFLOP/s |",
        "|---|---|---|",
        "| `sac_update`: one update of actor, critics and temperature, 0.57 GFLOP "
        "| 3.5 ms, 81 % of peak | 7.0 ms, 81 % of peak |",
        "| `some_update`, 1.37 GFLOP | – | 19.2 ms, 71 % of peak |",
    ]


JOBS = (
    '{"method": "pdml", "jobs": 2, "one_run_steps_per_second": 12.2, "pinned_steps_per_second": [7.04, 7.1], '
    '"ratio": 1.159}\n'
)


def test_pinned_runs_are_rows_one_per_line(speed):
    assert speed(JOBS + JOBS.replace("1.159", "1.3"), JOBS).splitlines() == [
        "| method | runs at a time | one run with as many threads | the pinned runs | together |",
        "|---|---|---|---|---|",
        "| `pdml` | 2 | 12.2 steps/s | 7.0 + 7.1 steps/s | 1.16 × |",
        "| `pdml` | 2 | 12.2 steps/s | 7.0 + 7.1 steps/s | 1.30 × |",
        "| `pdml` | 2 | 12.2 steps/s | 7.0 + 7.1 steps/s | 1.16 × |",
    ]
    assert "alone, without others" in speed(JOBS, PHASES)
    assert "0.txt': not an output of `pdml bench --jobs N --json`" in speed(JOBS + "{}\n")
    assert "0.txt': not an output of `pdml bench --jobs N --json`" in speed(JOBS + "no\n")


def test_methods_are_rows_with_what_they_are_beside_in_brackets(speed):
    other = METHOD.replace("dhmbpo", "redq").replace("0.674", "1.5")
    assert speed(METHOD, other).splitlines() == [
        "| method | times `mbpo` | weigh | fit | imagine | refine | improve | total |",
        "|---|---|---|---|---|---|---|---|",
        "| `dhmbpo` | 0.67 × | 0.0 (0.0) | 29.0 (30.1) | 0.0 (1.7) | 0.0 (0.0) | 43.2 (75.0) | 72.5 (107.5) |",
        "| `redq` | 1.50 × | 0.0 (0.0) | 29.0 (30.1) | 0.0 (1.7) | 0.0 (0.0) | 43.2 (75.0) | 72.5 (107.5) |",
    ]


def test_settings_stand_beside_the_method_without_them(speed):
    changed = METHOD.replace("  mbpo, ms", "  dhmbpo, ms").replace("as mbpo", "as dhmbpo")
    changed = changed.replace("phase                         dhmbpo, ms", "phase     dhmbpo-double.near=9, ms")
    assert speed(changed).splitlines()[0].startswith("| method | times `dhmbpo` |")
    assert speed(changed).splitlines()[2].startswith("| `dhmbpo-double.near=9` | 0.67 × | 0.0 (0.0) | 29.0 (30.1) |")
    assert speed(METHOD, changed) == "pdml: speed: give outputs beside one method, not mbpo and dhmbpo\n"


@pytest.mark.parametrize(
    "text",
    ["", "hello\n", PHASES.splitlines()[0], PHASES.replace(" 81.1", ""), METHOD.replace("fit", "sit"), METHOD[:-40]],
)
def test_other_files_are_named(text, speed):
    assert speed(text) == "pdml: speed = '0.txt': not an output of `pdml bench`\n"


def test_the_two_kinds_do_not_mix_and_files_must_exist(speed, capsys):
    assert speed(PHASES, METHOD) == (
        "pdml: speed: give outputs of `pdml bench` or of `pdml bench --method NAME`, not both\n"
    )
    assert main(["results", "speed", "nowhere.txt"]) == 2
    assert capsys.readouterr().err == "pdml: speed = 'nowhere.txt': cannot be read (FileNotFoundError)\n"
