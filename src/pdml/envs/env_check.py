"""Try an environment with random actions and tell what will not work, before a run is spent on it."""

import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import TimeLimit

from pdml.config.schema import Config, defaults
from pdml.config.tasks import find_task, is_listed, refuse_versions
from pdml.core.errors import UserError
from pdml.envs.gym import EnvironmentFault, Episode, Step, adapt, advance, begin, make_env, make_plain, reproduce
from pdml.envs.spaces import describe, examine

STEPS = 300
SECONDS = 3.0
"""Steps are taken as long as this; repeating the last episodes takes as long again at most."""

TIMEOUT = 60.0
"""Seconds after which one step or reset hangs."""

LARGE = 1e3
"""Observations beyond it are noted: the policy and the critics see them as they are."""


class Finding(NamedTuple):
    """One thing that was found out; with a problem an environment cannot be learned."""

    kind: Literal["ok", "note", "problem"]
    text: str


class Trial(NamedTuple):
    """What random steps gave, episode by episode, and what ended them if the environment did."""

    episodes: list[list[Step]]
    seconds: float
    fault: str

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for episode in self.episodes for step in episode]


class Witness(gymnasium.Wrapper):
    """Keeps what is wrong with the first observation that does not lie in its space."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.complaint = ""

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        return self._heard(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self._heard(self.env.step(action))

    def _heard(self, result: Any) -> Any:
        obs = result[0] if isinstance(result, tuple) and result else result
        try:
            good = self.observation_space.contains(obs)
        except Exception:
            good = False
        if not good and not self.complaint:
            self.complaint = _complaint(self.observation_space, obs)
        return result


def examine_env(env_id: str, steps: int = STEPS, seconds: float = SECONDS) -> list[Finding]:
    """Make an environment, take random steps in it, and return what that tells, problems among it.

    Args:
        seconds: Time after which no more steps are taken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what matters of it is found again here
        try:
            found, config = _look(env_id)
        except UserError as error:
            return [Finding("problem", str(error))]
        return found if config is None else [*found, *_try(config, steps, seconds)]


def _look(env_id: str) -> tuple[list[Finding], Config | None]:
    """Return what can be said without a step, and the settings of a run if there can be one."""
    if not is_listed(env_id):
        refuse_versions(env_id)
    with closing(make_plain(env_id)) as env:
        refusals = list(_refusals(env, env_id))
        if refusals:
            return refusals, None
        config, task, limit = defaults(env_id), find_task(env_id), _limit(env)
        assert isinstance(env.action_space, Box)
        low, high = float(env.action_space.low.min()), float(env.action_space.high.max())
        found = [
            Finding("ok", f"observation: {_count(task.obs_size, 'number')}, from {describe(env.observation_space)}"),
            Finding("ok", f"action: {_count(task.action_size, 'number')} in [{low:g}, {high:g}]"),
        ]
    if limit is None and config.max_episode_steps:
        text = f"none of its own is known; episodes are cut after {config.max_episode_steps} (--max-episode-steps)"
        found.append(Finding("note", f"time limit: {text}"))
    else:
        found.append(Finding("ok", f"time limit: {limit} steps, its own" if limit else "time limit: its own"))
    rule = "by the rule of its family" if config.termination == "rule" else "learned, no rule is known for it"
    found += [Finding("ok", f"termination: {rule}"), Finding("ok", f"settings: {_settings(config)}")]
    return found, config


def _refusals(env: gymnasium.Env, env_id: str) -> Iterator[Finding]:
    """Yield what is wrong with each of the two spaces."""
    good = Box(-1.0, 1.0, (1,))
    for observation, action in ((env.observation_space, good), (good, env.action_space)):
        try:
            examine(observation, action, env_id)
        except UserError as error:
            yield Finding("problem", str(error))


def _limit(env: gymnasium.Env) -> int | None:
    """Return the time limit that a wrapper or the registration names."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, TimeLimit):
            return layer._max_episode_steps
        layer = layer.env
    return env.spec.max_episode_steps if env.spec is not None else None


def _settings(config: Config) -> str:
    rollouts = config.rollouts
    horizon = str(rollouts.shortest)
    if rollouts.longest > rollouts.shortest:
        horizon += f" to {rollouts.longest}"
    return (
        f"{config.steps} steps, warm-up {config.warmup_steps}, horizon {horizon}, "
        f"{config.updates_per_step} updates a step, target entropy {config.agent.target_entropy:g}"
    )


def _try(config: Config, steps: int, seconds: float) -> Iterator[Finding]:
    """Take random steps and yield what they tell."""
    witness, env = _make(config)
    with closing(env):
        trial = _walk(env, config.seed, steps, seconds)
    if trial.steps:
        yield _speed(trial, config)
        yield _repeats(trial, config)
    if trial.fault:
        yield Finding("problem", trial.fault)
    if witness is not None and witness.complaint:
        yield Finding("note", f"an observation does not lie in its space: {witness.complaint}")
    if trial.steps:
        yield from _numbers(trial.steps)
        yield from _endings(trial, config)


def _make(config: Config) -> tuple[Witness | None, gymnasium.Env]:
    """Make the environment as a run does; the listed ones need no witness."""
    if is_listed(config.env):
        return None, make_env(config.env, config.max_episode_steps, TIMEOUT)
    witness = Witness(make_plain(config.env))
    return witness, adapt(witness, config.env, config.max_episode_steps, TIMEOUT)


def _walk(env: gymnasium.Env, seed: int, steps: int, seconds: float) -> Trial:
    """Take uniform random actions until there are enough, time is over, or the environment does something wrong."""
    drawn, size = np.random.default_rng(seed), env.action_space.shape
    actions = drawn.uniform(-1.0, 1.0, (steps, *(size or ()))).astype(np.float32)
    episodes: list[list[Step]] = [[]]
    fault, start = "", time.perf_counter()
    try:
        episode = begin(env, seed, 0)
        for action in actions:
            episode, step = advance(env, seed, episode, action)
            episodes[-1].append(step)
            if step.finished is not None:
                episodes.append([])
            if time.perf_counter() - start > seconds:
                break
    except EnvironmentFault as error:
        fault = " ".join(str(error).split())
    took = time.perf_counter() - start
    return Trial([each for each in episodes if each], took, fault)


def _speed(trial: Trial, config: Config) -> Finding:
    count = len(trial.steps)
    each = trial.seconds / count
    text = f"{_count(count, 'random step')}, {_short(1.0 / each)} a second: {_short(1000 * each)} s per 1000 steps"
    return Finding("ok", f"{text}; of a run of {config.steps} steps it takes {_short(config.steps * each / 60)} min")


def _repeats(trial: Trial, config: Config) -> Finding:
    """Bring a fresh environment through the last episodes again, as resuming does."""
    numbered = list(enumerate(trial.episodes))[-2:]
    with closing(_make(config)[1]) as env:
        for number, steps in numbered:
            episode = Episode(number, steps[-1].next_obs, [step.action for step in steps])
            try:
                same = reproduce(env, config.seed, episode, np.stack([step.obs for step in steps]))[1]
            except EnvironmentFault:
                same = False
            if not same:
                text = "the same seed and actions give other observations: resume begins a new episode"
                return Finding("note", text)
    return Finding("ok", "the same seed and actions give the same observations: resume is exact")


def _numbers(steps: list[Step]) -> Iterator[Finding]:
    """Yield what the observations and rewards look like."""
    obs = np.stack([steps[0].obs, *(step.next_obs for step in steps)])
    still = np.flatnonzero(np.ptp(obs, axis=0) == 0.0)
    if len(still):
        yield Finding("note", f"observation: {_entries(still)} never changed")
    largest = np.abs(obs).max(axis=0)
    large = np.flatnonzero(largest > LARGE)
    if len(large):
        text = f"observation: {_entries(large)} reached {_short(float(largest.max()))} in size"
        yield Finding("note", f"{text}; the policy sees them as they are, better scale them to about 1")
    rewards = np.array([step.reward for step in steps])
    low, high, mean = rewards.min(), rewards.max(), rewards.mean()
    if low == high and len(steps) > 1:
        yield Finding("note", f"reward: always {low:.3g}")
    else:
        yield Finding("ok", f"reward: {low:.3g} to {high:.3g}, {mean:.3g} on average")


def _endings(trial: Trial, config: Config) -> Iterator[Finding]:
    """Yield how episodes ended."""
    whole = [each for each in trial.episodes if each[-1].finished is not None]
    lengths = [len(each) for each in whole if each[-1].terminated]
    cut = len(whole) - len(lengths)
    yield Finding("ok", f"episodes: {len(lengths)} ended by themselves, {cut} by a time limit")
    if len(lengths) > 1 and cut == 0 and len(set(lengths)) == 1 and lengths[0] > 1:
        text = f"every episode ended by itself after {lengths[0]} steps: if that is a time limit, it should be"
        yield Finding("note", f"{text} truncated, not terminated")
    if not lengths and config.termination == "learned":
        text = "no episode ended by itself: a learned termination has nothing to learn from yet"
        yield Finding("note", f"{text}; if none ever does, take --termination never")


def _complaint(space: gymnasium.Space, obs: Any) -> str:
    """Say what is wrong with an observation."""
    if not isinstance(space, Box):
        return f"it is not of its {describe(space)}"
    if not isinstance(obs, np.ndarray):
        return f"it is of type {type(obs).__name__}, not a numpy array"
    if obs.shape != space.shape:
        return f"its shape is {obs.shape}, not {space.shape}"
    if not np.can_cast(obs.dtype, space.dtype):
        return f"its numbers are {obs.dtype}, not {space.dtype}"
    outside = np.flatnonzero(~((obs >= space.low) & (obs <= space.high)).reshape(-1))
    entry = int(outside[0]) if len(outside) else 0
    low, high = space.low.reshape(-1)[entry], space.high.reshape(-1)[entry]
    return f"entry {entry} is {obs.reshape(-1)[entry]:g}, outside [{low:g}, {high:g}]"


def _entries(indices: np.ndarray, most: int = 8) -> str:
    shown = ", ".join(str(i) for i in indices[:most])
    return f"{'entry' if len(indices) == 1 else 'entries'} {shown}{' ...' if len(indices) > most else ''}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
