"""Every method in one record: what it is, which settings it reads, and what it changes of the defaults.

Adding a method takes a recipe in `pdml.training.methods`, a record here, a test and a page in docs/methods.
"""

import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pdml.config.tasks import Task


class Feature(StrEnum):
    """What a method has. A setting names the features that it belongs to; a method reads it if it has all of them."""

    MODEL = "a learned model"
    BRANCHES = "short branched rollouts, the family of MBPO"
    STEPWISE = "updates after every real step"
    LIKELIHOOD = "a model trained by likelihood"
    WEIGHTS = "weights of real transitions"
    MIXTURE = "weights by policy"
    DISTANCE = "weights by policy distance, PDML"
    DECAY = "weights by a policy's age"
    PRIORITY = "weights or priorities by a score"
    RECALL = "weights by value"
    MAPER = "MaPER's critics"
    AMPO = "adaptation of the model's features"
    VAGRAM = "value-gradient-weighted model loss"
    CRITIC_ENSEMBLE = "more than two critics"
    DOUBLE_HORIZON = "distribution and training rollouts, DHMBPO"


GROUP_NAMES: dict[tuple[Feature, ...], str] = {
    (Feature.MODEL,): "model-based",
    (Feature.BRANCHES,): "MBPO-family",
    (Feature.STEPWISE,): "all but the double-horizon",
}
"""What the methods with some features are called where many share them."""


class ByTask(NamedTuple):
    """A value that depends on the environment, and how it is written."""

    text: str
    of: Callable[[Task], Any]

    def __str__(self) -> str:
        return self.text


Changes = Mapping[str, Any]
"""Values by the dotted names of settings; a `ByTask` stands for one that depends on the environment."""

NO_CHANGES: Changes = MappingProxyType({})

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
SOLID, DASHED, DOTTED = "", "6 3", "2 2"


class Line(NamedTuple):
    """Colour and dashes of a method's line; dashes as SVG writes them, lengths of line and gap."""

    color: str
    dash: str


class Method(NamedTuple):
    """All that is known of a method outside its code."""

    summary: str
    """One line."""
    recipe: str
    """Its function in `pdml.training.methods.RECIPES`."""
    learner: Literal["mbpo", "model-free", "dhmbpo"]
    """The loop that trains it; see `pdml.training.loop`."""
    features: frozenset[Feature]
    line: Line
    changes: Changes = NO_CHANGES
    """What it changes of the environment's defaults."""
    fixes: Changes = NO_CHANGES
    """Settings that make it what it is; they cannot be changed."""
    builds_on: str = ""
    """The method that it is without its weights, where an ablation compares the two."""
    paper_name: str = ""
    """What the paper's figures call it."""

    @property
    def has_model(self) -> bool:
        """Whether it learns a model."""
        return Feature.MODEL in self.features

    @property
    def is_double_horizon(self) -> bool:
        """Whether it is DHMBPO or builds on it: it learns in update phases between blocks."""
        return self.learner == "dhmbpo"

    def reads(self, features: tuple[Feature, ...]) -> bool:
        """Say whether it reads a setting that belongs to these features."""
        return self.features.issuperset(features)


def _mbpo(*own: Feature, likelihood: bool = True) -> frozenset[Feature]:
    shared = {Feature.MODEL, Feature.BRANCHES, Feature.STEPWISE}
    return frozenset(shared | set(own) | ({Feature.LIKELIHOOD} if likelihood else set()))


_PDML = (Feature.WEIGHTS, Feature.MIXTURE, Feature.DISTANCE)
_DOUBLE = (Feature.MODEL, Feature.DOUBLE_HORIZON, Feature.CRITIC_ENSEMBLE)

_DOUBLE_CHANGES: Changes = {
    "model_every": 1000,
    "updates_per_step": ByTask("1 or 2, by task", lambda task: task.double_horizon_updates),
    "agent.hidden_sizes": (256, 256, 256),
    "agent.gamma": 0.995,
    "agent.target_entropy": ByTask("-action", lambda task: -float(task.action_size)),
    "agent.first_temperature": 0.1,
    "agent.num_critics": 5,
    "dynamics.num_members": 8,
    "dynamics.hidden_sizes": (256, 256, 256),
    "dynamics.weight_decay": (2.5e-4, 5e-4, 7.5e-4, 1e-3),
    "dynamics.batch_size": 512,
    "dynamics.holdout_max": 2048,
    "dynamics.patience": 40,
    "dynamics.max_epochs": 150,
}

BASELINE = "mbpo"
"""The method that others are compared with."""

METHODS: dict[str, Method] = {
    "pdml": Method(
        "PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy",
        "pdml",
        "mbpo",
        _mbpo(*_PDML),
        Line(BLUE, SOLID),
        builds_on="mbpo",
        paper_name="PDML-MBPO",
    ),
    "mbpo": Method(
        "MBPO [Janner et al. 2019]: every real transition has the same weight",
        "mbpo",
        "mbpo",
        _mbpo(),
        Line(ORANGE, SOLID),
        paper_name="MBPO",
    ),
    "pdml-model-only": Method(
        "ablation of PDML: its weights for model learning only, branches start uniformly",
        "pdml",
        "mbpo",
        _mbpo(*_PDML),
        Line(SKY, SOLID),
        fixes={"weigh": "model"},
        builds_on="mbpo",
        paper_name="Model Learning Only",
    ),
    "pdml-starts-only": Method(
        "ablation of PDML: its weights for the starts of branches only, the model learns uniformly",
        "pdml",
        "mbpo",
        _mbpo(*_PDML),
        Line(SKY, DASHED),
        fixes={"weigh": "starts"},
        builds_on="mbpo",
        paper_name="Model Rollouts Only",
    ),
    "decay-mbpo": Method(
        "PDML's mixture with weights that decay with a policy's age instead of its distance",
        "decay_mbpo",
        "mbpo",
        _mbpo(Feature.WEIGHTS, Feature.MIXTURE, Feature.DECAY),
        Line(BLACK, DOTTED),
        paper_name="Exponentially Decay-MBPO",
    ),
    "per-mbpo": Method(
        "MBPO with real transitions weighted by temporal-difference error [Schaul et al. 2016]",
        "per_mbpo",
        "mbpo",
        _mbpo(Feature.WEIGHTS, Feature.PRIORITY),
        Line(GREEN, DASHED),
        paper_name="PER-MBPO",
    ),
    "recall-mbpo": Method(
        "MBPO whose model learns and branches from the quarter of real transitions with the highest value",
        "recall_mbpo",
        "mbpo",
        _mbpo(Feature.WEIGHTS, Feature.RECALL),
        Line(GREEN, DOTTED),
        paper_name="RECALL-MBPO",
    ),
    "maper-mbpo": Method(
        "MaPER [Oh et al. 2022]: model-augmented critics, minibatches prioritised by their errors",
        "maper_mbpo",
        "mbpo",
        _mbpo(Feature.PRIORITY, Feature.MAPER),
        Line(PURPLE, DASHED),
        changes={"priority.exponent": 0.5, "priority.floor": 1e-9},
        paper_name="MaPER-MBPO",
    ),
    "maper-mbpo-model": Method(
        "MaPER as the PDML paper words it: real transitions weighted by temporal-difference and model error",
        "maper_mbpo_model",
        "mbpo",
        _mbpo(Feature.WEIGHTS, Feature.PRIORITY),
        Line(PURPLE, DOTTED),
        changes={"priority.exponent": 0.5, "priority.floor": 1e-9},
    ),
    "ampo": Method(
        "AMPO [Shen et al. 2020]: the model's features are adapted from real to imagined inputs",
        "ampo",
        "mbpo",
        _mbpo(Feature.AMPO),
        Line(GREEN, SOLID),
        paper_name="AMPO",
    ),
    "vagram": Method(
        "VaGraM [Voelcker et al. 2022]: model errors weighted by the gradient of the value function",
        "vagram",
        "mbpo",
        _mbpo(Feature.VAGRAM, likelihood=False),
        Line(PURPLE, SOLID),
        fixes={"rollouts.deterministic": True},
        paper_name="VaGraM",
    ),
    "dhmbpo": Method(
        "DHMBPO [Kubo et al. 2025]: long rollouts find the states, short differentiable ones train the agent",
        "dhmbpo",
        "dhmbpo",
        frozenset(_DOUBLE),
        Line(RED, DASHED),
        changes=_DOUBLE_CHANGES,
    ),
    "pdml-dhmbpo": Method(
        "DHMBPO whose model and long rollouts follow the current policy, by PDML's weights",
        "pdml_dhmbpo",
        "dhmbpo",
        frozenset((*_DOUBLE, *_PDML)),
        Line(BLACK, DASHED),
        changes={**_DOUBLE_CHANGES, "mixture.rate": 0.08, "mixture.first_block": 2},
        builds_on="dhmbpo",
    ),
    "redq": Method(
        "REDQ [Chen et al. 2021]: model-free, ten critics, random pairs in the target",
        "redq",
        "model-free",
        frozenset((Feature.STEPWISE, Feature.CRITIC_ENSEMBLE)),
        Line(RED, SOLID),
        changes={"updates_per_step": 20},
        paper_name="REDQ",
    ),
    "sac": Method(
        "SAC [Haarnoja et al. 2018]: model-free, one update per step",
        "sac",
        "model-free",
        frozenset((Feature.STEPWISE,)),
        Line(BLACK, SOLID),
        changes={"updates_per_step": 1},
        paper_name="SAC",
    ),
}
"""By name, in the order of tables and legends."""


def readers(features: tuple[Feature, ...], name: str = "") -> tuple[str, ...]:
    """Return the methods that read a setting: those that have its features and do not fix it."""
    return tuple(key for key, method in METHODS.items() if method.reads(features) and name not in method.fixes)


class Preset(NamedTuple):
    """A named set of changes on top of the defaults of method and environment; a method takes those that it reads."""

    changes: Changes
    features: tuple[Feature, ...] = ()
    """It is for methods that have these."""


PRESETS: dict[str, Preset] = {
    "paper": Preset(NO_CHANGES),
    "released": Preset(
        {
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
        },
        (Feature.STEPWISE,),
    ),
    "published": Preset(
        {
            "updates_per_step": 1,
            "dynamics.batch_size": 2048,
            "dynamics.holdout_max": 12_288,
            "dynamics.patience": ByTask("50 ln(obs + 1)", lambda task: int(50 * math.log(task.obs_size + 1))),
            "dynamics.max_epochs": ByTask("250 ln(obs + 1)", lambda task: int(250 * math.log(task.obs_size + 1))),
            "double.judge_every": 1,
        },
        (Feature.DOUBLE_HORIZON,),
    ),
}
