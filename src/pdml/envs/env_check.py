"""`pdml check`: take random steps in an environment and find what will not work, before training on it."""

import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from pdml.config.defaults import defaults
from pdml.config.parse import number, whole
from pdml.config.schema import Settings
from pdml.config.tasks import is_listed, refuse_versions
from pdml.core.errors import UserError
from pdml.core.stopwatch import duration
from pdml.envs.env_spec import task_for
from pdml.envs.episode import Episode, Step, advance_episode, begin_episode, reproduce_episode
from pdml.envs.gym import EnvironmentFault, adapt, make_env, make_plain, own_time_limit
from pdml.envs.spaces import describe_space, examine

STEPS = 300
SECONDS = 3.0
"""No more random steps are taken after this time; repeating the last episodes takes at most as long again."""

TIMEOUT = 60.0
"""Seconds after which a step or reset counts as hanging, unless more time is given for all random steps."""

LARGE = 1e3
"""Observations beyond it are noted: the policy and the critics see them unscaled."""


class Finding(NamedTuple):
    """One thing that the check found; PDML cannot train on an environment with a problem."""

    kind: Literal["ok", "note", "problem"]
    text: str


class Trial(NamedTuple):
    """Random steps, grouped by episode, and the fault of the environment that ended them, if any."""

    episodes: list[list[Step]]
    seconds: float
    fault: str

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [step for episode in self.episodes for step in episode]


class SpaceCheck(gymnasium.Wrapper):
    """Remembers what is wrong with the first observation that lies outside the observation space."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.fault = ""

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        return self._checked(self.env.reset(**kwargs))

    def step(self, action: Any) -> Any:
        """Take a step."""
        return self._checked(self.env.step(action))

    def _checked(self, result: Any) -> Any:
        obs = result[0] if isinstance(result, tuple) and result else result
        try:
            good = self.observation_space.contains(obs)
        except Exception:
            good = False
        if not good and not self.fault:
            self.fault = _fault_of(self.observation_space, obs)
        return result


def check_env(env_id: str, steps: int = STEPS, seconds: float = SECONDS) -> list[Finding]:
    """Make an environment, take random steps in it, and return all findings; raise if it cannot be made.

    Args:
        steps: Most random steps.
        seconds: Time after which no more steps are taken. A single step or reset may take as long, or 60 s if that is
            more; beyond it the process is ended.
    """
    if not isinstance(env_id, str):
        raise UserError(f"env = {env_id!r}: must be the name of an environment, such as 'Hopper-v5' or 'module:Id'")
    whole("steps", str(steps))
    number("seconds", str(seconds), above=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what matters is reported as a finding
        found, settings = _look(env_id)
        return found if settings is None else [*found, *_try(settings, steps, seconds)]


def _look(env_id: str) -> tuple[list[Finding], Settings | None]:
    """Return what can be said without a step, and the default settings if PDML can train on the environment."""
    if not is_listed(env_id):
        refuse_versions(env_id)
    with closing(make_plain(env_id)) as env:
        refusals = list(_refusals(env, env_id))
        if refusals:
            return refusals, None
        limit = own_time_limit(env)
        assert isinstance(env.action_space, Box)
        low, high = float(env.action_space.low.min()), float(env.action_space.high.max())
        source = describe_space(env.observation_space)
    task = task_for(env_id)  # makes it again: there may be only one at a time
    settings = defaults(env_id, task=task)
    found = [
        Finding("ok", f"observation: {_count(task.obs_size, 'number')}, from {source}"),
        Finding("ok", f"action: {_count(task.action_size, 'number')} in [{low:g}, {high:g}]"),
    ]
    config = settings.learning
    if limit is None and config.max_episode_steps:
        text = f"it declares none; episodes are truncated after {config.max_episode_steps} steps (--max-episode-steps)"
        found.append(Finding("note", f"time limit: {text}"))
    else:
        found.append(Finding("ok", f"time limit: {limit} steps, its own" if limit else "time limit: its own"))
    rule = "by the rule of its family" if config.termination == "rule" else "learned, no rule is known for it"
    found += [Finding("ok", f"termination: {rule}"), Finding("ok", f"settings: {_defaults_text(settings)}")]
    return found, settings


def _refusals(env: gymnasium.Env, env_id: str) -> Iterator[Finding]:
    """Yield what is wrong with each of the two spaces."""
    good = Box(-1.0, 1.0, (1,))
    for observation, action in ((env.observation_space, good), (good, env.action_space)):
        try:
            examine(observation, action, env_id)
        except UserError as error:
            yield Finding("problem", str(error))


def _defaults_text(settings: Settings) -> str:
    config, rollouts = settings.learning, settings.learning.rollouts
    length = str(rollouts.shortest)
    if rollouts.longest > rollouts.shortest:
        length += f" to {rollouts.longest}"
    return (
        f"{settings.run.steps} steps, warm-up {config.warmup_steps}, rollout length {length}, "
        f"{config.updates_per_step} updates per step, target entropy {config.agent.target_entropy:g}"
    )


def _try(settings: Settings, steps: int, seconds: float) -> Iterator[Finding]:
    """Take random steps and yield what they show."""
    timeout = max(TIMEOUT, seconds)
    check, env = _make(settings, timeout)
    with closing(env):
        trial = _random_steps(env, settings.learning.seed, steps, seconds)
        longest = settings.learning.max_episode_steps or own_time_limit(env)
        assert longest  # an environment without a limit gets one
    if trial.steps:
        yield _speed(trial, settings)
        yield _evaluation(trial, settings, longest)
        yield _reproducibility(trial, settings, timeout)
    if trial.fault:
        yield Finding("problem", trial.fault)
    if check is not None and check.fault:
        yield Finding("note", f"an observation lies outside its space: {check.fault}")
    if trial.steps:
        yield from _numbers(trial.steps)
        yield from _endings(trial, settings)


def _make(settings: Settings, timeout: float) -> tuple[SpaceCheck | None, gymnasium.Env]:
    """Make the environment as a run does; listed ones need no check of their spaces."""
    config = settings.learning
    if is_listed(config.env):
        return None, make_env(config.env, config.max_episode_steps, timeout)
    check = SpaceCheck(make_plain(config.env))
    return check, adapt(check, config.env, config.max_episode_steps, timeout)


def _random_steps(env: gymnasium.Env, seed: int, steps: int, seconds: float) -> Trial:
    """Take uniform random actions until there are enough, time is up, or the environment has a fault."""
    rng, size = np.random.default_rng(seed), env.action_space.shape
    actions = rng.uniform(-1.0, 1.0, (steps, *(size or ()))).astype(np.float32)
    episodes: list[list[Step]] = [[]]
    fault, start = "", time.perf_counter()
    try:
        episode = begin_episode(env, seed, 0)
        for action in actions:
            episode, step = advance_episode(env, seed, episode, action)
            episodes[-1].append(step)
            if step.finished is not None:
                episodes.append([])
            if time.perf_counter() - start > seconds:
                break
    except EnvironmentFault as error:
        fault = " ".join(str(error).split())
    took = time.perf_counter() - start
    return Trial([each for each in episodes if each], took, fault)


def _speed(trial: Trial, settings: Settings) -> Finding:
    count, total = len(trial.steps), settings.run.steps
    each = trial.seconds / count
    text = f"{_count(count, 'random step')}, {_short(1.0 / each)} per second: {_short(1000 * each)} s per 1000 steps"
    return Finding("ok", f"{text}; a run of {total} steps spends {duration(total * each)} in the environment")


def _evaluation(trial: Trial, settings: Settings, longest: int) -> Finding:
    """Say what evaluations take beside the run's own steps: in a slow environment most of the time."""
    run, each = settings.run, trial.seconds / len(trial.steps)
    took = duration(run.eval_episodes * longest * each)
    text = f"{_count(run.eval_episodes, 'episode')} of at most {longest} steps, {took}, every {run.eval_every} steps"
    return Finding("ok", f"evaluation: {text} of the run (--eval-every, --eval-episodes)")


def _reproducibility(trial: Trial, settings: Settings, timeout: float) -> Finding:
    """Repeat the last episodes in a fresh environment, as resuming does."""
    numbered, seed = list(enumerate(trial.episodes))[-2:], settings.learning.seed
    with closing(_make(settings, timeout)[1]) as env:
        for number, steps in numbered:
            episode = Episode(number, steps[-1].next_obs, [step.action for step in steps])
            try:
                same = reproduce_episode(env, seed, episode, np.stack([step.obs for step in steps]))[1]
            except EnvironmentFault:
                same = False
            if not same:
                text = "the same seed and actions give different observations: resuming begins a new episode"
                return Finding("note", text)
    return Finding("ok", "the same seed and actions give the same observations: resuming is exact")


def _numbers(steps: list[Step]) -> Iterator[Finding]:
    """Yield what is remarkable about observations and rewards."""
    obs = np.stack([steps[0].obs, *(step.next_obs for step in steps)])
    constant = np.flatnonzero(np.ptp(obs, axis=0) == 0.0)
    if len(constant):
        yield Finding("note", f"observation: {_entries(constant)} never changed")
    largest = np.abs(obs).max(axis=0)
    large = np.flatnonzero(largest > LARGE)
    if len(large):
        text = f"observation: {_entries(large)} reached {_short(float(largest.max()))} in magnitude"
        yield Finding("note", f"{text}; the policy sees observations unscaled, so better scale them to about 1")
    rewards = np.array([step.reward for step in steps])
    low, high, mean = rewards.min(), rewards.max(), rewards.mean()
    if low == high and len(steps) > 1:
        yield Finding("note", f"reward: always {low:.3g}")
    else:
        yield Finding("ok", f"reward: {low:.3g} to {high:.3g}, mean {mean:.3g}")


def _endings(trial: Trial, settings: Settings) -> Iterator[Finding]:
    """Yield how episodes ended."""
    finished = [each for each in trial.episodes if each[-1].finished is not None]
    lengths = [len(each) for each in finished if each[-1].terminated]
    truncated = len(finished) - len(lengths)
    yield Finding("ok", f"episodes: {len(lengths)} terminated, {truncated} truncated by a time limit")
    if len(lengths) > 1 and truncated == 0 and len(set(lengths)) == 1 and lengths[0] > 1:
        text = f"every episode terminated after {lengths[0]} steps: if that is a time limit, it should be truncated"
        yield Finding("note", f"{text}, not terminated")
    if not lengths and settings.learning.termination == "learned":
        text = "no episode terminated: a learned termination has nothing to learn from yet"
        yield Finding("note", f"{text}; if none ever does, set --termination never")


def _fault_of(space: gymnasium.Space[Any], obs: Any) -> str:
    """Say what is wrong with an observation."""
    if not isinstance(space, Box):
        return f"it is not of its {describe_space(space)}"
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
