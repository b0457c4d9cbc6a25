"""Studies: what ships, what a file may say, what the command line changes, and one line for each mistake."""

import pytest

from pdml.config.tasks import TASKS, env_ids
from pdml.core.errors import UserError
from pdml.sweeps.study import KEYS, MOST_SEEDS, SHIPPED, Arm, override, parse_seeds, read_study, shipped_studies

MINIMAL = 'envs = ["Hopper-v5"]\nmethods = ["pdml"]\n'

FULL = """
summary = "all keys at once"
envs = ["Hopper-v5", "Walker2d-v5"]
methods = ["mbpo"]
seeds = [3, 5]
diagnose = true
archive_at = [6000, 7000]

[steps]
Hopper-v5 = 8000

[settings]
agent.hidden_sizes = ["64,64", "32"]
agent.gamma = 0.9

[[arms]]
method = "pdml"
[arms.settings]
mixture.rate = [0.1, 0.3]
agent.gamma = 0.95
"""


@pytest.fixture
def written(tmp_path):
    """Write a study's file and return its path as a text."""

    def write(text):
        (tmp_path / "mine.toml").write_text(text)
        return str(tmp_path / "mine.toml")

    return write


def arms_of(study):
    return [(arm.method, arm.settings) for arm in study.arms]


def test_every_figure_and_table_of_the_paper_has_a_study():
    studies = shipped_studies()
    assert tuple(studies) == SHIPPED
    assert {len(study.seeds) for study in studies.values()} == {8}  # as in the paper
    for name, study in studies.items():
        assert study.name == name
        assert study.summary
        assert set(study.envs) <= set(env_ids())
    six = {f"{name}-v5" for name in TASKS} - {"InvertedPendulum-v5"}
    assert set(studies["comparison"].envs) == set(studies["overhead"].envs) == six


def test_each_shipped_file_is_a_study_of_the_list():
    from importlib.resources import files

    names = {file.name for file in (files("pdml.sweeps") / "studies").iterdir() if file.name.endswith(".toml")}
    assert names == {f"{name}.toml" for name in SHIPPED}


def test_shipped_studies_have_the_papers_arms():
    studies = shipped_studies()
    assert [arm.method for arm in studies["comparison"].arms] == ["pdml", "mbpo", "ampo", "vagram", "redq", "sac"]
    assert [arm.method for arm in studies["replay"].arms] == ["pdml", "mbpo", "per-mbpo", "recall-mbpo", "maper-mbpo"]
    assert arms_of(studies["decay"])[-1] == ("decay-mbpo", {"mixture.decay": (0.98, 0.995, 0.997, 0.999)})
    assert arms_of(studies["rate"]) == [("pdml", {"mixture.rate": (0.02, 0.1, 0.3, 0.5, 0.7)})]
    assert studies["model-error"].diagnose
    assert [at - 5000 for at in studies["converged"].archive_at] == [20_000, 40_000, 60_000, 80_000, 100_000]


def test_a_file_may_have_every_key(written):
    study = read_study(written(FULL))
    assert study.name == "mine"
    assert study.summary == "all keys at once"
    assert study.envs == ("Hopper-v5", "Walker2d-v5")
    assert study.seeds == (3, 5)
    assert (study.steps, study.steps_by_env) == (None, {"Hopper-v5": 8000})
    assert (study.diagnose, study.archive_at) == (True, (6000, 7000))
    shared = {"agent.hidden_sizes": ((64, 64), (32,)), "agent.gamma": (0.9,)}
    assert arms_of(study) == [
        ("mbpo", shared),
        ("pdml", {**shared, "agent.gamma": (0.95,), "mixture.rate": (0.1, 0.3)}),
    ]


def test_what_a_file_leaves_out_has_a_default(written):
    study = read_study(written(MINIMAL))
    assert study.arms == (Arm("pdml", {}),)
    assert study.seeds == (0,)
    assert (study.steps, study.steps_by_env, study.diagnose, study.archive_at) == (None, {}, False, ())


def test_values_are_read_by_the_type_of_their_setting(written):
    text = MINIMAL + '[settings]\n"agent.tau" = 1\nbatch_size = 1e2\nweigh = "model"\nagent.temperature = "learned"\n'
    text += "mixture.misaligned = [true, false]\nagent.hidden_sizes = 64\n"
    settings = read_study(written(text)).arms[0].settings
    assert settings == {
        "agent.tau": (1.0,),
        "batch_size": (100,),
        "weigh": ("model",),
        "agent.temperature": (None,),
        "mixture.misaligned": (True, False),
        "agent.hidden_sizes": ((64,),),
    }
    assert isinstance(settings["agent.tau"][0], float)
    assert isinstance(settings["batch_size"][0], int)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("envs = [\n", "not valid TOML, .*line 1"),
        (MINIMAL + "seeds == 3\n", "not valid TOML, .*line 3"),
        (MINIMAL + "envs = []\n", "not valid TOML, .*line 3"),
        (MINIMAL + "sedes = 3\n", r"unknown key sedes \(did you mean seeds\?\); allowed: .*seeds"),
        ('methods = ["pdml"]\n', "envs = .*must be a list of names, at least one"),
        ('envs = ["Hopper-v5"]\n', "methods: needs at least one"),
        ('envs = "Hopper-v5"\nmethods = ["pdml"]\n', "envs = 'Hopper-v5': must be a list"),
        ('envs = ["Hopper-v5", "Hopper-v5"]\nmethods = ["pdml"]\n', "envs: Hopper-v5 is there twice"),
        ('envs = ["Hopper-v5"]\nmethods = ["pdlm"]\n', r"method = 'pdlm': unknown \(did you mean pdml\?\)"),
        (MINIMAL + '[[arms]]\nmethod = "mpbo"\n', r"method = 'mpbo': unknown \(did you mean mbpo\?\)"),
        (MINIMAL + "[[arms]]\n", "arms: each needs method"),
        (MINIMAL + "arms = 3\n", r"arms: must be tables"),
        (
            MINIMAL + '[[arms]]\nmethod = "mbpo"\nsetings = 3\n',
            r"arms: unknown key setings \(did you mean settings\?\)",
        ),
        (MINIMAL + "[settings]\nmixture.rat = 0.1\n", r"mixture.rat: unknown setting \(did you mean mixture.rate\?\)"),
        (MINIMAL + "[settings]\nmixture = 0.1\n", "mixture = 0.1: is a group"),
        (MINIMAL + "[settings]\nmixture.rate.x = 1\n", "mixture.rate = .*must be a number"),
        (MINIMAL + '[settings]\nmixture.rate = "fast"\n', "': mixture.rate = 'fast': must be a number"),
        (MINIMAL + "[settings]\nmixture.rate = []\n", "mixture.rate = .*at least one value"),
        (MINIMAL + "[settings]\nmixture.rate = [0.1, 1e-1]\n", "mixture.rate: 0.1 is there twice"),
        (MINIMAL + "[settings]\nmixture.rate = 2020-01-01\n", "mixture.rate = .*must be a number"),
        (MINIMAL + "[settings]\nagent.hidden_sizes = [[64, 64]]\n", "several numbers are a text"),
        (MINIMAL + "[settings]\nseed = 3\n", "seed has a key of its own, seeds"),
        (MINIMAL + "[settings]\nsteps = 3\n", "steps has a key of its own, steps"),
        (MINIMAL + "settings = 3\n", "settings: must be a table"),
        (MINIMAL + 'seeds = "0-"\n', "seeds = '0-': must be whole numbers or ranges"),
        (MINIMAL + "seeds = 3\n", "seeds = 3: must be a range"),
        (MINIMAL + "seeds = [1, 1]\n", "seeds: 1 is there twice"),
        (MINIMAL + "seeds = [-1]\n", r"seeds = '-1': must be a whole number in \[0"),
        (MINIMAL + "seeds = [true]\n", "seeds = True: must be a whole number"),
        (MINIMAL + "steps = 1.5\n", "steps = 1.5: must be a whole number"),
        (MINIMAL + "steps = 0\n", "steps = '0': must be a whole number in"),
        (MINIMAL + "[steps]\nHoper-v5 = 9\n", r"steps of 'Hoper-v5': not among its envs \(did you mean Hopper-v5\?\)"),
        (MINIMAL + "archive_at = 3\n", "archive_at = 3: must be a list of steps"),
        (MINIMAL + "diagnose = 1\n", "diagnose = 1: must be true or false"),
        (MINIMAL + "summary = 1\n", "summary = 1: must be a text"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_file(written, text, said):
    with pytest.raises(UserError, match=said) as caught:
        read_study(written(text))
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_study_is_one_line_with_the_nearest_name(tmp_path):
    with pytest.raises(
        UserError, match=r"study = 'comparsion': unknown \(did you mean comparison\?\); allowed: .*rate"
    ):
        read_study("comparsion")
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\)"):
        read_study(str(tmp_path / "none.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        read_study(str(tmp_path / "folder.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        read_study(str(tmp_path / "bytes.toml"))
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5000)
    with pytest.raises(UserError, match="not valid TOML"):
        read_study(str(tmp_path / "deep.toml"))


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0-7", tuple(range(8))), ("3", (3,)), ("0,2, 5-7", (0, 2, 5, 6, 7)), ("1000-1001", (1000, 1001)), ("4-4", (4,))],
)
def test_seeds_are_numbers_and_ranges(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "0-", "-3", "7-0", "a", "0-2-4", "1.5", "0,,1", "1,1", "0-3,2", "99999999999", "0-4294967295", "²"]
)
def test_seeds_that_are_not_are_refused_in_one_line(text):
    with pytest.raises(UserError, match=r"^seeds") as caught:
        parse_seeds(text)
    assert "\n" not in str(caught.value)


def test_a_slip_does_not_make_a_range_of_millions():
    with pytest.raises(UserError, match=f"at most {MOST_SEEDS} seeds"):
        parse_seeds("0-1000000")


def test_the_command_line_changes_what_it_names_and_nothing_else(written):
    study = read_study(written(FULL))
    assert override(study, None, None, None, None, None) == study
    changed = override(study, "0-2", ["Ant-v5"], ["pdml"], "9000", ["agent.gamma=0.5"])
    assert changed.seeds == (0, 1, 2)
    assert changed.envs == ("Ant-v5",)
    assert (changed.steps, changed.steps_by_env) == (9000, {})
    assert arms_of(changed) == [("pdml", {**study.arms[1].settings, "agent.gamma": (0.5,)})]
    assert (changed.diagnose, changed.archive_at) == (study.diagnose, study.archive_at)


def test_names_may_be_separated_by_commas(written):
    study = override(read_study(written(MINIMAL)), envs="Ant-v5, Hopper-v5", methods=["mbpo,pdml"])
    assert study.envs == ("Ant-v5", "Hopper-v5")
    assert [arm.method for arm in study.arms] == ["mbpo", "pdml"]


def test_a_method_that_a_study_has_not_gets_what_all_arms_share(written):
    study = override(read_study(written(FULL)), methods=["sac"], settings=["agent.tau=0.1"])
    assert arms_of(study) == [
        ("sac", {"agent.hidden_sizes": ((64, 64), (32,)), "agent.gamma": (0.9,), "agent.tau": (0.1,)})
    ]
    later = override(override(study, settings={"batch_size": 64}), methods=["redq"])
    assert later.arms[0].settings["batch_size"] == (64,)


def test_settings_of_the_command_line_span_a_grid(written):
    study = read_study(written(MINIMAL))
    words = [
        "mixture.rate=0.1,0.3",
        "agent.hidden-sizes=64,64",
        "agent.hidden_sizes=32",
        "agent.temperature=0.1,learned",
    ]
    assert override(study, settings=words).arms[0].settings == {
        "mixture.rate": (0.1, 0.3),
        "agent.hidden_sizes": ((64, 64), (32,)),
        "agent.temperature": (0.1, None),
    }
    given = {"mixture.rate": [0.1, 0.3], "agent": {"gamma": 0.9}}
    assert override(study, settings=given).arms[0].settings == {"mixture.rate": (0.1, 0.3), "agent.gamma": (0.9,)}


def test_what_is_recorded_can_be_set_too(written):
    study = override(read_study(written(MINIMAL)), settings=["diagnose=true", "archive_at=6000,7000"])
    assert (study.diagnose, study.archive_at) == (True, (6000, 7000))
    assert study.arms[0].settings == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": "0-"}, "seeds = '0-'"),
        ({"seeds": []}, "seeds = "),
        ({"envs": []}, "envs = .*at least one"),
        ({"envs": ","}, "envs = .*at least one"),
        ({"methods": ["pdlm"]}, r"method = 'pdlm': unknown \(did you mean pdml\?\)"),
        ({"methods": ["pdml", "pdml"]}, "methods: pdml is there twice"),
        ({"steps": "0"}, "steps = '0': must be a whole number"),
        ({"steps": "many"}, "steps = 'many': must be a whole number"),
        ({"settings": ["mixture.rate"]}, "set = 'mixture.rate': must be field=value"),
        ({"settings": ["mixture.rat=1"]}, r"mixture.rat: unknown setting \(did you mean mixture.rate\?\)"),
        ({"settings": ["mixture.rate=x"]}, "mixture.rate = 'x': must be a number"),
        ({"settings": ["mixture.rate=0.1", "mixture.rate=0.1"]}, "mixture.rate: 0.1 is there twice"),
        ({"settings": ["steps=100"]}, "steps has a key of its own"),
        ({"settings": ["diagnose=true", "diagnose=false"]}, "diagnose: is the same for all runs"),
    ],
)
def test_mistakes_of_the_command_line_are_one_line(written, options, said):
    study = read_study(written(MINIMAL))
    with pytest.raises(UserError, match=said) as caught:
        override(study, **options)
    assert "\n" not in str(caught.value)


def test_every_key_is_tested():
    assert all(f"\n{key} = " in f"\n{FULL}" or f"[{key}]" in FULL for key in KEYS)
