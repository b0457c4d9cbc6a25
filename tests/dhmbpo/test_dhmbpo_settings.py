"""Settings of DHMBPO: sizes that do not fit are refused, and the published profile is the published one."""

import csv

import pytest
from tiny import TINY, TINY_DOUBLE, tiny_of

from pdml.cli import main
from pdml.config.defaults import defaults
from pdml.config.fields import change, get
from pdml.config.files import read_config
from pdml.config.validate import check
from pdml.core.errors import UserError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 33}, "batch_size = 33: must be a multiple of dynamics.num_members = 2"),
        (
            {"double.dropout": (0.1, 0.1)},
            "double.dropout has 2 entries: must have one per hidden layer of the model, 1",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        check(change(tiny_of("dhmbpo"), changes))


PUBLISHED = {
    "warmup_steps": 5000,
    "model_every": 1000,
    "updates_per_step": 1,
    "batch_size": 256,
    "replay_capacity": 1_000_000,
    "agent.hidden_sizes": (256, 256, 256),
    "agent.learning_rate": 3e-4,
    "agent.gamma": 0.995,
    "agent.tau": 0.005,
    "agent.temperature": None,
    "agent.first_temperature": 0.1,
    "agent.target_entropy": -3.0,
    "agent.num_critics": 5,
    "agent.subset": 2,
    "dynamics.num_members": 8,
    "dynamics.hidden_sizes": (256, 256, 256),
    "dynamics.learning_rate": 1e-3,
    "dynamics.weight_decay": (2.5e-4, 5e-4, 7.5e-4, 1e-3),
    "dynamics.batch_size": 2048,
    "dynamics.holdout_ratio": 0.2,
    "dynamics.holdout_max": 12_288,
    "dynamics.patience": 124,
    "dynamics.max_epochs": 621,
    "double.far": 20,
    "double.near": 5,
    "double.refresh": 20,
    "double.retain": 10,
    "double.clear": False,
    "double.critic_share": 0.25,
    "double.critic_dropout": 1e-3,
    "double.bound_quantile": 0.01,
    "double.bound_rate": 3e-4,
    "double.dropout": (0.0075, 0.005, 0.0025),
    "double.noise_decay": 1e-2,
    "double.reward_noise": 1e-3,
    "double.epoch_batches": 6,
    "double.judge_every": 1,
    "double.significance": 0.1,
    "double.first_factor": 5,
}
"""On Hopper [Kubo et al. 2025, its configuration files]."""


@pytest.mark.slow
def test_the_published_profile_is_the_published_one(tmp_path):
    settings = defaults("Hopper-v5", "dhmbpo", "published")
    assert {name: get(settings, name) for name in PUBLISHED} == PUBLISHED
    ours = defaults("Hopper-v5", "dhmbpo")
    other = {name for name in PUBLISHED if get(ours, name) != PUBLISHED[name]}
    assert other == {f"dynamics.{name}" for name in ("batch_size", "holdout_max", "patience", "max_epochs")} | {
        "double.judge_every"
    }
    small = {name: value for name, value in TINY_DOUBLE.items() if not name.startswith("dynamics.pat")}
    small |= {
        name: TINY[name] for name in ("warmup_steps", "model_every", "agent.hidden_sizes", "dynamics.hidden_sizes")
    }
    small |= {"steps": 61, "eval_episodes": 0, "dynamics.weight_decay": (1e-3, 1e-3), "dynamics.max_epochs": 3}
    words = [
        f"--{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}" for name, value in small.items()
    ]
    first = ["train", "--env", "Hopper-v5", "--method", "dhmbpo", "--preset", "published"]
    assert main([*first, *words, "--run-dir", str(tmp_path / "run")]) == 0
    assert read_config(tmp_path / "run" / "config.json") == change(settings, small)
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert next(row["model/epochs"] for row in csv.DictReader(file)) == "6.0"  # twice as many in the first fit
    walker = defaults("Walker2d-v5", "dhmbpo", "published").learning.dynamics
    assert (walker.patience, walker.max_epochs) == (144, 722)
    with pytest.raises(UserError, match="preset = 'published': is for dhmbpo, pdml-dhmbpo; method is 'pdml'"):
        defaults("Hopper-v5", "pdml", "published")
