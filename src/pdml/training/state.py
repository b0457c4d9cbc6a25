"""The state of training: all that changes while learning, in one record. During a run, only this package changes it."""

from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float32

from pdml.config.schema import Config
from pdml.core.pytree import flatten, unflatten
from pdml.core.rng import Purpose, key
from pdml.core.transition import Layout
from pdml.core.types import Metrics
from pdml.data.minibatches import MinibatchSampler
from pdml.data.model_buffer import ModelBuffer, with_room
from pdml.data.replay import Replay
from pdml.envs.episode import Episode, begin_episode, reproduce_episode
from pdml.training.recipe import Recipe, real_rows
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import PolicyHistory


@dataclass
class BlockLog:
    """What a block has to report when it ends."""

    metrics: Metrics = field(default_factory=dict)
    """Metrics of the weighting, the fit and the rollouts, or of the update phase."""
    shares: dict[str, list[float]] = field(default_factory=dict)
    """Weights summed per block of transitions; see `pdml.weighting.base.by_block`."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums of the agent's metrics over the real steps that were followed by updates."""
    improved: int = 0
    """How many such steps there were."""
    finished: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of the training episodes that ended in it."""


@dataclass
class TrainState:
    """All that changes while learning: what a checkpoint holds, and all that resuming needs."""

    step: int
    """Real steps taken, warm-up included."""
    agent: Any
    model: Any
    model_buffer: ModelBuffer | None
    """Model and model buffer; None where the method is model-free."""
    minibatches: MinibatchSampler
    replay: Replay
    history: PolicyHistory
    episode: Episode
    log: BlockLog = field(default_factory=BlockLog)
    epoch_updates: int = 0
    """Updates of the agent in this epoch."""
    prior: int = 0
    """Transitions that were given before the run; they are block 0 then, and the warm-up is block 1."""
    prior_learned: int = 0
    """How many of them the agent had learned from before the run, where it was taken over from another one."""
    warm_started: bool = False
    """Whether the agent was taken over from another run: it acts in the warm-up too."""
    warmup_offset: int = 0
    """Where its uniform actions begin in their sequence: behind those of the run that it started from."""
    block_start: int = -1
    """The step at which the newest block was opened, or -1 before learning begins. A block is opened once."""

    @property
    def buffer(self) -> ModelBuffer:
        """The model buffer, of a method that has one."""
        assert self.model_buffer is not None, "a model-free method has no model buffer"
        return self.model_buffer

    @property
    def learning(self) -> bool:
        """Whether anything has been learned yet."""
        return self.block_start >= 0


def initial_state(config: Config, layout: Layout, recipe: Recipe, episode: Episode, steps: int) -> TrainState:
    """Return the state before the first step (line 1 of Algorithm 2), with the first episode just begun.

    Args:
        steps: How far the run is meant to go: the model buffer has room for that.
    """
    agent, model = recipe.agent.init(key(config.seed, Purpose.AGENT_INIT)), recipe.model
    estimate = estimator(config.mixture, layout.action_size, config.seed)
    return TrainState(
        step=0,
        agent=agent,
        model=None if model is None else model.dynamics.init(key(config.seed, Purpose.MODEL_INIT)),
        model_buffer=None if model is None else model.empty_buffer(config, layout, steps),
        minibatches=recipe.minibatches(config, real_rows(config, recipe)),
        replay=Replay(layout, config.replay_capacity),
        history=PolicyHistory(recipe.agent.head, agent.actor, layout, config.mixture.reservoir, config.seed, estimate),
        episode=episode,
    )


def add_prior(state: TrainState, rows: Float32[np.ndarray, "n width"]) -> None:
    """Store transitions that were collected before the run, as a block of their own before the warm-up."""
    state.replay.extend(rows)
    state.prior = len(rows)


def extend_model_buffer(state: TrainState, rows: int) -> None:
    """Give the model buffer room for more rows, for a run that goes further than it was meant to."""
    if state.model_buffer is not None:
        state.model_buffer = with_room(state.model_buffer, rows)


def saved_state(state: TrainState) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the state as arrays and JSON: what `restored_state` reads. Names are part of the file format."""
    trees = (("agent", state.agent), ("model", state.model), ("imagined", state.model_buffer))
    arrays = {name: array for prefix, tree in trees for name, array in flatten(tree, prefix).items()}
    if state.model_buffer is not None:
        arrays["imagined.rows"] = arrays["imagined.rows"][: int(state.model_buffer.capacity)]
    parts = (("replay", state.replay), ("history", state.history), ("mixing", state.minibatches))
    arrays |= {f"{prefix}.{name}": array for prefix, part in parts for name, array in part.arrays().items()}
    width = state.replay.layout.action_size
    actions = np.array(state.episode.actions, np.float32).reshape(-1, width)
    arrays |= {"episode.obs": state.episode.obs, "episode.actions": actions}
    note = {
        "step": state.step,
        "epoch_updates": state.epoch_updates,
        "prior": state.prior,
        "prior_learned": state.prior_learned,
        "warm_started": state.warm_started,
        "warmup_offset": state.warmup_offset,
        "opened": state.block_start,
        "episode": {"number": state.episode.number, "total": state.episode.total, "foreign": state.episode.foreign},
        "log": asdict(state.log),
    }
    return arrays, note


def restored_state(blank: TrainState, arrays: dict[str, np.ndarray], note: dict[str, Any]) -> TrainState:
    """Return the state that `saved_state` described.

    Args:
        blank: A state before the first step, of the same configuration; it is consumed.
    """
    blank.replay.restore(section(arrays, "replay."))
    blank.history.restore(section(arrays, "history."))
    blank.minibatches.restore(section(arrays, "mixing."))
    return TrainState(
        step=note["step"],
        agent=unflatten(blank.agent, arrays, "agent"),
        model=unflatten(blank.model, arrays, "model"),
        model_buffer=unflatten(blank.model_buffer, _with_rows(arrays, blank.model_buffer), "imagined"),
        minibatches=blank.minibatches,
        replay=blank.replay,
        history=blank.history,
        episode=Episode(
            obs=arrays["episode.obs"].copy(), actions=list(arrays["episode.actions"].copy()), **note["episode"]
        ),
        log=_restored_log(note["log"]),
        epoch_updates=note["epoch_updates"],
        prior=note["prior"],
        prior_learned=note.get("prior_learned", 0),
        warm_started=note.get("warm_started", False),
        warmup_offset=note.get("warmup_offset", 0),
        block_start=note["opened"],
    )


def resume_episode(state: TrainState, env: gymnasium.Env, seed: int, layout: Layout) -> bool:
    """Bring an environment to where a restored state left it; return whether it got there again.

    Otherwise, and where the caller stepped another environment, a new episode begins.
    """
    if state.episode.foreign:
        state.episode = begin_episode(env, seed, state.episode.number + 1)
        return True
    count = min(len(state.episode.actions), state.replay.size)
    seen = state.replay.stored().rows[state.replay.size - count :, : layout.obs_size]
    state.episode, reproduced = reproduce_episode(env, seed, state.episode, seen)
    return reproduced


def _restored_log(kept: dict[str, Any]) -> BlockLog:
    return BlockLog(
        metrics=kept["metrics"],
        shares=kept["shares"],
        sums=kept["sums"],
        improved=kept["improved"],
        finished=[(total, length) for total, length in kept["finished"]],
    )


def _with_rows(arrays: dict[str, np.ndarray], buffer: ModelBuffer | None) -> dict[str, np.ndarray]:
    """Pad the saved rows of the model buffer to its size in this run, which depends on the steps to come."""
    kept = arrays.get("imagined.rows")
    if buffer is None or kept is None or len(kept) > len(buffer.rows):
        return arrays
    rows = np.zeros(buffer.rows.shape, np.float32)
    rows[: len(kept)] = kept
    return {**arrays, "imagined.rows": rows}


def section(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the entries whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
