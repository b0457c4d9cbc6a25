"""The configuration: nested frozen records, one help text and one allowed range per field.

Nothing here imports JAX, so that `pdml --help` answers at once. A hyper-parameter has one home: here, or in
`pdml.tasks` where it depends on the environment. `pdml.settings` reads and checks what a person gives.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from pdml.errors import UserError, nearest
from pdml.tasks import Task, find_task

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
    "redq": "REDQ [Chen et al. 2021]: model-free, ten critics, random pairs in the target",
    "sac": "SAC [Haarnoja et al. 2018]: model-free, one update a step",
}
"""Every method in one line; `pdml.methods.RECIPES` has its recipe."""

MODEL_FREE = ("redq", "sac")
MODEL_BASED = tuple(name for name in METHODS if name not in MODEL_FREE)
PDML = ("pdml", "pdml-model-only", "pdml-starts-only")
MIXTURES = (*PDML, "decay-mbpo")
PRIORITISED = ("per-mbpo", "maper-mbpo", "maper-mbpo-model")
WEIGHTED = (*MIXTURES, "per-mbpo", "recall-mbpo", "maper-mbpo-model")

METHOD_CHANGES: dict[str, dict[str, Any]] = {
    "pdml-model-only": {"weigh": "model"},
    "pdml-starts-only": {"weigh": "starts"},
    "maper-mbpo": {"priority.exponent": 0.5, "priority.floor": 1e-9},
    "maper-mbpo-model": {"priority.exponent": 0.5, "priority.floor": 1e-9},
    "vagram": {"rollouts.deterministic": True},
    "redq": {"updates_per_step": 20},
    "sac": {"updates_per_step": 1},
}
"""What a method changes of the environment's defaults."""

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
}
"""Named sets of changes on top of the defaults of (method, environment); a method takes those that it reads."""


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
    scaled_log_prob: bool = option(False, "count log-probabilities in the environment's own action units")
    num_critics: int = option(10, "critics", "[1, inf)", methods=("redq",))
    subset: int = option(
        2, "target critics, drawn anew at each update, whose least value counts", "[1, inf)", (), ("redq",)
    )


@dataclass(frozen=True)
class DynamicsConfig:
    """The ensemble of probabilistic networks."""

    num_members: int = option(7, "networks in the ensemble", "[1, inf)")
    num_elites: int = option(5, "best networks on the holdout; only they imagine", "[1, inf)")
    hidden_sizes: tuple[int, ...] = option((200, 200, 200, 200), "width of each hidden layer", "[1, inf)")
    learning_rate: float = option(1e-3, "Adam's step size", "(0, inf)")
    weight_decay: tuple[float, ...] = option(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4), "L2 penalty of each layer's weights, first to output", "[0, inf)"
    )
    batch_size: int = option(256, "rows a minibatch, drawn for each network by itself", "[1, inf)")
    train_bounds: bool = option(
        True,
        "train the soft bounds of the log-variance; false keeps them at 0.5 and -10",
        methods=tuple(name for name in MODEL_BASED if name != "vagram"),
    )
    restore_best: bool = option(True, "end a fit with each network's best weights; false: with its last")
    holdout: str = option("fresh", "fresh: split anew at each fit; fixed: label rows once", choices=("fresh", "fixed"))
    holdout_weights: str = option(
        "uniform", "how held-out rows count in the error that stops a fit", "", ("uniform", "weighted"), WEIGHTED
    )
    holdout_ratio: float = option(0.2, "share of rows held out for early stopping and elites", "(0, 1)")
    holdout_max: int = option(5000, "largest holdout, in rows", "[1, inf)")
    improvement: float = option(0.01, "relative gain on the holdout that counts as an improvement", "[0, 1)")
    patience: int = option(5, "epochs without improvement of any network before the fit stops", "[0, inf)")
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
class Config:
    """Everything that decides what a run computes."""

    env: str = option("InvertedPendulum-v5", "environment id, or module:Id")
    method: str = option("pdml", "method", choices=tuple(METHODS))
    preset: str = option("paper", "named set of changes to the defaults", choices=tuple(PRESETS))
    steps: int = option(4000, "real steps in all, warm-up included", "[1, inf)")
    seed: int = option(0, "seed of everything random", "[0, 4294967295]")
    warmup_steps: int = option(5000, "first steps: uniform actions, nothing is learned", "[2, inf)")
    model_every: int = option(250, "real steps a block: between two fits, and between two rows of progress", "[1, inf)")
    epoch_steps: int = option(1000, "real steps an epoch, the unit of schedules", "[1, inf)", (), MODEL_BASED)
    updates_per_step: int = option(20, "agent updates a real step", "[1, inf)")
    throttle: float = option(
        0.0,
        "skip updates while those of the epoch exceed this many a step after warm-up, as mbpo_pytorch with 5; 0: never",
        "[0, inf)",
        methods=MODEL_BASED,
    )
    batch_size: int = option(256, "rows an agent update", "[2, inf)")
    real_ratio: float = option(0.05, "share of real rows in an agent update", "[0, 1)", (), MODEL_BASED)
    replay_capacity: int = option(1_000_000, "real rows kept", "[1, inf)")
    time_limit_terminates: bool = option(False, "store the end by a time limit as a terminal one, without bootstrap")
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
    rollouts: RolloutConfig = field(default=RolloutConfig(), metadata={"methods": MODEL_BASED})

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
        agent=AgentConfig(target_entropy=task.target_entropy),
        ampo=AmpoConfig(**dataclasses.asdict(task.adaptation)),
        rollouts=RolloutConfig(batch=task.rollout_batch, **dataclasses.asdict(task.horizon)),
    )
    config = change(config, METHOD_CHANGES.get(method, {}))
    readers = {leaf.name: leaf.methods for leaf in leaves()}
    return change(config, {k: v for k, v in PRESETS[preset].items() if not readers[k] or method in readers[k]})


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
