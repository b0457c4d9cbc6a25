"""The configuration: nested frozen records, one help text and one allowed range per field.

Nothing here imports JAX, so that `pdml --help` answers at once. A hyper-parameter has one home: here, or in
`pdml.config.tasks` where it depends on the environment. `pdml.config.validate` reads and checks what a person gives.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from pdml.config.tasks import Task, find_task
from pdml.core.errors import UserError, nearest

METHODS: dict[str, str] = {
    "pdml": "PDML-MBPO [Wang et al. 2023]: MBPO whose model and rollouts follow the current policy",
    "mbpo": "MBPO [Janner et al. 2019]: every real row weighs the same",
    "pdml-model-only": "ablation of PDML: its weights for model learning only, branches start uniformly",
    "pdml-starts-only": "ablation of PDML: its weights for the starts of branches only, the model learns uniformly",
    "decay-mbpo": "PDML's mixture with weights that decay with a policy's age instead of its distance",
    "per-mbpo": "MBPO whose real rows weigh by temporal-difference error [Schaul et al. 2016]",
    "recall-mbpo": "MBPO whose model learns and branches from the quarter of real rows with the highest value",
    "maper-mbpo": "MaPER [Oh et al. 2022]: model-augmented critics, minibatches prioritised by their errors",
    "maper-mbpo-model": "MaPER as the PDML paper words it: real rows weigh by temporal-difference and model error",
    "ampo": "AMPO [Shen et al. 2020]: the model's features are adapted from real to imagined inputs",
    "vagram": "VaGraM [Voelcker et al. 2022]: model errors weigh by the gradient of the value function",
    "dhmbpo": "DHMBPO [Kubo et al. 2025]: far rollouts find the states, near differentiable ones teach the agent",
    "pdml-dhmbpo": "DHMBPO whose model and far rollouts follow the current policy, by PDML's weights",
    "redq": "REDQ [Chen et al. 2021]: model-free, ten critics, random pairs in the target",
    "sac": "SAC [Haarnoja et al. 2018]: model-free, one update a step",
}
"""Every method in one line; `pdml.training.methods.RECIPES` has its recipe."""

MODEL_FREE = ("redq", "sac")
MODEL_BASED = tuple(name for name in METHODS if name not in MODEL_FREE)
DOUBLE = ("dhmbpo", "pdml-dhmbpo")
"""Learn once a block, through the model."""
BRANCHED = tuple(name for name in MODEL_BASED if name not in DOUBLE)
"""The family of MBPO: short branches, and updates after every step."""
STEPWISE = tuple(name for name in METHODS if name not in DOUBLE)
PDML = ("pdml", "pdml-model-only", "pdml-starts-only", "pdml-dhmbpo")
MIXTURES = (*PDML, "decay-mbpo")
PRIORITISED = ("per-mbpo", "maper-mbpo", "maper-mbpo-model")
WEIGHTED = (*MIXTURES, "per-mbpo", "recall-mbpo", "maper-mbpo-model")

_DOUBLE_CHANGES: dict[str, Any] = {
    "model_every": 1000,
    "updates_per_step": 1,
    "agent.hidden_sizes": (256, 256, 256),
    "agent.gamma": 0.995,
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

METHOD_CHANGES: dict[str, dict[str, Any]] = {
    "pdml-model-only": {"weigh": "model"},
    "pdml-starts-only": {"weigh": "starts"},
    "maper-mbpo": {"priority.exponent": 0.5, "priority.floor": 1e-9},
    "maper-mbpo-model": {"priority.exponent": 0.5, "priority.floor": 1e-9},
    "vagram": {"rollouts.deterministic": True},
    "dhmbpo": _DOUBLE_CHANGES,
    "pdml-dhmbpo": {**_DOUBLE_CHANGES, "mixture.rate": 0.08, "mixture.first_block": 2},
    "redq": {"updates_per_step": 20},
    "sac": {"updates_per_step": 1},
}
"""What a method changes of the environment's defaults."""


class ByTask(NamedTuple):
    """A value that depends on the environment, and how it is written."""

    text: str
    of: Callable[[Task], Any]

    def __str__(self) -> str:
        return self.text


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": {
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
    "published": {
        "dynamics.batch_size": 2048,
        "dynamics.holdout_max": 12_288,
        "dynamics.patience": ByTask("50 ln(obs + 1)", lambda task: int(50 * math.log(task.obs_size + 1))),
        "dynamics.max_epochs": ByTask("250 ln(obs + 1)", lambda task: int(250 * math.log(task.obs_size + 1))),
        "double.judge_every": 1,
    },
}
"""Named sets of changes on top of the defaults of (method, environment); a method takes those that it reads."""

PRESET_METHODS: dict[str, tuple[str, ...]] = {"released": STEPWISE, "published": DOUBLE}
"""The methods that a preset is for, if not for all."""


def option(
    default: Any, text: str, within: str = "", choices: tuple[str, ...] = (), methods: tuple[str, ...] = ()
) -> Any:
    """Declare a field: its default, its help text, and the interval or the words that it may take.

    Args:
        within: An interval such as `"[0, 1)"` or `"(0, inf)"`; for tuples it holds for every entry.
        methods: The methods that read it, if not all do; elsewhere changing it is a mistake.
    """
    return field(default=default, metadata={"help": text, "within": within, "choices": choices, "methods": methods})


@dataclass(frozen=True)
class AgentConfig:
    """Soft actor-critic."""

    hidden_sizes: tuple[int, ...] = option((256, 256), "width of each hidden layer of actor and critics", "[1, inf)")
    learning_rate: float = option(3e-4, "Adam's step size for actor, critics and temperature", "(0, inf)")
    gamma: float = option(0.99, "discount", "[0, 1)")
    tau: float = option(0.005, "share of the critics that their targets take over at each update", "(0, 1]")
    temperature: float | None = option(None, "entropy temperature; 'learned' fits it to the target entropy", "(0, inf)")
    target_entropy: float = option(
        -1.0, "entropy, in nats (of the [-1, 1] action unless scaled), that a learned temperature keeps"
    )
    first_temperature: float = option(1.0, "where a learned temperature begins", "(0, inf)")
    scaled_log_prob: bool = option(
        False, "count log-probabilities in the environment's own action units", methods=STEPWISE
    )
    num_critics: int = option(10, "critics", "[1, inf)", methods=("redq", *DOUBLE))
    subset: int = option(
        2, "target critics, drawn anew at each update, whose least value counts", "[1, inf)", (), ("redq", *DOUBLE)
    )


@dataclass(frozen=True)
class DynamicsConfig:
    """The ensemble of probabilistic networks."""

    num_members: int = option(7, "networks in the ensemble", "[1, inf)")
    num_elites: int = option(5, "best networks on the holdout; only they imagine", "[1, inf)", (), BRANCHED)
    hidden_sizes: tuple[int, ...] = option((200, 200, 200, 200), "width of each hidden layer", "[1, inf)")
    learning_rate: float = option(1e-3, "Adam's step size", "(0, inf)")
    weight_decay: tuple[float, ...] = option(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4),
        "penalty of each layer's weights, first to output; double-horizon: decay",
        "[0, inf)",
    )
    batch_size: int = option(256, "rows a minibatch", "[1, inf)")
    train_bounds: bool = option(
        True,
        "train the soft bounds of the log-variance; false keeps them at 0.5 and -10",
        methods=tuple(name for name in BRANCHED if name != "vagram"),
    )
    target_norm: str = option(
        "none",
        "none: predict [reward, change of state] as it is; delta: standardised; direct: [reward, next state], "
        "standardised; the bounds of the log-variance are in these units",
        choices=("none", "delta", "direct"),
        methods=tuple(name for name in BRANCHED if name != "vagram"),
    )
    restore_best: bool = option(
        True, "end a fit with each network's best weights; false: with its last", methods=BRANCHED
    )
    holdout: str = option(
        "fresh", "fresh: split anew at each fit; fixed: label rows once", "", ("fresh", "fixed"), BRANCHED
    )
    holdout_weights: str = option(
        "uniform",
        "how held-out rows count in the error that stops a fit",
        choices=("uniform", "weighted"),
        methods=tuple(name for name in WEIGHTED if name not in DOUBLE),
    )
    holdout_ratio: float = option(0.2, "share of rows held out, for early stopping and to choose elites", "(0, 1)")
    holdout_max: int = option(5000, "largest holdout, in rows", "[1, inf)")
    improvement: float = option(
        0.01, "relative gain on the holdout that counts as an improvement", "[0, 1)", (), BRANCHED
    )
    patience: int = option(5, "epochs without improvement before the fit stops", "[0, inf)")
    max_epochs: int = option(200, "cap on the epochs of one fit; `model/capped` logs when it binds", "[1, inf)")


@dataclass(frozen=True)
class MixtureConfig:
    """The policy mixture: how blocks of rows weigh by the policy that collected them."""

    rate: float = option(0.02, "r: least share of the newest policy's block; alpha = r / (1 - r)", "[0, 1)")
    first_block: int = option(4, "blocks after warm-up before the weights leave the uniform ones", "[2, inf)")
    misaligned: bool = option(False, "give model learning the weights of other rows, as the released code does")
    decay: float = option(0.98, "factor by which a policy weighs less than the next one", "(0, 1]", (), ("decay-mbpo",))
    shift: str = option(
        "pinsker",
        "estimate of the total variation between policies",
        choices=("pinsker", "bretagnolle-huber", "monte-carlo"),
        methods=PDML,
    )
    std_as_covariance: bool = option(
        False, "put the standard deviation in the place of the variance, as the released code does", methods=PDML
    )
    reservoir: int = option(
        2048, "states on which policies are compared, uniform over all collected", "[1, inf)", (), PDML
    )
    floor: float = option(1e-3, "smallest policy shift; below it float32 divergences are noise", "(0, inf)", (), PDML)


@dataclass(frozen=True)
class PriorityConfig:
    """Weights of single rows by a score."""

    exponent: float = option(0.6, "power of the score; 0 weighs all rows alike", "[0, 10]", (), PRIORITISED)
    floor: float = option(1e-6, "added to the score", "(0, inf)", (), PRIORITISED)
    share: float = option(
        0.25, "share of the rows, those of the highest value, that are kept", "(0, 1]", (), ("recall-mbpo",)
    )
    balance: float = option(
        50.0, "T: how slowly the critics' loss terms are rebalanced", "(0, inf)", (), ("maper-mbpo",)
    )


@dataclass(frozen=True)
class AmpoConfig:
    """Adaptation of the model's features to imagined inputs."""

    first_steps: int = option(400, "adaptation steps a block in the first epoch", "[0, inf)")
    last_steps: int = option(400, "adaptation steps a block from `ramp_epochs` on", "[0, inf)")
    ramp_epochs: int = option(1, "epochs over which the number of steps changes", "[1, inf)")
    stop_epoch: int = option(40, "last epoch with adaptation", "[-1, inf)")
    critic_steps: int = option(5, "steps of the Wasserstein critic before each step of the features", "[1, inf)")
    critic_size: int = option(100, "width of the critic's hidden layer", "[1, inf)")
    penalty: float = option(10.0, "weight of the gradient penalty", "[0, inf)")
    weight_decay: float = option(1e-5, "L2 penalty of the critic's weights", "[0, inf)")
    learning_rate: float = option(1e-4, "Adam's step size for critic and features", "(0, inf)")
    batch_size: int = option(256, "real and imagined rows a step, drawn for each network by itself", "[1, inf)")


@dataclass(frozen=True)
class VagramConfig:
    """Value-gradient-weighted model loss."""

    quantile: float = option(0.95, "gradients longer than this quantile of their lengths are cut to it", "(0, 1]")
    mse_steps: int = option(1000, "steps after warm-up in which the plain squared error is added", "[0, inf)")


@dataclass(frozen=True)
class RolloutConfig:
    """Imagination."""

    batch: int = option(100_000, "branches started after each fit", "[1, inf)")
    shortest: int = option(1, "steps a branch before `first_epoch`", "[1, inf)")
    longest: int = option(1, "steps a branch after `last_epoch`", "[1, inf)")
    first_epoch: int = option(0, "epoch (of epoch_steps after the warm-up) at which branches begin to grow", "[0, inf)")
    last_epoch: int = option(1, "epoch at which branches are longest", "[1, inf)")
    retain_epochs: int = option(1, "epochs of imagined rows that are kept", "[1, inf)")
    max_rows: int = option(1_000_000, "most imagined rows kept; beyond it fewer branches are started", "[1, inf)")
    deterministic: bool = option(False, "step by a network's mean instead of a sample")
    reward_penalty: float = option(0.0, "times the variance of all networks' rewards, taken off the reward", "[0, inf)")


@dataclass(frozen=True)
class DoubleConfig:
    """Double-horizon learning."""

    far: int = option(20, "steps of a far rollout, whose states near ones begin in", "[1, inf)")
    near: int = option(5, "steps of a near rollout, which is differentiated", "[1, inf)")
    refresh: int = option(20, "updates between two far rollouts", "[1, inf)")
    retain: int = option(10, "far rollouts whose states are kept", "[1, inf)")
    clear: bool = option(False, "drop the states of the last model when a new one is fitted")
    critic_share: float = option(0.25, "updates of the critics alone after a fit, as a share of a block", "[0, inf)")
    critic_dropout: float = option(1e-3, "share of a critic's hidden units left out when it learns", "[0, 1)")
    bound_quantile: float = option(0.01, "quantile of soft rewards at either end that bounds values", "(0, 0.5)")
    bound_rate: float = option(3e-4, "share of newly seen bounds that is taken over at each update", "(0, 1]")
    dropout: tuple[float, ...] = option(
        (0.0075, 0.005, 0.0025), "share of the model's units left out, of each hidden layer", "[0, 1)"
    )
    noise_decay: float = option(1e-2, "decoupled decay of the model's log-noise", "[0, inf)")
    reward_noise: float = option(1e-3, "noise added to reward targets, in the reward's own units", "[0, inf)")
    epoch_batches: int = option(
        6, "most minibatches of an epoch, of which there are fewer while rows are few", "[1, inf)"
    )
    judge_every: int = option(2, "epochs between two looks at the holdout", "[1, inf)")
    significance: float = option(0.1, "chance below which a gain on the holdout is no accident", "(0, 1)")
    first_factor: int = option(5, "times the patience and the epochs that the first fit has", "[1, inf)")


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes."""

    env: str = option("InvertedPendulum-v5", "environment id, or module:Id")
    method: str = option("pdml", "method", choices=tuple(METHODS))
    preset: str = option(
        "paper",
        "named set of changes to the defaults; published: the settings of DHMBPO's paper",
        choices=tuple(PRESETS),
    )
    steps: int = option(4000, "real steps in all, warm-up included", "[1, inf)")
    seed: int = option(0, "seed of everything random", "[0, 4294967295]")
    warmup_steps: int = option(5000, "first steps: uniform actions, nothing is learned", "[2, inf)")
    model_every: int = option(250, "real steps a block: between two fits, and between two rows of progress", "[1, inf)")
    epoch_steps: int = option(1000, "real steps an epoch, the unit of schedules", "[1, inf)", (), BRANCHED)
    updates_per_step: int = option(20, "agent updates a real step", "[1, inf)")
    throttle: float = option(
        0.0,
        "skip updates while those of the epoch exceed this many a step after warm-up, as mbpo_pytorch with 5; 0: never",
        "[0, inf)",
        methods=BRANCHED,
    )
    batch_size: int = option(256, "rows an agent update", "[2, inf)")
    real_ratio: float = option(0.05, "share of real rows in an agent update", "[0, 1)", (), BRANCHED)
    replay_capacity: int = option(1_000_000, "real rows kept", "[1, inf)")
    time_limit_terminates: bool = option(
        False, "store the end by a time limit as a terminal one, without bootstrap", methods=STEPWISE
    )
    weigh: str = option(
        "both",
        "what the weights are used for: minibatches of the model, starts of branches",
        choices=("both", "model", "starts", "none"),
        methods=tuple(name for name in WEIGHTED if name not in METHOD_CHANGES or "weigh" not in METHOD_CHANGES[name]),
    )
    termination: str = option(
        "rule",
        "when imagined episodes end: rule (of the environment's family), never, learned, or module:function",
        methods=MODEL_BASED,
    )
    reward: str = option("learned", "the reward of imagined steps: learned, or module:function", methods=MODEL_BASED)
    max_episode_steps: int = option(0, "cut episodes here, beside the environment's own ends; 0: do not", "[0, inf)")
    env_timeout: float = option(
        3600.0, "seconds that a step or reset of the environment may take before the run is ended; 0: any", "[0, inf)"
    )
    eval_every: int = option(1000, "real steps between evaluations", "[1, inf)")
    eval_episodes: int = option(10, "episodes an evaluation; 0 reports training episodes instead", "[0, inf)")
    checkpoint_every: int = option(1000, "real steps between saved states; the last two are kept", "[1, inf)")
    archive_at: tuple[int, ...] = option(
        (), "steps whose agent, model and real rows are kept, e.g. 20000,40000", "[1, inf)"
    )
    diagnose: bool = option(
        False, "measure the model's error on fresh steps of the current policy; costs such steps", methods=MODEL_BASED
    )
    diagnose_every: int = option(1000, "real steps between diagnoses", "[1, inf)", (), MODEL_BASED)
    diagnose_steps: int = option(1000, "fresh steps a diagnosis, never learned from", "[1, inf)", (), MODEL_BASED)
    agent: AgentConfig = AgentConfig()
    dynamics: DynamicsConfig = field(default=DynamicsConfig(), metadata={"methods": MODEL_BASED})
    mixture: MixtureConfig = field(default=MixtureConfig(), metadata={"methods": MIXTURES})
    priority: PriorityConfig = PriorityConfig()
    ampo: AmpoConfig = field(default=AmpoConfig(), metadata={"methods": ("ampo",)})
    vagram: VagramConfig = field(default=VagramConfig(), metadata={"methods": ("vagram",)})
    rollouts: RolloutConfig = field(default=RolloutConfig(), metadata={"methods": BRANCHED})
    double: DoubleConfig = field(default=DoubleConfig(), metadata={"methods": DOUBLE})

    @property
    def log_action_scale(self) -> float:
        """Logarithm of the action space's volume per unit of [-1, 1], taken off log-probabilities; 0 if not wanted."""
        task = find_task(self.env)
        return task.action_size * math.log(task.action_bound) if self.agent.scaled_log_prob else 0.0


class Leaf(NamedTuple):
    """One setting: its dotted name, what was declared about it, and its type."""

    name: str
    help: str
    within: str
    choices: tuple[str, ...]
    methods: tuple[str, ...]
    kind: Any


def leaves(kind: type = Config, prefix: str = "", methods: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every setting."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        readers = item.metadata.get("methods") or methods
        if is_dataclass(hints[item.name]):
            yield from leaves(hints[item.name], f"{prefix}{item.name}.", readers)
        else:
            note = item.metadata
            yield Leaf(f"{prefix}{item.name}", note["help"], note["within"], note["choices"], readers, hints[item.name])


def defaults(env: str, method: str = "pdml", preset: str = "paper", task: Task | None = None) -> Config:
    """Return the configuration of a method on an environment.

    Args:
        task: What is known of the environment, where its id does not tell.
    """
    for name, value, table in (("method", method, METHODS), ("preset", preset, PRESETS)):
        if not isinstance(value, str) or value not in table:
            raise UserError(f"{name} = '{value}': unknown{nearest(value, table)}; allowed: {', '.join(table)}")
    if method not in PRESET_METHODS.get(preset, METHODS):
        raise UserError(f"preset = '{preset}': is for {', '.join(PRESET_METHODS[preset])}; method is '{method}'")
    task = task or find_task(env)
    config = Config(
        env=env,
        method=method,
        preset=preset,
        steps=task.budget,
        warmup_steps=task.warmup_steps,
        updates_per_step=task.updates_per_step,
        termination=task.termination,
        max_episode_steps=task.max_episode_steps,
        agent=AgentConfig(target_entropy=-float(task.action_size) if method in DOUBLE else task.target_entropy),
        ampo=AmpoConfig(**dataclasses.asdict(task.adaptation)),
        rollouts=RolloutConfig(batch=task.rollout_batch, **dataclasses.asdict(task.horizon)),
    )
    config = change(config, METHOD_CHANGES.get(method, {}))
    readers = {leaf.name: leaf.methods for leaf in leaves()}
    changes = {k: v.of(task) if isinstance(v, ByTask) else v for k, v in PRESETS[preset].items()}
    return change(config, {k: v for k, v in changes.items() if not readers[k] or method in readers[k]})


def rebase(config: Config, method: str) -> Config:
    """Return the configuration of another method with the same departures from its defaults."""
    old = defaults(config.env, config.method, config.preset)
    departures = {
        leaf.name: get(config, leaf.name) for leaf in leaves() if get(config, leaf.name) != get(old, leaf.name)
    }
    return change(defaults(config.env, method, config.preset), departures)


def change(config: Config, changes: dict[str, Any]) -> Config:
    """Return the configuration with fields replaced, given by dotted names."""
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            section = replace(getattr(config, head), **{rest: value})
            config = replace(config, **{head: section})
        else:
            config = replace(config, **{head: value})
    return config


def get(config: Config, name: str) -> Any:
    """Return the value of a dotted field name."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
