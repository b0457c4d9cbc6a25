"""Algorithm 2 of the paper, PDML-MBPO, top to bottom; with other recipes, the methods it is compared with.

[Wang et al. 2023, Appendix A]. Data goes one way round: environment, replay, history, weighting, model, imagination,
agent, environment.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from pdml.agents.sac import Lesson
from pdml.config.schema import Config
from pdml.core.errors import Diverged
from pdml.core.rng import Purpose, generator, key
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.data.minibatches import Mixing
from pdml.data.replay import RealRows, Replay
from pdml.data.sampling import Sampler
from pdml.envs.gym import Episode, Step, advance
from pdml.envs.termination_fns import Known
from pdml.models.rollouts import Imagined, horizon, resize, sizes
from pdml.training.diagnostics import Probes
from pdml.training.methods import RECIPES, Recipe, World
from pdml.training.scores import Scoring, scoring
from pdml.weighting.by_policy import Context, Weights, by_block
from pdml.weighting.policy_distance import estimator
from pdml.weighting.policy_history import History


@dataclass
class BlockLog:
    """What a block has to report when it ends."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Of the weighting, the fit and the imagination that opened it, or of the lesson that closed it."""
    shares: dict[str, list[float]] = field(default_factory=dict)
    """Of the weighting, one number a block of rows; see `pdml.weighting.by_policy.by_block`."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the agent's metrics, over the real steps that were followed by updates."""
    improved: int = 0
    """How many such steps there were."""
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
    model: Any
    imagined: Imagined | None
    """Model and imagined rows, unless the method is model-free."""
    mixing: Mixing
    replay: Replay
    history: History
    episode: Episode
    log: BlockLog = field(default_factory=BlockLog)
    recent: list[tuple[float, int]] = field(default_factory=list)
    """Return and length of the episodes that ended since the last evaluation or the warm-up."""
    probes: Probes = field(default_factory=lambda: Probes(0))
    """Fresh steps of past policies, if the run is diagnosed."""
    evaluation_steps: int = 0
    """Real steps spent on evaluation, beyond those learned from."""
    epoch_updates: int = 0
    """Updates of the agent in this epoch."""
    prior: int = 0
    """Rows that were handed in before the run; they are block 0 then, and the warm-up is block 1."""
    opened: int = -1
    """The step at which the model was last fitted, or -1: that happens once, whoever asks again."""


class Parts(NamedTuple):
    """A recipe wired for a run: the functions of the loop, each compiled once."""

    recipe: Recipe
    act: Callable[..., jax.Array]
    improve: Callable[..., tuple]
    imagine: Callable[..., tuple] | None
    resize: Callable[..., Imagined]
    scoring: Scoring


def wire(config: Config, layout: Layout, known: Known) -> Parts:
    """Wire the method of a configuration; agents that differ only in how far they go share what is compiled."""
    return _wired(replace(config, steps=0), layout, known)


@lru_cache(maxsize=4)
def _wired(config: Config, layout: Layout, known: Known) -> Parts:
    return jitted(config, layout, RECIPES[config.method](config, layout, known))


def jitted(config: Config, layout: Layout, recipe: Recipe) -> Parts:
    """Jit a recipe at its edge."""
    world, imagined_rows = recipe.world, config.batch_size - real_rows(config, recipe)

    def act(actor: Any, obs: jax.Array, draw: jax.Array) -> jax.Array:
        return recipe.agent.sample(actor, obs[None], draw)[0]

    def improve(
        agent: Any,
        ring: Imagined | None,
        batches: jax.Array,
        chosen: jax.Array | None,
        importance: jax.Array | None,
        draw: jax.Array,
    ) -> tuple:
        """Fill G minibatches of real rows up with imagined ones and update on each."""
        row_draw, update_draw = jax.random.split(draw)
        if ring is not None:
            if chosen is None:
                chosen = jax.random.randint(row_draw, (config.updates_per_step, imagined_rows), 0, ring.size)
            batches = jnp.concatenate([batches, ring.rows[chosen]], axis=1)
        assert recipe.agent.improve is not None
        return recipe.agent.improve(agent, batches, importance, update_draw)

    return Parts(
        recipe=recipe,
        act=jax.jit(act),
        improve=jax.jit(improve, donate_argnums=0),
        imagine=None if world is None or world.imagine is None else jax.jit(world.imagine, donate_argnums=2),
        resize=jax.jit(resize, donate_argnums=0),
        scoring=scoring(config, layout),
    )


def real_rows(config: Config, recipe: Recipe) -> int:
    """Return how many rows of an agent's minibatch are real; the rest are imagined."""
    return config.batch_size if recipe.world is None else int(config.real_ratio * config.batch_size)


def init(config: Config, layout: Layout, parts: Parts, episode: Episode) -> TrainState:
    """Return the state before the first step (line 1), with the first episode just begun."""
    recipe, estimate = parts.recipe, estimator(config.mixture, layout.action_size, config.seed)
    agent, world = recipe.agent.init(key(config.seed, Purpose.AGENT_INIT)), recipe.world
    history = History(recipe.agent.head, agent.actor, layout, config.mixture.reservoir, config.seed, estimate)
    return TrainState(
        step=0,
        agent=agent,
        model=None if world is None else world.dynamics.init(key(config.seed, Purpose.MODEL_INIT)),
        imagined=None if world is None else world.empty(config, layout),
        mixing=recipe.mixing(config, real_rows(config, recipe)),
        replay=Replay(layout, config.replay_capacity),
        history=history,
        episode=episode,
        probes=Probes(layout.width),
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
    stands for it; the warm-up is a block of its own. As in MBPO, the G updates of lines 13-15 follow every real step.
    Agents with a lesson do all their learning, lines 4-15, at the end of a block, which one policy has collected.

    Args:
        after_step: Called after every real step: logs, evaluates, saves.
    """
    while state.step < config.steps:  # 2
        open_block(state, parts, config, clock)  # 4-12
        with clock("collect"):
            state.episode, taken = advance(env, config.seed, state.episode, act(state, parts, config))  # 3
        absorb(state, taken, parts, config, clock)  # 13-15; with a lesson 4-15
        after_step(state)
    return state


def open_block(state: TrainState, parts: Parts, config: Config, clock: Stopwatch) -> None:
    """At the first step of a block, fit the model to the current policy and imagine; line 8 minimises Eq. (7)."""
    world, learned = parts.recipe.world, state.step - config.warmup_steps
    if learned < 0 or learned % config.model_every != 0:
        return
    if parts.recipe.lesson is not None:  # has been taught when the last block ended
        state.log = BlockLog(state.log.metrics, state.log.shares)
        return
    if state.opened == state.step:
        return
    state.log, state.opened = BlockLog(), state.step
    if world is None:
        return
    real, weights, fitted = _fit(state, world, parts, config, clock)  # 4-8
    with clock("imagine"):
        state.imagined, dreamed = _imagine(state, parts, config, real, weights, learned)  # 9-12
    with clock("refine"):  # other methods than PDML
        state.model, state.agent, refined = world.refine(
            state.model, state.agent, state.imagined, real, fitted, state.step
        )
    state.log.metrics |= fitted | dreamed | refined


def close_block(state: TrainState, parts: Parts, config: Config, clock: Stopwatch) -> None:
    """After the last step of a block, fit the model and teach agents that have a lesson; the first makes up leeway."""
    world, lesson, learned = parts.recipe.world, parts.recipe.lesson, state.step - config.warmup_steps
    if world is None or lesson is None or learned < 0 or learned % config.model_every != 0:
        return
    state.opened = state.step
    real, weights, fitted = _fit(state, world, parts, config, clock)  # 4-8
    owed = config.model_every if learned else max(config.warmup_steps + state.prior, config.model_every)
    with clock("improve"):
        told = _teach(state, lesson, real, weights, owed)  # 9-15
    state.log.metrics |= fitted | told


def _fit(
    state: TrainState, world: World, parts: Parts, config: Config, clock: Stopwatch
) -> tuple[RealRows, Weights, dict[str, float]]:
    """Take a snapshot of the policy, weigh the real rows by it and fit the model to them."""
    state.history.push(state.agent.actor)  # 4
    real = state.replay.stored()
    with clock("weigh"):
        weights = world.weighting(_context(real, state, parts, config))  # 5-6, Eq. (4)-(5)
    with clock("fit"):
        state.model, fitted = world.dynamics.fit(state.model, real, weights.model, state.agent, state.step)  # 7-8
    state.log.metrics = dict(weights.metrics)
    state.log.shares = by_block(weights, real.block, len(real.block_sizes))
    return real, weights, fitted


def act(state: TrainState, parts: Parts, config: Config) -> np.ndarray:
    """Choose the action of this step: uniform in the warm-up, then a sample of the policy."""
    if state.step < config.warmup_steps:
        drawn = generator(config.seed, Purpose.WARMUP, state.step)
        return drawn.uniform(-1.0, 1.0, state.replay.layout.action_size).astype(np.float32)
    draw = key(config.seed, Purpose.ACT, state.step)
    return np.array(parts.act(state.agent.actor, state.episode.obs, draw))


def absorb(state: TrainState, taken: Step, parts: Parts, config: Config, clock: Stopwatch) -> None:
    """Store a real step with its block, and update the agent G times; a lesson comes when its block ends."""
    learned = state.step - config.warmup_steps
    terminated = taken.terminated or (config.time_limit_terminates and taken.finished is not None)
    block = (state.prior > 0) + (0 if learned < 0 else 1 + learned // config.model_every)
    state.replay.add(taken.obs, taken.action, taken.reward, taken.next_obs, terminated, block)
    if learned >= 0 and parts.recipe.lesson is None and _due(state, config):
        with clock("improve"):
            state.agent = _improve(state, parts, config)
    state.step += 1
    if taken.finished is not None:
        state.log.finished.append(taken.finished)
        if learned >= 0:
            state.recent.append(taken.finished)
    close_block(state, parts, config, clock)


def add_prior(state: TrainState, rows: Float32[np.ndarray, "n width"]) -> None:
    """Store rows that were collected before the run, as a block of their own before the warm-up."""
    state.replay.extend(rows)
    state.prior = len(rows)


def _context(real: RealRows, state: TrainState, parts: Parts, config: Config) -> Context:
    """Gather what weightings look at; nothing costly is computed unless it is asked for."""
    obs = real.rows[:, : state.replay.layout.obs_size]
    td_draw, model_draw = (key(config.seed, use, state.step) for use in (Purpose.TD_SCORES, Purpose.MODEL_SCORES))
    return Context(
        block=real.block,
        block_sizes=real.block_sizes,
        shifts=lambda: state.history.shifts(obs, state.replay.count),
        td_errors=lambda: parts.scoring.td_errors(state.agent, real.rows, td_draw),
        values=lambda: parts.scoring.values(state.agent, real.rows),
        model_errors=lambda: parts.scoring.model_errors(state.model, real.rows, model_draw),
        random=lambda: generator(config.seed, Purpose.MISALIGN, state.step),
        leading=1 + (state.prior > 0),
    )


def _imagine(
    state: TrainState, parts: Parts, config: Config, real: RealRows, weights: Weights, learned: int
) -> tuple[Imagined, dict[str, float]]:
    """Branch from weighted real states with the current policy, after giving the ring the size of this horizon."""
    length = horizon(config.rollouts, learned // config.epoch_steps)
    capacity, branches = sizes(config, length)
    ring, imagine = cast(Imagined, state.imagined), cast(Callable[..., tuple], parts.imagine)
    if int(ring.capacity) != capacity:
        ring = parts.resize(ring, np.int32(capacity))
    sampler = Sampler(np.arange(len(real.rows)), weights.starts)
    chosen = sampler.draw((branches,), generator(config.seed, Purpose.STARTS, state.step))
    starts = np.zeros((config.rollouts.batch, state.replay.layout.obs_size), np.float32)
    starts[:branches] = real.rows[chosen, : state.replay.layout.obs_size]
    draw = key(config.seed, Purpose.IMAGINE, state.step)
    ring, stats = imagine(state.model, state.agent.actor, ring, starts, np.int32(branches), np.int32(length), draw)
    if int(stats.steps) == 0:
        raise Diverged("no imagined row is finite: the model has diverged")
    state.mixing.imagined(ring, int(stats.steps))
    return ring, {
        "imagined/horizon": float(length),
        "imagined/rows": float(stats.steps),
        "imagined/terminated": float(stats.terminated),
        "imagined/dropped": float(stats.dropped),
        "imagined/size": float(ring.size),
    }


def _teach(state: TrainState, lesson: Lesson, real: RealRows, weights: Weights, owed: int) -> dict[str, float]:
    """Let the agent learn, for so many steps, from rollouts that begin in weighted real states."""
    sampler, obs_size = Sampler(np.arange(len(real.rows)), weights.starts), state.replay.layout.obs_size

    def starts(shape: tuple[int, int], drawn: np.random.Generator) -> np.ndarray:
        return real.rows[sampler.draw(shape, drawn), :obs_size]

    state.agent, state.imagined, told = lesson.teach(state.agent, state.model, state.imagined, starts, state.step, owed)
    return told


def _due(state: TrainState, config: Config) -> bool:
    """Say whether updates follow this step, and count them; only a throttle ever skips them."""
    learned = state.step - config.warmup_steps
    if learned % config.epoch_steps == 0:
        state.epoch_updates = 0
    if config.throttle > 0 and state.epoch_updates > config.throttle * learned:
        return False
    state.epoch_updates += config.updates_per_step
    return True


def _improve(state: TrainState, parts: Parts, config: Config) -> Any:
    """Update the agent G times and add up its metrics."""
    chosen = state.mixing.choose(state.replay, state.step)
    draw = key(config.seed, Purpose.IMPROVE, state.step)
    agent, metrics, priorities = parts.improve(
        state.agent, state.imagined, state.replay.take(chosen.real), chosen.imagined, chosen.importance, draw
    )
    state.mixing.learn(chosen, None if priorities is None else np.asarray(priorities))
    for name, value in jax.device_get(metrics).items():
        if not np.isfinite(value):
            raise Diverged(f"{name} is not finite: the agent has diverged")
        state.log.sums[name] = state.log.sums.get(name, 0.0) + float(value)
    state.log.improved += 1
    return agent
