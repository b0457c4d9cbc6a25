"""The command that looks for good settings: tune."""

import argparse
import sys
from pathlib import Path
from typing import Any

from pdml.cli.sweep import add_choices, chosen_study
from pdml.config.parse import whole
from pdml.config.schema import FIRST_TUNING_SEED
from pdml.core.signals import Stopped


def add_commands(commands: Any) -> None:
    """Add the command; what it needs is imported when it runs."""
    parser = commands.add_parser("tune", help="look for good settings of one method on one environment")
    parser.description = (
        "Try settings that Optuna proposes, each as ordinary runs, of which the worse ones stop early. The\n"
        "best settings end in OUT/best.json, for pdml train --config. Ctrl-C saves and stops all; the same command\n"
        "resumes. The seeds are 1000-1001, or others from 1000 on that the study or --seeds names: results are\n"
        "reported on smaller ones.\n"
        "A field is name=low..high (log scale from a factor of ten on) or name=a|b|c."
    )
    parser.add_argument("--field", metavar="NAME=LOW..HIGH", action="append", required=True, help="a setting to tune")
    parser.add_argument("--trials", metavar="N", required=True, help="how many choices of settings to try in all")
    add_choices(parser)
    parser.set_defaults(run=_tune)


def _tune(options: argparse.Namespace) -> int:
    from pdml.runs.device import physical_cores
    from pdml.sweeps.cost import costs, jobs_in_memory, require_disk, require_memory
    from pdml.sweeps.tune import (
        BEST,
        best_trial,
        describe_values,
        new_tuning,
        require_optuna,
        trial_runs,
        tune,
    )
    from pdml.sweeps.tuned_field import first_values

    trials = whole("trials", options.trials, most=100_000)
    jobs = physical_cores() if options.jobs is None else whole("jobs", options.jobs)
    study = chosen_study(options)
    if options.seeds is None and min(study.seeds) < FIRST_TUNING_SEED:
        study = study._replace(seeds=(FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1))
    out = options.out or Path("tune") / study.name
    tuning = new_tuning(study, options.field, out)
    require_optuna()
    runs = trial_runs(tuning, first_values(tuning.fields), None)
    needed = costs(runs, out)
    require_disk(runs * trials, needed * trials, out)
    jobs = jobs_in_memory(needed * jobs, jobs) if options.jobs is None else jobs
    require_memory(needed * jobs, jobs)
    print(f"{study.name}: {trials} trials of {len(study.seeds)} runs in {out}, compared at steps {tuning.rungs}")
    try:
        ended = tune(tuning, trials, jobs, lambda line: print(line, flush=True))
    except Stopped as stopped:
        print(f"pdml: stopped ({stopped}); the same command resumes", file=sys.stderr)
        return 128 + stopped.number
    best = best_trial(ended)
    if best is None:
        print("pdml: no trial went all the way; see the lines above", file=sys.stderr)
        return 1
    print(f"best: trial {best.number}  {describe_values(best.values)}  return {best.value:,.1f}")
    print(f"done: {out / BEST}; train with: pdml train --config {out / BEST}")
    return 0
