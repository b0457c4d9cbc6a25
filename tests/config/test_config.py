"""Settings: the defaults are the paper's, values are read as people write them, mistakes are named in one sentence."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdml.config.defaults import defaults, rebase, require_task
from pdml.config.fields import change, different, get, leaves
from pdml.config.files import FORMAT, LATER, from_json, to_json
from pdml.config.methods import METHODS, PRESETS, Feature, readers
from pdml.config.parse import parse
from pdml.config.schema import Config
from pdml.config.tasks import env_ids
from pdml.config.validate import check, check_length
from pdml.core.errors import UserError


@pytest.mark.parametrize(
    ("env", "steps", "entropy", "schedule"),
    [
        ("Hopper-v5", 125_000, -1.0, (1, 15, 20, 100)),
        ("Walker2d-v4", 205_000, -3.0, (1, 1, 0, 1)),
        ("HalfCheetah-v5", 205_000, -3.0, (1, 1, 0, 1)),
        ("Ant-v5", 205_000, -4.0, (1, 25, 20, 100)),
        ("Humanoid-v4", 305_000, -2.0, (1, 25, 20, 300)),
        ("Pusher-v5", 35_000, -3.5, (1, 1, 0, 1)),
    ],
)
def test_defaults_are_the_papers(env, steps, entropy, schedule):
    settings = defaults(env)
    config, rollouts = settings.learning, settings.learning.rollouts
    assert (settings.run.steps, config.agent.target_entropy) == (steps, entropy)
    assert (rollouts.shortest, rollouts.longest, rollouts.first_epoch, rollouts.last_epoch) == schedule
    assert (config.updates_per_step, config.model_every, config.warmup_steps, config.real_ratio) == (
        20,
        250,
        5000,
        0.05,
    )
    assert (rollouts.batch, rollouts.max_rows, config.mixture.rate) == (100_000, 1_000_000, 0.02)


@pytest.mark.parametrize("env", env_ids())
@pytest.mark.parametrize(
    ("method", "preset"), [(m, p) for p, preset in PRESETS.items() for m in readers(preset.features)]
)
def test_every_default_is_valid_and_survives_json(env, method, preset):
    config = check(defaults(env, method, preset))
    assert from_json(to_json(config), "x") == config
    assert json.loads(to_json(config))["format"] == FORMAT


def test_every_field_has_a_help_text():
    assert all(leaf.help for leaf in leaves())


def test_methods_differ_from_mbpo_in_their_own_options_only():
    """Whatever a rival's default changes is one of these, all written down; everything else is shared."""
    double = {"model_every", "updates_per_step", "agent.hidden_sizes", "agent.gamma", "agent.first_temperature"}
    double |= {"agent.num_critics", "agent.target_entropy"}
    double |= {f"dynamics.{name}" for name in ("num_members", "hidden_sizes", "weight_decay", "batch_size")}
    double |= {f"dynamics.{name}" for name in ("holdout_max", "patience", "max_epochs")}
    own = {
        "dhmbpo": double,
        "pdml-dhmbpo": double | {"mixture.rate", "mixture.first_block"},
        "pdml-model-only": {"weigh"},
        "pdml-starts-only": {"weigh"},
        "maper-mbpo": {"priority.exponent", "priority.floor"},
        "maper-mbpo-model": {"priority.exponent", "priority.floor"},
        "vagram": {"rollouts.deterministic"},
        "sac": {"updates_per_step"},
    }
    mbpo = defaults("Hopper-v5", "mbpo")
    for method in METHODS:
        config = defaults("Hopper-v5", method)
        differ = {leaf.name for leaf in leaves() if get(config, leaf.name) != get(mbpo, leaf.name)} - {"method"}
        assert differ == own.get(method, set()), method


def test_released_changes_what_the_design_lists_for_every_method():
    listed = {
        "agent.temperature": 0.2,
        "agent.scaled_log_prob": True,
        "rollouts.deterministic": True,
        "rollouts.reward_penalty": 1.0,
        "rollouts.longest": 1,
        "mixture.std_as_covariance": True,
        "dynamics.train_bounds": False,
        "dynamics.restore_best": False,
        "dynamics.holdout_max": 1_000_000_000,
        "time_limit_terminates": True,
    }
    assert PRESETS["released"].changes == listed
    for method in readers((Feature.BRANCHES,)):
        paper, released = defaults("Hopper-v5", method), defaults("Hopper-v5", method, "released")
        for name, value in listed.items():
            if (name, method) == ("dynamics.train_bounds", "vagram"):
                continue  # it has no variance
            if not name.startswith("mixture") or method.startswith("pdml"):
                assert get(released, name) == value
        assert not released.learning.mixture.misaligned
        assert released.learning.throttle == paper.learning.throttle == 0.0


def test_another_method_keeps_the_departures_and_takes_its_own_defaults():
    changed = change(defaults("Hopper-v5", "pdml"), {"steps": 9000, "agent.gamma": 0.9})
    other = rebase(changed, "vagram", require_task("Hopper-v5"))
    assert (other.run.steps, other.learning.agent.gamma) == (9000, 0.9)
    assert other.learning.rollouts.deterministic
    assert rebase(other, "pdml", require_task("Hopper-v5")) == changed


def test_switches_are_typed_as_words():
    assert [parse("mixture.misaligned", text) for text in ("true", "False", "1", "no")] == [True, False, True, False]
    with pytest.raises(UserError, match="must be true or false"):
        parse("mixture.misaligned", "perhaps")


@given(st.floats(0.0, 0.999), st.integers(1, 10**6), st.lists(st.integers(1, 512), min_size=1, max_size=4))
def test_values_typed_on_the_command_line_read_back(rate, batch, sizes):
    assert parse("mixture.rate", repr(rate)) == rate
    assert parse("rollouts.batch", str(batch)) == batch
    assert parse("agent.hidden_sizes", ",".join(map(str, sizes))) == tuple(sizes)


def test_whole_numbers_may_be_written_as_people_do():
    assert parse("steps", "1e5") == parse("steps", "100_000") == 100_000
    assert parse("agent.temperature", "learned") is None
    assert parse("archive_at", "20000,40000") == (20_000, 40_000)
    assert parse("archive_at", "none") == ()


BAD = [
    ({"agent.first_temperature": 0.5, "agent.temperature": 0.2}, "agent.first_temperature = 0.5: does nothing with a"),
    ({"steps": 5000}, "steps = 5000: must be above the warm-up of 5000"),
    ({"steps": 0}, r"steps = 0: must lie in \[1, inf\)"),
    ({"seed": -1}, "seed = -1: must lie in"),
    ({"mixture.rate": 1.0}, r"mixture.rate = 1.0: must lie in \[0, 1\)"),
    ({"mixture.rate": -0.1}, "mixture.rate = -0.1: must lie in"),
    ({"mixture.rate": float("nan")}, "mixture.rate = nan: must lie in"),
    ({"agent.gamma": 1.0}, "agent.gamma = 1.0: must lie in"),
    ({"agent.temperature": 0.0}, "agent.temperature = 0.0: must lie in"),
    ({"agent.hidden_sizes": (256, 0)}, "agent.hidden_sizes = 0: must lie in"),
    ({"dynamics.num_elites": 8}, "dynamics.num_elites = 8: at most dynamics.num_members = 7"),
    ({"dynamics.hidden_sizes": (200,)}, "dynamics.weight_decay has 5 entries: must have one per layer, 2"),
    (
        {"dynamics.holdout": "fixd"},
        r"dynamics.holdout = 'fixd': unknown \(did you mean fixed\?\); allowed: fresh, fixed",
    ),
    (
        {"dynamics.target_norm": "deltas"},
        r"dynamics.target_norm = 'deltas': unknown \(did you mean delta\?\); allowed: none, delta, direct",
    ),
    ({"rollouts.longest": 3, "rollouts.shortest": 4}, "rollouts.longest = 3: at least rollouts.shortest = 4"),
    ({"rollouts.last_epoch": 20}, "rollouts.last_epoch = 20: must be above rollouts.first_epoch = 20"),
    ({"rollouts.max_rows": 10}, "rollouts.max_rows = 10: at least"),
    ({"replay_capacity": 300}, "replay_capacity = 300: at least two blocks"),
    ({"archive_at": (4000,)}, r"archive_at = 4000: must lie in \(5000, 125000\]"),
    ({"method": "mbpo", "mixture.rate": 0.1}, "mixture.rate: method 'mbpo' has no such option; it belongs to pdml, "),
    ({"mixture.decay": 0.9}, "mixture.decay: method 'pdml' has no such option; it belongs to decay-mbpo"),
    ({"method": "decay-mbpo", "mixture.decay": 0.0}, r"mixture.decay = 0.0: must lie in \(0, 1\]"),
    ({"method": "decay-mbpo", "mixture.decay": 1.01}, "mixture.decay = 1.01: must lie in"),
    ({"method": "decay-mbpo", "mixture.shift": "monte-carlo"}, "mixture.shift: method 'decay-mbpo' has no such option"),
    ({"mixture.shift": "montecarlo"}, r"'montecarlo': unknown \(did you mean monte-carlo\?\)"),
    ({"method": "pdml-model-only", "weigh": "both"}, "weigh: method 'pdml-model-only' fixes it at 'model'"),
    ({"method": "recall-mbpo", "priority.share": 0.0}, r"priority.share = 0.0: must lie in \(0, 1\]"),
    ({"method": "mbpo", "dynamics.holdout_weights": "weighted"}, "dynamics.holdout_weights: method 'mbpo' has no such"),
    (
        {"agent.num_critics": 5},
        "agent.num_critics: method 'pdml' has no such option; it belongs to dhmbpo, pdml-dhmbpo, redq",
    ),
]


BAD_ELSEWHERE = [
    ("sac", {"rollouts.batch": 10}, "rollouts.batch: method 'sac' has no such option; it belongs to the MBPO-family"),
    ("sac", {"real_ratio": 0.5}, "real_ratio: method 'sac' has no such option"),
    ("redq", {"dynamics.patience": 1}, "dynamics.patience: method 'redq' has no such option"),
    ("redq", {"agent.subset": 11}, "agent.num_critics = 10: at least agent.subset = 11"),
    ("vagram", {"rollouts.deterministic": False}, "rollouts.deterministic: method 'vagram' fixes it at 'true'"),
    ("vagram", {"vagram.quantile": 0.0}, "vagram.quantile = 0.0: must lie in"),
    ("ampo", {"ampo.stop_epoch": -2}, "ampo.stop_epoch = -2: must lie in"),
    ("vagram", {"dynamics.train_bounds": False}, "dynamics.train_bounds: method 'vagram' has no such option"),
    ("vagram", {"dynamics.target_norm": "delta"}, "dynamics.target_norm: method 'vagram' has no such option"),
    ("dhmbpo", {"dynamics.target_norm": "delta"}, "dynamics.target_norm: method 'dhmbpo' has no such option"),
    ("sac", {"dynamics.target_norm": "direct"}, "dynamics.target_norm: method 'sac' has no such option"),
    ("pdml-starts-only", {"mixture.misaligned": True}, "no weights reach the model when weigh = 'starts'"),
    ("pdml", {"weigh": "none", "dynamics.holdout_weights": "weighted"}, "no weights reach the model"),
    ("maper-mbpo", {"weigh": "model"}, "weigh: method 'maper-mbpo' has no such option"),
]


@pytest.mark.parametrize(("method", "changes", "sentence"), BAD_ELSEWHERE)
def test_options_of_other_methods_are_refused(method, changes, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        check(change(defaults("Hopper-v5", method), changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_bad_values_are_named_with_what_is_allowed(changes, sentence):
    base = defaults("Hopper-v5", changes.get("method", "pdml"))
    with pytest.raises(UserError, match=sentence) as caught:
        check_length(check(change(base, changes)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "not a configuration"),
        ("[]", "not a configuration"),
        ("{}", "not a configuration"),
        ('{"format": 99}', "format 99, this version reads format 2"),
        ('{"format": 2, "stepz": 3}', r"unknown field stepz \(did you mean steps\?\)"),
        ('{"format": 2, "agent": {"gama": 0.9}}', r"unknown field agent.gama \(did you mean gamma\?\)"),
        ('{"format": 2, "agent": 3}', "agent must be a group of fields"),
        ('{"format": 2, "steps": "many"}', "steps = 'many': must be a whole number"),
        ('{"format": 2, "env": 3}', "env = 3: must be a word"),
        ('{"format": 2, "seed": 1' + "0" * 400 + "}", "must be a whole number"),
        ('{"format": 2, "steps": true}', "steps = True: must be a whole number"),
    ],
)
def test_bad_files_are_named(text, sentence):
    with pytest.raises(UserError, match=sentence):
        from_json(text, "some.json")


def test_a_partial_file_takes_the_defaults_of_its_own_environment():
    partial = from_json('{"format": 2, "env": "Walker2d-v5", "steps": 300000}', "x")
    assert partial == change(defaults("Walker2d-v5"), {"steps": 300_000})


def test_a_file_of_an_older_version_does_not_take_over_a_new_default(monkeypatch):
    """Its run had no bound, whatever the method's default has become since."""
    data = json.loads(to_json(defaults("Hopper-v5", "dhmbpo")))
    for name in LATER:
        group, _, inner = name.rpartition(".")
        del (data[group] if group else data)[inner]
    changed = {**METHODS["dhmbpo"].changes, "double.kl_bound": 8.9, "agent.exploration": "pink"}
    monkeypatch.setitem(METHODS, "dhmbpo", METHODS["dhmbpo"]._replace(changes=changed))
    assert defaults("Hopper-v5", "dhmbpo").learning.double.kl_bound == 8.9
    older = from_json(json.dumps(data), "x").learning
    assert (older.double.kl_bound, older.agent.exploration) == (0.0, "white")
    assert different(from_json(json.dumps(data), "x"), defaults("Hopper-v5", "dhmbpo")) == [
        "agent.exploration",
        "double.kl_bound",
    ]
    del data["env_timeout"]  # another setting that it does not know
    assert from_json(json.dumps(data), "x").learning.double.kl_bound == 0.0
    by_hand = from_json('{"format": 2, "env": "Hopper-v5", "method": "dhmbpo"}', "x")
    assert by_hand == defaults("Hopper-v5", "dhmbpo")


def test_configuration_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().seed = 3  # pyright: ignore
