"""The settings: frozen records, with one help text and one allowed range per field.

`Config` has all that decides what is learned, `RunConfig` how far a run goes and what it records; `Settings` has both.
A hyper-parameter has one home: here, or in `pdml.config.tasks` where it depends on the environment.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from pdml.config.methods import METHODS, PRESETS, Feature
from pdml.config.schedule import Schedule
from pdml.config.tasks import listed_task


def option(
    default: Any, text: str, within: str = "", choices: tuple[str, ...] = (), needs: tuple[Feature, ...] = ()
) -> Any:
    """Declare a setting: its default, its help text, and the interval or the words that it may take.

    Args:
        within: An interval such as `"[0, 1)"` or `"(0, inf)"`; for tuples it holds for every entry.
        needs: The features of the methods that read it; for any other method, changing it is a mistake.
    """
    return field(default=default, metadata={"help": text, "within": within, "choices": choices, "needs": needs})


@dataclass(frozen=True)
class AgentConfig:
    """Soft actor-critic."""

    hidden_sizes: tuple[int, ...] = option((256, 256), "width of each hidden layer of actor and critics", "[1, inf)")
    learning_rate: float = option(3e-4, "Adam's step size for actor, critics and temperature", "(0, inf)")
    gamma: float = option(0.99, "discount", "[0, 1)")
    tau: float = option(0.005, "Polyak rate: share of the critics that the targets take over per update", "(0, 1]")
    temperature: float | None = option(None, "entropy temperature; 'learned' fits it to the target entropy", "(0, inf)")
    target_entropy: float = option(
        -1.0, "entropy, in nats (of the [-1, 1] action unless scaled), that a learned temperature keeps"
    )
    first_temperature: float = option(1.0, "initial value of a learned temperature", "(0, inf)")
    scaled_log_prob: bool = option(
        False, "count log-probabilities in the environment's own action units", needs=(Feature.STEPWISE,)
    )
    exploration: str = option(
        "white",
        "noise of the actions in the environment: white, or pink, which is correlated over an episode",
        choices=("white", "pink"),
    )
    num_critics: int = option(10, "critics", "[1, inf)", needs=(Feature.CRITIC_ENSEMBLE,))
    subset: int = option(
        2,
        "target critics, drawn again for each update, whose minimum is the target",
        "[1, inf)",
        needs=(Feature.CRITIC_ENSEMBLE,),
    )


@dataclass(frozen=True)
class DynamicsConfig:
    """The ensemble of probabilistic networks."""

    num_members: int = option(7, "networks in the ensemble", "[1, inf)")
    num_elites: int = option(
        5, "best networks on the holdout; only they make rollouts", "[1, inf)", needs=(Feature.BRANCHES,)
    )
    hidden_sizes: tuple[int, ...] = option((200, 200, 200, 200), "width of each hidden layer", "[1, inf)")
    learning_rate: float = option(1e-3, "Adam's step size", "(0, inf)")
    weight_decay: tuple[float, ...] = option(
        (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4),
        "L2 penalty of each layer's weights, first to output; double-horizon: decoupled decay",
        "[0, inf)",
    )
    batch_size: int = option(256, "transitions per minibatch", "[1, inf)")
    train_bounds: bool = option(
        True,
        "train the soft bounds of the log-variance; false keeps them at 0.5 and -10",
        needs=(Feature.LIKELIHOOD,),
    )
    target_norm: str = option(
        "none",
        "none: predict [reward, change of state] as it is; delta: standardised; direct: [reward, next state], "
        "standardised; the bounds of the log-variance are in these units",
        choices=("none", "delta", "direct"),
        needs=(Feature.LIKELIHOOD,),
    )
    restore_best: bool = option(
        True, "end a fit with each network's best weights; false: with its last", needs=(Feature.BRANCHES,)
    )
    holdout: str = option(
        "fresh",
        "fresh: split again at each fit; fixed: label each transition once",
        choices=("fresh", "fixed"),
        needs=(Feature.BRANCHES,),
    )
    holdout_weights: str = option(
        "uniform",
        "how held-out transitions count in the error that stops a fit",
        choices=("uniform", "weighted"),
        needs=(Feature.BRANCHES, Feature.WEIGHTS),
    )
    holdout_ratio: float = option(
        0.2, "share of transitions held out, for early stopping and to choose elites", "(0, 1)"
    )
    holdout_max: int = option(5000, "largest holdout, in transitions", "[1, inf)")
    improvement: float = option(
        0.01, "relative gain on the holdout that counts as an improvement", "[0, 1)", needs=(Feature.BRANCHES,)
    )
    patience: int = option(5, "epochs without improvement before the fit stops", "[0, inf)")
    max_epochs: int = option(200, "cap on the epochs of one fit; `model/capped` logs when it binds", "[1, inf)")


@dataclass(frozen=True)
class MixtureConfig:
    """The policy mixture: how blocks of transitions are weighted by the policy that collected them."""

    rate: float = option(0.02, "r: least share of the newest policy's block; alpha = r / (1 - r)", "[0, 1)")
    first_block: int = option(4, "blocks after the warm-up during which the weights stay uniform", "[2, inf)")
    misaligned: bool = option(False, "give model learning the weights of other transitions, as the released code does")
    decay: float = option(
        0.98, "factor by which a policy has less weight than the next one", "(0, 1]", needs=(Feature.DECAY,)
    )
    shift: str = option(
        "pinsker",
        "estimate of the total variation between policies",
        choices=("pinsker", "bretagnolle-huber", "monte-carlo"),
        needs=(Feature.DISTANCE,),
    )
    std_as_covariance: bool = option(
        False,
        "put the standard deviation in the place of the variance, as the released code does",
        needs=(Feature.DISTANCE,),
    )
    reservoir: int = option(
        2048, "states on which policies are compared, uniform over all collected", "[1, inf)", needs=(Feature.DISTANCE,)
    )
    floor: float = option(
        1e-3, "smallest policy shift; below it float32 divergences are noise", "(0, inf)", needs=(Feature.DISTANCE,)
    )


@dataclass(frozen=True)
class PriorityConfig:
    """Weights of single transitions by a score."""

    exponent: float = option(
        0.6, "power of the score; 0 weights all transitions uniformly", "[0, 10]", needs=(Feature.PRIORITY,)
    )
    floor: float = option(1e-6, "added to the score", "(0, inf)", needs=(Feature.PRIORITY,))
    share: float = option(
        0.25, "share of the transitions, those of the highest value, that are kept", "(0, 1]", needs=(Feature.RECALL,)
    )
    balance: float = option(
        50.0, "T: how slowly the critics' loss terms are rebalanced", "(0, inf)", needs=(Feature.MAPER,)
    )


@dataclass(frozen=True)
class AmpoConfig:
    """Adaptation of the model's features to imagined inputs."""

    first_steps: int = option(400, "adaptation steps per block in the first epoch", "[0, inf)")
    last_steps: int = option(400, "adaptation steps per block from `ramp_epochs` on", "[0, inf)")
    ramp_epochs: int = option(1, "epochs over which the number of steps changes", "[1, inf)")
    stop_epoch: int = option(40, "last epoch with adaptation", "[-1, inf)")
    critic_steps: int = option(5, "steps of the Wasserstein critic before each step of the features", "[1, inf)")
    critic_size: int = option(100, "width of the critic's hidden layer", "[1, inf)")
    penalty: float = option(10.0, "weight of the gradient penalty", "[0, inf)")
    weight_decay: float = option(1e-5, "L2 penalty of the critic's weights", "[0, inf)")
    learning_rate: float = option(1e-4, "Adam's step size for critic and features", "(0, inf)")
    batch_size: int = option(256, "real and imagined transitions per step, drawn separately per network", "[1, inf)")


@dataclass(frozen=True)
class VagramConfig:
    """Value-gradient-weighted model loss."""

    quantile: float = option(0.95, "gradients longer than this quantile of their lengths are clipped to it", "(0, 1]")
    mse_steps: int = option(1000, "steps after warm-up in which the plain squared error is added", "[0, inf)")


@dataclass(frozen=True)
class RolloutConfig:
    """Branched rollouts in the model."""

    batch: int = option(100_000, "branches started after each fit", "[1, inf)")
    shortest: int = option(1, "steps per branch before `first_epoch`", "[1, inf)")
    longest: int = option(1, "steps per branch after `last_epoch`", "[1, inf)")
    first_epoch: int = option(0, "epoch (of epoch_steps after the warm-up) at which branches begin to grow", "[0, inf)")
    last_epoch: int = option(1, "epoch at which branches are longest", "[1, inf)")
    retain_epochs: int = option(1, "epochs of imagined transitions that are kept", "[1, inf)")
    max_rows: int = option(
        1_000_000, "most imagined transitions kept; beyond it fewer branches are started", "[1, inf)"
    )
    deterministic: bool = option(False, "step by a network's mean instead of a sample")
    reward_penalty: float = option(
        0.0, "times the variance of all networks' rewards, subtracted from the reward", "[0, inf)"
    )


@dataclass(frozen=True)
class DoubleConfig:
    """DHMBPO: long distribution rollouts and short training rollouts."""

    far: int = option(20, "steps of a distribution rollout, whose states training rollouts start from", "[1, inf)")
    near: int = option(5, "steps of a training rollout, which is differentiated", "[1, inf)")
    refresh: int = option(20, "updates between two distribution rollouts", "[1, inf)")
    retain: int = option(10, "distribution rollouts whose states are kept", "[1, inf)")
    clear: bool = option(False, "drop the states of the last model when a new one is fitted")
    critic_share: float = option(0.25, "critic-only updates after a fit, as a share of a block", "[0, inf)")
    critic_near: int = option(
        0,
        "steps of a training rollout in critic-only updates; the first `near` count for value bounds; 0: `near`",
        "[0, inf)",
    )
    actor_clip: float = option(0.0, "largest norm of the actor's gradient; 0: no limit", "[0, inf)")
    kl_bound: float = option(
        0.0,
        "KL divergence from the policy that collected the block beyond which updates reduce it, from the second update "
        "phase on; 0: no bound",
        "[0, inf)",
    )
    actor_average: float = option(
        1.0, "share of the trained actor that the acting one takes over per update; 1: they are the same", "(0, 1]"
    )
    keep_moments: bool = option(False, "keep Adam's moments of the agent from one update phase to the next")
    zero_bounds: bool = option(False, "let the value bounds include 0, the value after an episode's end")
    critic_dropout: float = option(1e-3, "dropout rate of the critics' hidden units", "[0, 1)")
    bound_quantile: float = option(0.01, "quantile of soft rewards at either end that bounds values", "(0, 0.5)")
    bound_rate: float = option(3e-4, "share of newly seen bounds that is taken over at each update", "(0, 1]")
    dropout: tuple[float, ...] = option(
        (0.0075, 0.005, 0.0025), "dropout rate of each hidden layer of the model", "[0, 1)"
    )
    noise_decay: float = option(1e-2, "decoupled decay of the model's log-noise", "[0, inf)")
    reward_noise: float = option(1e-3, "noise added to reward targets, in the reward's own units", "[0, inf)")
    epoch_batches: int = option(6, "most minibatches per epoch; there are fewer while data are few", "[1, inf)")
    judge_every: int = option(2, "epochs between two evaluations on the holdout", "[1, inf)")
    significance: float = option(0.1, "p-value below which a gain on the holdout counts", "(0, 1)")
    first_factor: int = option(5, "factor on patience and epochs for the first fit", "[1, inf)")


FIRST_TUNING_SEED = 1000
"""Settings are tuned on seeds from here on; results are reported on smaller ones."""


@dataclass(frozen=True)
class RunConfig:
    """How far a run goes, and what is recorded on the way; none of it changes what is learned."""

    steps: int = option(4000, "real steps in all, warm-up included", "[1, inf)")
    eval_every: int = option(1000, "real steps between evaluations; the last step is evaluated too", "[1, inf)")
    eval_episodes: int = option(10, "episodes per evaluation; 0 reports the training episodes instead", "[0, inf)")
    best_over: int = option(
        3, "evaluations by whose mean a policy is judged to be the best so far, for best_policy.safetensors", "[1, inf)"
    )
    checkpoint_every: int = option(1000, "real steps between checkpoints; the last two are kept", "[1, inf)")
    archive_at: tuple[int, ...] = option(
        (), "steps at which agent, model and replay buffer are archived, e.g. 20000,40000", "[1, inf)"
    )
    diagnose: bool = option(
        False,
        "measure the model's error on fresh steps of the current policy; costs such steps",
        needs=(Feature.MODEL,),
    )
    diagnose_every: int = option(1000, "real steps between diagnoses", "[1, inf)", needs=(Feature.MODEL,))
    diagnose_steps: int = option(
        1000, "fresh steps per diagnosis, never learned from", "[1, inf)", needs=(Feature.MODEL,)
    )
    env_timeout: float = option(
        3600.0,
        "seconds that a step or reset of the environment may take before the run is ended; 0: no limit",
        "[0, inf)",
    )


@dataclass(frozen=True)
class Config:
    """Everything that decides what is learned. What is compiled depends on this alone."""

    env: str = option("InvertedPendulum-v5", "environment id, or module:Id")
    method: str = option("pdml", "method", choices=tuple(METHODS))
    preset: str = option(
        "paper",
        "named set of changes to the defaults; published: the settings of DHMBPO's paper",
        choices=tuple(PRESETS),
    )
    seed: int = option(0, "seed of everything random", "[0, 4294967295]")
    warmup_steps: int = option(5000, "first steps: uniform actions, nothing is learned", "[2, inf)")
    model_every: int = option(
        250, "real steps per block: between two fits, and between two rows of progress.csv", "[1, inf)"
    )
    epoch_steps: int = option(
        1000, "real steps per epoch, the unit of schedules", "[1, inf)", needs=(Feature.BRANCHES,)
    )
    updates_per_step: int = option(20, "agent updates per real step", "[1, inf)")
    throttle: float = option(
        0.0,
        "skip updates while those of the epoch exceed this many per step after warm-up, as mbpo_pytorch with 5; "
        "0: never",
        "[0, inf)",
        needs=(Feature.BRANCHES,),
    )
    batch_size: int = option(256, "transitions per agent update", "[2, inf)")
    real_ratio: float = option(
        0.05, "share of real transitions in an agent update", "[0, 1)", needs=(Feature.BRANCHES,)
    )
    replay_capacity: int = option(1_000_000, "real transitions kept", "[1, inf)")
    time_limit_terminates: bool = option(
        False, "store the end by a time limit as a terminal one, without bootstrap", needs=(Feature.STEPWISE,)
    )
    weigh: str = option(
        "both",
        "what the weights are used for: minibatches of the model, starts of rollouts",
        choices=("both", "model", "starts", "none"),
        needs=(Feature.WEIGHTS,),
    )
    termination: str = option(
        "rule",
        "when imagined episodes end: rule (of the environment's family), never, learned, or module:function",
        needs=(Feature.MODEL,),
    )
    reward: str = option("learned", "the reward of imagined steps: learned, or module:function", needs=(Feature.MODEL,))
    max_episode_steps: int = option(
        0, "truncate episodes here, beside the environment's own ends; 0: do not", "[0, inf)"
    )
    agent: AgentConfig = AgentConfig()
    dynamics: DynamicsConfig = field(default=DynamicsConfig(), metadata={"needs": (Feature.MODEL,)})
    mixture: MixtureConfig = field(default=MixtureConfig(), metadata={"needs": (Feature.MIXTURE,)})
    priority: PriorityConfig = PriorityConfig()
    ampo: AmpoConfig = field(default=AmpoConfig(), metadata={"needs": (Feature.AMPO,)})
    vagram: VagramConfig = field(default=VagramConfig(), metadata={"needs": (Feature.VAGRAM,)})
    rollouts: RolloutConfig = field(default=RolloutConfig(), metadata={"needs": (Feature.BRANCHES,)})
    double: DoubleConfig = field(default=DoubleConfig(), metadata={"needs": (Feature.DOUBLE_HORIZON,)})

    @property
    def schedule(self) -> Schedule:
        """When blocks and epochs begin."""
        return Schedule(self.warmup_steps, self.model_every, self.epoch_steps)

    @property
    def log_action_scale(self) -> float:
        """Logarithm of the action space's volume per unit of [-1, 1], taken off log-probabilities; 0 if not wanted."""
        if not self.agent.scaled_log_prob:
            return 0.0
        task = listed_task(self.env)
        assert task is not None, "validation allows scaled_log_prob for listed environments only"
        return task.action_size * math.log(task.action_bound)


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    learning: Config = Config()
    run: RunConfig = RunConfig()
