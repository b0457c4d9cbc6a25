"""Algorithm 2 of the paper, PDML-MBPO, and the two other ways to learn: model-free, and DHMBPO's update phases.

[Wang et al. 2023, Appendix A]. A learner is a generator: it yields an action, is sent the step that the action led to,
and yields once more when it has learned from it. So the same three loops serve an environment (`train`) and a caller
who steps the environment (`pdml.Agent.act` and `observe`).
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import gymnasium
import jax
import numpy as np
from jaxtyping import Float32

from pdml.config.methods import METHODS
from pdml.config.schedule import Schedule
from pdml.config.schema import Config
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, generator, key
from pdml.core.stopwatch import Stopwatch
from pdml.data.model_buffer import branch_length, branch_sizes
from pdml.data.replay import RealRows
from pdml.data.sampling import Sampler
from pdml.envs.episode import Episode, Step, advance_episode, begin_episode, follow_step
from pdml.training.exploration import pink_noise
from pdml.training.recipe import Parts
from pdml.training.state import BlockLog, TrainState
from pdml.weighting.base import Context, Weights, by_block

Action = Float32[np.ndarray, " action"]

Learner = Generator[Action | None, Step, None]
"""Yields an action, is sent its step, yields None when it has learned from it, and so on without end."""


StartStates = Callable[[tuple[int, ...], np.random.Generator], Float32[np.ndarray, "... obs"]]
"""From a shape and a generator: real states for rollouts to start from."""


class Training(NamedTuple):
    """What a loop needs beside the state, none of which changes."""

    config: Config
    parts: Parts
    clock: Stopwatch

    @property
    def schedule(self) -> Schedule:
        """When blocks and epochs begin."""
        return self.config.schedule


class WeightedData(NamedTuple):
    """The replay buffer at the beginning of a block, and the weights of its transitions."""

    real: RealRows
    weights: Weights


def mbpo(state: TrainState, training: Training) -> Learner:
    """Algorithm 2: PDML-MBPO, and with other parts the whole family of MBPO. Numbers are the paper's lines.

    Line 1 is `initial_state`. The paper's pass collects first and then fits. Here it begins with the fit, since the
    warm-up has collected before the first one; the order of all steps is the same. A block is `model_every` steps, and
    the warm-up is a block of its own. The policy learns during a block, so the snapshot that closes a block stands for
    it. As in MBPO, the G updates of lines 13-15 follow every real step.
    """
    while True:  # 2
        if begins_block(state, training):
            snapshot(state)  # 4
            data = weigh(state, training)  # 5-6, Eq. (4)-(5)
            fit(state, training, data)  # 7-8, Eq. (7)
            imagine(state, training, data)  # 9-12
            refine(state, training, data)  # of AMPO and MaPER
        step = yield act(state, training)  # 3
        store(state, training, step)  # 3
        improve(state, training)  # 13-15
        yield None


def model_free(state: TrainState, training: Training) -> Learner:
    """SAC and REDQ: updates on real transitions after every real step."""
    while True:
        step = yield act(state, training)
        store(state, training, step)
        improve(state, training)
        yield None


def dhmbpo(state: TrainState, training: Training) -> Learner:
    """DHMBPO [Kubo et al. 2025]: all learning happens between blocks, so one policy collects a block."""
    while True:
        step = yield act(state, training)
        store(state, training, step)
        if training.schedule.at_boundary(state.step):
            snapshot(state)
            data = weigh(state, training)
            fit(state, training, data)
            update(state, training, data)
        yield None


LEARNERS: dict[str, Callable[[TrainState, Training], Learner]] = {
    "mbpo": mbpo,
    "model-free": model_free,
    "dhmbpo": dhmbpo,
}
"""By `pdml.config.methods.Method.learner`."""


class Interaction:
    """A learner at work: `step` it through an environment, or `act` and `observe` for an environment of the caller."""

    def __init__(self, state: TrainState, training: Training):
        self._state, self._training = state, training
        self._learner = self._new_learner()
        self._action: Action | None = None

    def _new_learner(self) -> Learner:
        return LEARNERS[METHODS[self._training.config.method].learner](self._state, self._training)

    def begin_episode(self, env: gymnasium.Env) -> None:
        """Begin the next episode in an environment; an action that the caller has not answered is dropped."""
        self._action, self._learner = None, self._new_learner()
        self._state.episode = begin_episode(env, self._training.config.seed, self._state.episode.number + 1)

    def begin_foreign_episode(self) -> None:
        """Begin the next episode in an environment that the caller steps."""
        self._state.episode = Episode(self._state.episode.number + 1, foreign=True)

    def step(self, env: gymnasium.Env) -> Step:
        """Act, take one step in an environment and learn from it."""
        action = next(self._learner)
        assert action is not None
        with self._training.clock("collect"):
            self._state.episode, step = advance_episode(env, self._training.config.seed, self._state.episode, action)
        self._learner.send(step)
        return step

    @property
    def action(self) -> Action | None:
        """The action that `act` returned and `observe` has not answered yet."""
        return self._action

    def act(self, obs: Float32[np.ndarray, " obs"]) -> Action:
        """Return the action for an observation of the caller's environment, in [-1, 1]."""
        self._state.episode.obs = obs
        if self._action is not None:  # asked again: the last action was not taken
            self._learner = self._new_learner()
        self._action = next(self._learner)
        assert self._action is not None
        return self._action

    def observe(
        self,
        action: Action,
        next_obs: Float32[np.ndarray, " obs"],
        reward: float,
        terminated: bool,
        truncated: bool,
    ) -> Step:
        """Learn from what an action led to in the caller's environment."""
        state = self._state
        state.episode, step = follow_step(state.episode, action, next_obs, reward, terminated, truncated)
        self._action = None
        self._learner.send(step)
        return step


def train(
    state: TrainState,
    env: gymnasium.Env,
    training: Training,
    steps: int,
    after_step: Callable[[TrainState, Step], None] = lambda state, step: None,
) -> TrainState:
    """Train in an environment until so many real steps are taken.

    Args:
        after_step: Called after every real step: logs, evaluates, saves.
    """
    interaction = Interaction(state, training)
    while state.step < steps:
        step = interaction.step(env)
        after_step(state, step)
    return state


def begins_block(state: TrainState, training: Training) -> bool:
    """Say whether the next step is the first of a block that has not been opened yet."""
    return training.schedule.at_boundary(state.step) and state.block_start != state.step


def snapshot(state: TrainState) -> None:
    """Append the current policy to the historical policies."""
    state.block_start = state.step
    state.history.push(state.agent.actor)


def weigh(state: TrainState, training: Training) -> WeightedData:
    """Weight the real transitions, by the policies that collected them or by scores."""
    real = state.replay.stored()
    with training.clock("weigh"):
        weights = training.parts.model.weighting(_context(real, state, training))
    state.log.metrics = dict(weights.metrics)
    state.log.shares = by_block(weights, real.block, len(real.block_sizes))
    return WeightedData(real, weights)


def fit(state: TrainState, training: Training, data: WeightedData) -> None:
    """Fit the model to minibatches drawn by the weights."""
    dynamics = training.parts.model.dynamics
    with training.clock("fit"):
        state.model, fitted = dynamics.fit(state.model, data.real, data.weights.model, state.agent, state.step)
    state.log.metrics |= fitted


def imagine(state: TrainState, training: Training, data: WeightedData) -> None:
    """Roll out the current policy from weighted real states, after resizing the model buffer to the branch length."""
    config, buffer, rollouts = training.config, state.buffer, training.parts.rollouts
    assert rollouts is not None
    with training.clock("imagine"):
        length = branch_length(config.rollouts, training.schedule.epoch(state.step))
        capacity, branches = branch_sizes(config, length)
        if int(buffer.capacity) != capacity:
            buffer = training.parts.resize(buffer, np.int32(capacity))
        rng, obs_size = generator(config.seed, Purpose.STARTS, state.step), state.replay.layout.obs_size
        starts = np.zeros((config.rollouts.batch, obs_size), np.float32)
        starts[:branches] = start_states(data, obs_size)((branches,), rng)
        rollout_key, counts = key(config.seed, Purpose.IMAGINE, state.step), (np.int32(branches), np.int32(length))
        buffer, stats = rollouts(state.model, state.agent.actor, buffer, starts, *counts, rollout_key)
        if int(stats.steps) == 0:
            raise Diverged("no imagined transition is finite: the model has diverged")
        state.minibatches.note_new_rows(buffer, int(stats.steps))
    state.model_buffer = buffer
    state.log.metrics |= {
        "imagined/horizon": float(length),
        "imagined/rows": float(stats.steps),
        "imagined/terminated": float(stats.terminated),
        "imagined/dropped": float(stats.dropped),
        "imagined/size": float(buffer.size),
    }


def refine(state: TrainState, training: Training, data: WeightedData) -> None:
    """Let AMPO adapt the model and MaPER train its critics' heads; other methods do nothing here."""
    with training.clock("refine"):
        state.model, state.agent, refined = training.parts.model.refine(
            state.model, state.agent, state.buffer, data.real, state.log.metrics, state.step
        )
    state.log.metrics |= refined


def act(state: TrainState, training: Training) -> Action:
    """Choose the action of the next step: uniform in the warm-up, then a sample of the policy.

    A policy that was taken over from another run is sampled in the warm-up too.
    """
    seed = training.config.seed
    with training.clock("collect"):
        if training.schedule.in_warmup(state.step) and not state.warm_started:
            rng = generator(seed, Purpose.WARMUP, state.warmup_offset + state.step)
            return rng.uniform(-1.0, 1.0, state.replay.layout.action_size).astype(np.float32)
        if training.config.agent.exploration == "pink":
            noise = pink_noise(seed, state.episode, state.replay.layout.action_size)
            return np.array(training.parts.act_by_noise(state.agent.actor, state.episode.obs, noise))
        action_key = key(seed, Purpose.ACT, state.step)
        return np.array(training.parts.act(state.agent.actor, state.episode.obs, action_key))


def store(state: TrainState, training: Training, step: Step) -> None:
    """Store a real step with the number of its block, and count it."""
    schedule, config = training.schedule, training.config
    if schedule.at_boundary(state.step):  # the first step of a block: begin its log
        state.block_start = state.step
        state.log = BlockLog(state.log.metrics, state.log.shares)
    terminated = step.terminated or (config.time_limit_terminates and step.finished is not None)
    block = (state.prior > 0) + schedule.block(state.step)
    state.replay.add(step.obs, step.action, step.reward, step.next_obs, terminated, block)
    state.step += 1
    if step.finished is not None:
        state.log.finished.append(step.finished)


def improve(state: TrainState, training: Training) -> None:
    """Update the agent G times after the step just taken, and add up its metrics."""
    taken = state.step - 1  # draws are addressed by the step before it was counted
    if training.schedule.in_warmup(taken):
        return
    if training.schedule.starts_epoch(taken):
        state.epoch_updates = 0
    if throttled(state, training, taken):
        return
    state.epoch_updates += training.config.updates_per_step
    with training.clock("improve"):
        chosen = state.minibatches.choose(state.replay, taken)
        state.agent, metrics, priorities = training.parts.improve(
            state.agent,
            state.model_buffer,
            state.replay.take(chosen.real),
            chosen.imagined,
            chosen.importance,
            key(training.config.seed, Purpose.IMPROVE, taken),
        )
        state.minibatches.update_priorities(chosen, None if priorities is None else np.asarray(priorities))
        for name, value in jax.device_get(metrics).items():
            if not np.isfinite(value):
                raise Diverged(f"{name} is not finite: the agent has diverged")
            state.log.sums[name] = state.log.sums.get(name, 0.0) + float(value)
    state.log.improved += 1


def update(state: TrainState, training: Training, data: WeightedData) -> None:
    """Run the update phase of a block; the first one also makes the updates pending from the warm-up.

    So it does those of prior transitions, unless the agent had learned from them before the run.
    """
    phase, obs_size = training.parts.recipe.update_phase, state.replay.layout.obs_size
    assert phase is not None
    pending = training.schedule.block_steps
    if training.schedule.after_warmup(state.step) == 0:
        pending = max(training.schedule.warmup_steps + state.prior - state.prior_learned, pending)
    with training.clock("improve"):
        draw_states = start_states(data, obs_size)
        state.agent, state.model_buffer, metrics = phase.run(
            state.agent, state.model, state.buffer, draw_states, state.step, pending
        )
    state.log.metrics |= metrics


def start_states(data: WeightedData, obs_size: int) -> StartStates:
    """Build the draw of real states, by their weights, for rollouts to start from."""
    sampler = Sampler(np.arange(len(data.real.rows)), data.weights.starts)
    return lambda shape, rng: data.real.rows[sampler.draw(shape, rng), :obs_size]


def throttled(state: TrainState, training: Training, step: int) -> bool:
    """Say whether updates are skipped after a step because the epoch has had many already."""
    throttle = training.config.throttle
    return throttle > 0 and state.epoch_updates > throttle * training.schedule.after_warmup(step)


def _context(real: RealRows, state: TrainState, training: Training) -> Context:
    """Gather what weightings may use; nothing costly is computed before it is asked for."""
    obs, seed, scores = real.rows[:, : state.replay.layout.obs_size], training.config.seed, training.parts.scores
    td_key, model_key = (key(seed, use, state.step) for use in (Purpose.TD_SCORES, Purpose.MODEL_SCORES))
    return Context(
        block=real.block,
        block_sizes=real.block_sizes,
        shifts=lambda: state.history.shifts(obs, state.replay.count),
        td_errors=lambda: scores.td_errors(state.agent, real.rows, td_key),
        values=lambda: scores.values(state.agent, real.rows),
        model_errors=lambda: scores.model_errors(state.model, real.rows, model_key),
        random=lambda: generator(seed, Purpose.MISALIGN, state.step),
        leading=1 + (state.prior > 0),
    )
