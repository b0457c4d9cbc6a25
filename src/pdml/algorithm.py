"""Algorithm 2 of the paper, PDML-MBPO, top to bottom; with other recipes, the methods it is compared with.

[Wang et al. 2023, Appendix A]. Data goes one way round: environment, replay, history, weighting, model, imagination,
agent, environment.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from pdml.config import Config
from pdml.dynamics import ModelState
from pdml.envs import Episode, Step, advance, begin
from pdml.history import History
from pdml.imagination import Imagined, Termination, empty, horizon, resize, sizes
from pdml.methods import RECIPES, Recipe
from pdml.randomness import Purpose, generator, key
from pdml.replay import RealRows, Replay
from pdml.sampling import Sampler
from pdml.timing import Stopwatch
from pdml.transition import Layout
from pdml.weighting import Context, Weights


@dataclass
class BlockLog:
    """What a block has to report when it ends."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Of the weighting, the fit and the imagination that opened it."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the agent's updates so far."""
    finished: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of the training episodes that ended in it."""
    evaluated: float = float("nan")
    """Mean return of the evaluation in it, if there was one."""


@dataclass
class TrainState:
    """All that changes while learning, in one record: what is saved, and all that a run needs to go on."""

    step: int
    """Real steps taken, warm-up included."""
    agent: Any
    model: ModelState
    imagined: Imagined
    replay: Replay
    history: History
    episode: Episode
    log: BlockLog = field(default_factory=BlockLog)
    recent: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of the episodes that ended since the last evaluation or the warm-up."""
    evaluation_steps: int = 0
    """Real steps spent on evaluation, beyond those learned from."""


class Parts(NamedTuple):
    """A recipe wired for a run: the functions of the loop, each compiled once."""

    recipe: Recipe
    act: Callable[..., jax.Array]
    improve: Callable[..., tuple]
    imagine: Callable[..., tuple]
    resize: Callable[..., Imagined]


def wire(config: Config, layout: Layout, terminated: Termination) -> Parts:
    """Build the recipe of the configuration and jit it at its edge."""
    recipe = RECIPES[config.method](config, layout, terminated)
    imagined_rows = config.batch_size - config.real_rows

    def act(actor: Any, obs: jax.Array, draw: jax.Array) -> jax.Array:
        return recipe.agent.sample(actor, obs[None], draw)[0]

    def improve(agent: Any, ring: Imagined, real: jax.Array, draw: jax.Array) -> tuple:
        """Make G minibatches of real and imagined rows and update on each."""
        row_draw, update_draw = jax.random.split(draw)
        index = jax.random.randint(row_draw, (config.updates_per_step, imagined_rows), 0, ring.size)
        batches = jnp.concatenate([real, ring.rows[index]], axis=1)
        return recipe.agent.improve(agent, batches, update_draw)

    return Parts(
        recipe=recipe,
        act=jax.jit(act),
        improve=jax.jit(improve, donate_argnums=0),
        imagine=jax.jit(recipe.imagine, donate_argnums=2),
        resize=jax.jit(resize, donate_argnums=0),
    )


def init(config: Config, layout: Layout, parts: Parts, env: gymnasium.Env) -> TrainState:
    """Return the state before the first step (line 1)."""
    agent = parts.recipe.agent.init(key(config.seed, Purpose.AGENT_INIT))
    return TrainState(
        step=0,
        agent=agent,
        model=parts.recipe.dynamics.init(key(config.seed, Purpose.MODEL_INIT)),
        imagined=empty(config, layout),
        replay=Replay(layout, config.replay_capacity),
        history=History(agent.actor, layout.obs_size, config.mixture.reservoir, config.seed),
        episode=begin(env, config.seed, 0),
    )


def train(
    state: TrainState,
    env: gymnasium.Env,
    parts: Parts,
    config: Config,
    clock: Stopwatch,
    after_step: Callable[[TrainState], None] = lambda state: None,
) -> TrainState:
    """Algorithm 2. Numbers on the right are the paper's lines.

    A block is `model_every` steps of the policy, which goes on learning meanwhile, and ends with the snapshot that
    stands for it; the warm-up is block 0. As in MBPO, the G updates of lines 13-15 follow every real step.

    Args:
        after_step: Called after every real step: logs, evaluates, archives.
    """
    for step in range(state.step, config.steps):  # 2
        learned = step - config.warmup_steps
        if learned >= 0 and learned % config.model_every == 0:
            state.history.push(state.agent.actor)  # 4
            real = state.replay.stored()
            with clock("weigh"):
                weights = parts.recipe.weighting(_context(real, state))  # 5-6, Eq. (4)-(5)
            with clock("fit"):
                state.model, fitted = parts.recipe.dynamics.fit(state.model, real, weights.rows, step)  # 7-8, Eq. (7)
            with clock("imagine"):
                state.imagined, dreamed = _imagine(state, parts, config, real, weights, learned)  # 9-12
            state.log = BlockLog(weights.metrics | fitted | dreamed)
        with clock("collect"):
            state.episode, real_step = _collect(state, env, parts, config)  # 3
        if learned >= 0:
            with clock("improve"):
                state.agent = _improve(state, parts, config)  # 13-15
        state.step = step + 1
        if real_step.finished is not None:
            state.log.finished.append(real_step.finished)
            if learned >= 0:
                state.recent.append(real_step.finished)
        after_step(state)
    return state


def _context(real: RealRows, state: TrainState) -> Context:
    """Gather what weightings look at; nothing costly is computed unless it is asked for."""
    obs = real.rows[:, : state.replay.layout.obs_size]
    return Context(real.block, real.block_sizes, lambda: state.history.shifts(obs, state.replay.count))


def _imagine(
    state: TrainState, parts: Parts, config: Config, real: RealRows, weights: Weights, learned: int
) -> tuple[Imagined, dict[str, float]]:
    """Branch from weighted real states with the current policy, after giving the ring the size of this horizon."""
    length = horizon(config.rollouts, learned // config.epoch_steps)
    capacity, branches = sizes(config, length)
    ring = state.imagined
    if int(ring.capacity) != capacity:
        ring = parts.resize(ring, np.int32(capacity))
    sampler = Sampler(np.arange(len(real.rows)), weights.rows)
    chosen = sampler.draw((branches,), generator(config.seed, Purpose.STARTS, state.step))
    starts = np.zeros((config.rollouts.batch, state.replay.layout.obs_size), np.float32)
    starts[:branches] = real.rows[chosen, : state.replay.layout.obs_size]
    draw = key(config.seed, Purpose.IMAGINE, state.step)
    ring, stats = parts.imagine(
        state.model, state.agent.actor, ring, starts, np.int32(branches), np.int32(length), draw
    )
    if int(stats.steps) == 0:
        raise FloatingPointError("no imagined row is finite: the model has diverged")
    return ring, {
        "imagined/horizon": float(length),
        "imagined/rows": float(stats.steps),
        "imagined/terminated": float(stats.terminated),
        "imagined/dropped": float(stats.dropped),
        "imagined/size": float(ring.size),
    }


def _collect(state: TrainState, env: gymnasium.Env, parts: Parts, config: Config) -> tuple[Episode, Step]:
    """Take one real step, uniform in the warm-up, and store it with its block."""
    learned = state.step - config.warmup_steps
    if learned < 0:
        drawn = generator(config.seed, Purpose.WARMUP, state.step)
        action = drawn.uniform(-1.0, 1.0, state.replay.layout.action_size).astype(np.float32)
    else:
        draw = key(config.seed, Purpose.ACT, state.step)
        action = np.array(parts.act(state.agent.actor, state.episode.obs, draw))
    episode, step = advance(env, config.seed, state.episode, action)
    block = 0 if learned < 0 else 1 + learned // config.model_every
    state.replay.add(step.obs, step.action, step.reward, step.next_obs, step.terminated, block)
    return episode, step


def _improve(state: TrainState, parts: Parts, config: Config) -> Any:
    """Update the agent G times and add up its metrics."""
    drawn = generator(config.seed, Purpose.REAL_ROWS, state.step)
    real = state.replay.sample((config.updates_per_step, config.real_rows), drawn)
    agent, metrics = parts.improve(state.agent, state.imagined, real, key(config.seed, Purpose.IMPROVE, state.step))
    for name, value in jax.device_get(metrics).items():
        state.log.sums[name] = state.log.sums.get(name, 0.0) + float(value)
    return agent
