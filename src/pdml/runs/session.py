"""A run that is open in this process, from a configuration to a finished directory, and the use of a finished one."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import gymnasium
import jax
import numpy as np

from pdml.runs import checkpoint, resources, directory
from pdml.core import signals
from pdml.envs import watchdog
from pdml.training.loop import Parts, TrainState, init, train, wire
from pdml.runs.tensor_file import read_arrays
from pdml.config.schema import Config, change
from pdml.runs.disk import replace_text
from pdml.envs.gym import Episode, begin, make_env
from pdml.core.errors import UserError
from pdml.envs.evaluation import EpisodeResult, evaluate
from pdml.models.rollouts import Imagined, grown
from pdml.envs.env_spec import Problem, problem_of, spaces_of
from pdml.runs.progress import Watcher
from pdml.core.rng import Purpose, key
from pdml.runs.recorder import Happened, Recorder
from pdml.config.validate import check, read_config, to_json
from pdml.config.tasks import PYTHON
from pdml.envs.termination_fns import by_rule, never
from pdml.core.stopwatch import Stopwatch
from pdml.core.transition import Layout
from pdml.core.pytree import unflatten

Say = Callable[[str], None]
"""Takes one line about something that is not as it was."""


def build(config: Config) -> tuple[gymnasium.Env, Layout, Parts]:
    """Make the environment of a configuration and wire its method."""
    problem = problem_of(config)
    assert problem.make is not None
    return problem.make(), problem.spaces.layout, wire(config, problem.spaces.layout, problem.known)


class Session:
    """A run that is open in this process: its state, its environment, and its directory once it has one."""

    def __init__(self, config: Config, problem: Problem):
        self.config, self.problem = config, problem
        self.layout = problem.spaces.layout
        self.parts = wire(config, self.layout, problem.known)
        self.env = problem.make() if problem.make is not None else None
        self.clock = Stopwatch()
        self.path: Path | None = None
        self.recorder: Recorder | None = None
        self._lock: directory.Lock | None = None
        self._files: dict[str, Any] | None = None
        self._seen: list[Path] = []
        self.closed = False
        episode = Episode(0, foreign=True) if self.env is None else begin(self.env, config.seed, 0)
        self.state = init(config, self.layout, self.parts, episode)

    def create(self, path: Path, threads: int, command: str) -> "Session":
        """Give a run that begins its directory."""
        if self.config.diagnose:
            self.problem.others()
        self._lock = directory.create(path, self.config, threads, command, self.problem.spaces)
        self.path = path
        return self

    def lock(self, path: Path) -> "Session":
        """Keep other processes, and other sessions of this one, away from a directory."""
        self._lock = self._lock or directory.Lock(path)
        return self

    def load(self, path: Path, say: Say) -> "Session":
        """Take over the newest checkpoint of a run that is whole, and look at nothing else."""
        self._seen = found = checkpoint.saved(path)
        for file in found:
            try:
                self.state, self._files, reproduced = checkpoint.load(
                    file, self.config, self.layout, self.parts, self.env
                )
            except UserError as error:
                say(f"{error}; trying the one before" if file != found[-1] else str(error))
                continue
            if not reproduced:
                say("the environment does not reproduce its episode from its seed and actions; a new episode begins")
            self.path, self.clock = path, Stopwatch(self._files["total"], self._files["seconds"])
            return self
        what = f"none of its {len(found)} checkpoints is whole" if found else "it has no checkpoint yet"
        raise UserError(f"run = '{path}': cannot go on, {what}; begin it anew")

    def take_up(self, threads: int, command: str, say: Say) -> "Session":
        """Make a loaded run one's own: lock it, and bring its files back to the checkpoint."""
        assert self.path is not None
        assert self._files is not None
        self.lock(self.path)
        newest = checkpoint.saved(self.path)
        if newest and newest[0] not in self._seen:
            raise UserError(f"run = '{self.path}': has gone on since it was loaded; load it again")
        for line in directory.note_resumed(self.path, threads, command, self.state.step):
            say(line)
        directory.cut_back(self.path, self._files["lengths"], self.state.step)
        checkpoint.keep_last(self.path)
        self._files = None
        return self

    def start_over(self, path: Path, say: Say) -> "Session":
        """Take over a run that ended before its first checkpoint."""
        say("it has no checkpoint yet; it begins anew")
        self.path, self._files = path, {"lengths": {}}
        return self

    @property
    def loaded(self) -> bool:
        """Whether the run was loaded and not yet taken up."""
        return self._files is not None

    def aim(self, steps: int, watcher: Watcher | None = None) -> Recorder:
        """Make all ready to go on to a number of real steps: room, files, recorder."""
        assert self.path is not None
        config = change(self.config, {"steps": steps})
        resources.require(resources.estimate(config, self.layout, self.state.prior), self.path)
        self.config = config
        if (self.path / "config.json").read_text() != to_json(self.config):
            replace_text(self.path / "config.json", to_json(self.config))
        world = self.parts.recipe.world
        if world is not None:
            room = jax.eval_shape(lambda: world.empty(config, self.layout).rows)
            self.state.imagined = grown(cast(Imagined, self.state.imagined), len(room))
        for name in ("DONE", "error.txt"):
            (self.path / name).unlink(missing_ok=True)
        if self.recorder is None:
            step = self.state.step
            self.recorder = Recorder(self.path, self.config, self.parts, self.problem, self.clock, step)
        elif self.recorder.short:
            directory.cut_back(self.path, self.recorder.lengths, self.state.step)
        self.recorder.begin(self.config, watcher)
        if not checkpoint.saved(self.path):  # from now on there is always one to go back to
            self.recorder.save(self.state)
        return self.recorder

    def learn(
        self, steps: int, watcher: Watcher | None = None, after: Callable[[Happened], bool] = lambda happened: True
    ) -> None:
        """Go on to a number of real steps in all.

        Args:
            after: Told after every step what it brought about; false ends it here.
        """
        assert self.env is not None
        assert self.path is not None
        with failures_noted(self.path), closing(watcher) if watcher is not None else nullcontext():
            recorder = self.aim(steps, watcher)

            def after_step(state: TrainState) -> None:
                if not after(recorder(state)):
                    raise _EnoughError

            try:
                train(self.state, self.env, self.parts, self.config, self.clock, after_step)
            except _EnoughError:
                recorder.save(self.state)
            recorder.finish(self.state)
            if self.state.step == steps:
                (self.path / "DONE").write_text(f"{steps}\n")

    def lengths(self) -> dict[str, int]:
        """Return how long the append-only files are, or were before the row of an unfinished block."""
        if self._files is not None:
            return self._files["lengths"]
        if self.recorder is not None and self.recorder.short:
            return self.recorder.lengths
        return {} if self.path is None else directory.offsets(self.path)

    def close(self) -> None:
        """Let everything go."""
        if self.recorder is not None:
            self.recorder.close()
        if self.env is not None and not self.problem.lent:
            self.env.close()
        if self._lock is not None:
            self._lock.free()
        self.recorder = self._lock = None
        self.closed = True


@contextmanager
def failures_noted(path: Path) -> Iterator[None]:
    """Write into a run's directory why what is inside failed, also where an environment hangs."""
    watchdog.watch(path / "error.txt")
    try:
        yield
    except (signals.Stopped, UserError):
        raise
    except BaseException:
        try:
            (path / "error.txt").write_text(traceback.format_exc())
        except OSError:  # on a full disk there may be no room even for that
            traceback.print_exc()
        raise
    finally:
        watchdog.watch(None)


class _EnoughError(Exception):
    """Somebody who was told of a step wants no more."""


def run(config: Config, path: Path, threads: int, command: str, say: Say = lambda line: None) -> TrainState:
    """Train from the first step to the last and leave a complete directory."""
    directory.check_free(path)
    problem = problem_of(config)
    needed = resources.estimate(config, problem.spaces.layout)
    resources.require(needed, path)
    say(resources.describe(needed))
    with closing(Session(config, problem).create(path, threads, command)) as session:
        session.learn(config.steps, Watcher(config.steps, config.warmup_steps, session.state.step))
        return session.state


def resume(path: Path, steps: int | None, threads: int, command: str, say: Say, or_begin: bool = False) -> TrainState:
    """Go on from the newest checkpoint that is whole, as if the run had never stopped.

    Args:
        steps: Real steps in all, to go further than the run was meant to.
        or_begin: Begin where there is no checkpoint yet.
    """
    config = read_config(directory.require(path) / "config.json")
    if config.env.startswith(PYTHON):
        raise UserError(f"run = '{path}': its environment is a Python object; use pdml.Agent.load(path, env=...)")
    config = _extended(check(config), path, steps)
    problem = problem_of(config)
    with failures_noted(path), closing(Session(config, problem)) as session:
        session.lock(path)
        begins = or_begin and not checkpoint.saved(path)
        loaded = session.start_over(path, say) if begins else session.load(path, say)
        loaded.take_up(threads, command, say)
        session.learn(config.steps, Watcher(config.steps, config.warmup_steps, session.state.step))
        return session.state


def _extended(config: Config, path: Path, steps: int | None) -> Config:
    """Return the configuration with its new number of steps."""
    done = (path / "DONE").exists()
    if steps is None or steps == config.steps:
        if done:
            raise UserError(f"run = '{path}': is done at {config.steps} steps; go further with --steps")
        return config
    if steps < config.steps:
        raise UserError(f"steps = {steps}: the run is meant to have {config.steps}; give more")
    return check(change(config, {"steps": steps}))


class RunPolicy(NamedTuple):
    """The policy of a run, ready to act on batches of observations, with actions in [-1, 1]."""

    config: Config
    step: int
    mode: Callable[[np.ndarray], np.ndarray]
    sample: Callable[[np.ndarray, jax.Array], np.ndarray]


def load_policy(path: Path) -> RunPolicy:
    """Read the last policy of a run."""
    config = check(read_config(directory.require(path) / "config.json"))
    arrays, note = read_arrays(path / "policy.safetensors")
    agent = wire(config, spaces_of(config.env).layout, by_rule(never)).recipe.agent
    try:
        actor = unflatten(agent.init(key(0, Purpose.AGENT_INIT)).actor, arrays, "actor")
    except ValueError as error:
        raise UserError(f"run = '{path}': its policy does not belong to its configuration ({error})") from None
    mode, sample = jax.jit(agent.mode), jax.jit(agent.sample)
    return RunPolicy(
        config,
        note["step"],
        lambda obs: np.asarray(mode(actor, obs)),
        lambda obs, draw: np.asarray(sample(actor, obs, draw)),
    )


def evaluate_run(path: Path, episodes: int, stochastic: bool, seed: int | None) -> tuple[int, list[EpisodeResult]]:
    """Evaluate the policy of a run in fresh environments; return the policy's step and the episodes."""
    policy = load_policy(path)
    chosen = policy.config.seed if seed is None else seed

    def act(obs: np.ndarray, time: int) -> np.ndarray:
        return policy.sample(obs, key(chosen, Purpose.EVALUATION_ACT, time)) if stochastic else policy.mode(obs)

    config = policy.config
    envs = [make_env(config.env, config.max_episode_steps, config.env_timeout) for _ in range(episodes)]
    try:
        results = evaluate(envs, act, chosen, policy.step, episodes)
    finally:
        for env in envs:
            env.close()
    return policy.step, results
