"""`pdml.Agent`: the same runs as `pdml train`, from Python, with any environment."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np

from pdml.config.defaults import defaults
from pdml.config.fields import by_dotted_names, change
from pdml.config.files import read_run
from pdml.config.parse import path_of
from pdml.config.schema import Config, Settings
from pdml.config.start_from import chosen_start
from pdml.config.tasks import Task
from pdml.config.validate import OBJECT, check, refuse_foreign
from pdml.core import signals
from pdml.core.batching import as_batch, padded, power_of_two
from pdml.core.errors import LostRunError, UserError
from pdml.core.pytree import unflatten
from pdml.core.rng import Purpose, key
from pdml.envs.evaluation import Evaluator
from pdml.envs.from_python import Env, name_and_task, packed, refuse_idle, spec_for, warn
from pdml.runs import directory
from pdml.runs.best_policy import write_best
from pdml.runs.device import available_threads
from pdml.runs.loaded_env import loaded_spec
from pdml.runs.policy import Policy
from pdml.runs.policy_files import FILES
from pdml.runs.progress import Watcher
from pdml.runs.recorder import StepRecord, policy_of, write_state
from pdml.runs.session import LiveRun, Session, failures_noted
from pdml.runs.warm_start import read_start
from pdml.training.loop import Interaction
from pdml.views import Callback, Evaluation, Model, call_back, evaluation_of

STEPS_AHEAD = 10_000
"""How far a run that the caller steps is extended when it reaches its end."""


class Agent:
    """Learns a policy for an environment from few real steps; what it learns is kept in a run directory.

    Args:
        env: An id, an environment, a function that makes one, or a pair (observation space, action space) for those
            who step their environment themselves with `act` and `observe`.
        method: See `pdml list methods`.
        seed: Of everything random.
        eval_env: An environment for evaluation, where `env` is an environment itself.
        termination: Which steps terminate an episode: a function (obs, action, next_obs) -> bool of whole batches,
            written with jax.numpy, or one of the words of `pdml train --termination`. By default the rule of the
            environment where it is known, else it is learned.
        reward: A function of the same form that gives the reward of each step; by default it is learned.
        prior: Transitions that were collected before, as arrays by the names obs, action, reward, next_obs and
            terminated. They are learned from as a block of their own.
        start_from: Directory of another run, perhaps in a changed environment with the same spaces, to start from.
        start_with: What to take over from it, of "agent", "model" and "rows", its real transitions, which are prior
            ones here; by default all that the method has.
        run_dir: Where to keep the run; by default below runs/, as `pdml train` does.
        config: Settings of `pdml train`, with _ for -; those of a group as a dict, for example
            `dynamics={"num_members": 5}`.
    """

    def __init__(
        self,
        env: Env,
        method: str = "pdml",
        seed: int = 0,
        *,
        eval_env: gymnasium.Env | None = None,
        termination: str | Callable[..., Any] | None = None,
        reward: str | Callable[..., Any] | None = None,
        prior: Mapping[str, Any] | None = None,
        start_from: str | Path | None = None,
        start_with: Sequence[str] | None = None,
        run_dir: str | Path | None = None,
        **config: Any,
    ):
        name, task = name_and_task(env)
        parts = {"termination": termination, "reward": reward}
        functions = {part: value for part, value in parts.items() if callable(value)}
        words = {part: OBJECT if callable(value) else value for part, value in parts.items() if value is not None}
        refuse_idle(env, config)
        settings = _settings(name, task, method, {**config, **words, "seed": seed})
        spec = spec_for(env, eval_env, settings, functions)
        if spec.make_eval is None:  # its training episodes are reported, however many there are
            settings = change(settings, {"eval_episodes": 0})
        rows = None if prior is None else packed(prior, spec.spaces, settings.learning)
        self._run_dir = None if run_dir is None else path_of("run_dir", run_dir)
        if self._run_dir is not None:
            directory.check_free(self._run_dir)
        start = chosen_start(start_from, start_with, method)
        count = 0 if rows is None else len(rows)
        begun = None if start is None else read_start(start, settings.learning, spec.spaces, count)
        for line in () if begun is None else begun.notes:
            warn(line)
        self._setup(LiveRun.new(settings, spec, rows, begun))

    def _setup(self, live: LiveRun) -> None:
        self._live, self._session, self._closed = live, None, False
        self._model: Model | None = None
        self._lengths = {} if live.files is None else live.files["lengths"]
        self._interaction = Interaction(live.state, live.training)
        self._caller_steps = live.env is None
        self._draws = 0
        agent = live.training.parts.recipe.agent
        self._mode, self._sample = jax.jit(agent.mode), jax.jit(agent.sample)

    _session: Session | None
    _lengths: dict[str, int]
    """How long the csv files of the run directory are, where no session is open."""

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Env | None = None,
        *,
        eval_env: gymnasium.Env | None = None,
        termination: Callable[..., Any] | None = None,
        reward: Callable[..., Any] | None = None,
    ) -> "Agent":
        """Load a run, of `pdml train` or of another agent, from its newest checkpoint; `learn` continues from there.

        What was passed as a Python object must be passed again. Without its environment an agent predicts but cannot
        learn. The policy alone needs none of it: `pdml.Policy.load`.
        """
        path = path_of("run", path)
        settings, task = read_run(directory.require_run(path))
        functions = {k: v for k, v in (("termination", termination), ("reward", reward)) if v is not None}
        spec = loaded_spec(path, settings, task, env, eval_env, functions)
        agent = cls.__new__(cls)
        agent._run_dir = path
        agent._setup(LiveRun.load(path, settings, spec, warn))
        return agent

    @classmethod
    def attached(cls, session: Session) -> "Agent":
        """Return an agent of a run that a command trains, for its callbacks."""
        agent = cls.__new__(cls)
        agent._run_dir = session.path
        agent._setup(session.live)
        agent._session = session
        return agent

    @property
    def config(self) -> Config:
        """The settings of learning."""
        return self.settings.learning

    @property
    def settings(self) -> Settings:
        """The settings of learning, and those of the run: `settings.run.eval_every` and so on."""
        return self._live.settings

    @property
    def steps(self) -> int:
        """Real steps taken so far."""
        return self._live.state.step

    @property
    def path(self) -> Path | None:
        """The run directory, once there is one."""
        return self._live.path

    def learn(self, steps: int, callback: Callback | None = None, progress_bar: bool = True) -> "Agent":
        """Learn from so many more real steps; twice n is the same as once 2n. Ctrl-C saves the run first.

        Args:
            progress_bar: Show a bar on a terminal, elsewhere a line for each evaluation.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise UserError(f"steps = {steps!r}: must be a whole number, at least 1")
        if self._live.env is None:
            raise UserError("learn: there is no environment to step; give one as env=, or use act and observe")
        if callback is not None and not isinstance(callback, Callback):
            raise UserError(f"callback = {callback!r}: must be a pdml.Callback")
        if self._caller_steps:  # its own episode starts again after the caller's steps
            self._interaction.begin_episode(self._live.env)
            self._caller_steps = False
        target = self.steps + int(steps)
        session = self._open(target)
        watcher = Watcher(target, self.config.warmup_steps, self.steps) if progress_bar else None

        def after(record: StepRecord) -> bool:
            return callback is None or call_back(callback, self, record)

        with self._working(session):
            session.learn(target, watcher, after)
        return self

    @contextmanager
    def _working(self, session: Session) -> Generator[None, None, None]:
        """Save if asked to stop meanwhile; after that, and after a failure, return to the last checkpoint.

        A fit or an update phase that is interrupted is not saved: the last checkpoint is from before it.
        """
        try:
            with signals.listening(), failures_noted(session.lease):
                yield
                if signals.asked():
                    session.save()
                    signals.stop_if_asked()
        except signals.Stopped as stopped:
            where = f" at step {self.steps}" if self._recover(session) else ""
            raise KeyboardInterrupt(f"{stopped}; {session.path} is saved{where}") from None
        except UserError:
            raise
        except LostRunError:
            self.close()
            self._lengths = {}  # the rows there are of another process now
            raise
        except Exception:
            self._recover(session)
            raise

    def _recover(self, session: Session) -> bool:
        """Return to the last checkpoint, since learning may have been interrupted halfway; say whether that worked."""
        old = self._live
        try:
            live = LiveRun.load(session.path, old.settings, old.spec, warn)
        except Exception as error:
            warn(f"the agent cannot return to its last checkpoint ({error}); load it again")
            self.close()
            return False
        self.close()
        self._setup(live)
        return True

    def act(self, obs: Any) -> np.ndarray:
        """Return the action to take now, to explore, in the environment's own range; then call `observe`.

        At the first step of a block it fits the model, which takes a while. DHMBPO learns in `observe` instead, at the
        last step of a block.
        """
        live, state = self._live, self._live.state
        batch = as_batch(obs, live.spec.spaces.obs_size)
        if np.ndim(obs) != 1 or not np.isfinite(batch).all():
            raise UserError("obs: one observation of finite numbers is needed")
        if not self._caller_steps:
            self._interaction.begin_foreign_episode()
            self._caller_steps = True
        session = self._open()
        with self._working(session):
            if state.step >= live.steps:
                session.prepare(live.steps + max(self.config.warmup_steps, STEPS_AHEAD))
            session.recorder()
            action = self._interaction.act(batch[0])
        return live.spec.spaces.to_env(action[None])[0]

    def observe(
        self, next_obs: Any, reward: float, terminated: bool, truncated: bool = False, action: Any = None
    ) -> None:
        """Learn from what the action of `act` led to.

        Args:
            terminated: The episode ended by itself: nothing more would have come.
            truncated: It was cut off, for example by a time limit: more would have come.
            action: The action that was really taken, if it was not that of `act`.
        """
        taken, spaces = self._interaction.action, self._live.spec.spaces
        if taken is None or self._session is None:
            raise UserError("observe: call act first, once for every observe")
        after = as_batch(next_obs, spaces.obs_size, "next_obs")
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = np.nan
        if np.ndim(next_obs) != 1 or not np.isfinite(after).all() or not np.isfinite(value):
            raise UserError("next_obs, reward: one observation and one reward of finite numbers are needed")
        if action is not None:
            done = as_batch(action, len(spaces.low), "action")
            if np.ndim(action) != 1 or not np.isfinite(done).all():
                raise UserError("action: one action of finite numbers is needed")
            taken = spaces.from_env(done)[0]
        with self._working(self._session):
            step = self._interaction.observe(taken, after[0], value, bool(terminated), bool(truncated))
            record = self._session.recorder()(self._live.state, step)
            if record.saved:
                signals.stop_if_asked()

    def predict(self, obs: Any, deterministic: bool = True) -> np.ndarray:
        """Return the action for one observation, or for each of a batch, in the environment's own range."""
        spaces = self._live.spec.spaces
        batch = as_batch(obs, spaces.obs_size)
        rows, actor = padded(batch, power_of_two(len(batch))), self._live.state.agent.actor
        if deterministic:
            action = self._mode(actor, rows)
        else:
            action = self._sample(actor, rows, key(self.config.seed, Purpose.PREDICT, self._draws))
            self._draws += 1
        scaled = spaces.to_env(np.asarray(action)[: len(batch)])
        return scaled.reshape(*np.shape(obs)[:-1], len(spaces.low))

    @property
    def policy(self) -> Policy:
        """The deterministic policy as it is now, as a function of numpy arrays that needs no JAX; it can be saved."""
        return policy_of(self._live.state, self._live.spec.spaces)

    @property
    def best_policy(self) -> Policy:
        """The best policy of the run so far, by the mean of its last `best_over` evaluations; learning ignores it."""
        if self.path is None:
            raise UserError("best_policy: the agent has no run directory yet; learn first")
        return Policy.load(self.path, "best")

    @property
    def model(self) -> Model:
        """The learned model."""
        if self._live.state.model is None:
            raise UserError(f"model: method '{self.config.method}' has none")
        if self._model is None:
            self._model = Model(self._live)  # compiled once
        return self._model

    def evaluate(self, episodes: int = 10, policy: str = "last") -> Evaluation:
        """Run the deterministic policy for some episodes in separate environments; learning is not disturbed.

        Args:
            policy: "last": as it is now; "best": `best_policy`.
        """
        if isinstance(episodes, bool) or not isinstance(episodes, int | np.integer) or episodes < 1:
            raise UserError(f"episodes = {episodes!r}: must be a whole number, at least 1")
        if policy not in FILES:
            raise UserError(f"policy = {policy!r}: allowed: {', '.join(FILES)}")
        make_env, actor, step = self._live.spec.make_eval, self._live.state.agent.actor, self.steps
        if make_env is None:
            raise UserError("evaluate: needs an environment of its own; give eval_env=, or an id or a factory as env")
        if policy == "best":
            best = self.best_policy
            actor, step = unflatten(actor, best.arrays(), "actor"), best.step
        with closing(Evaluator(make_env, int(episodes), self._live.spec.borrowed)) as evaluator:
            results = evaluator(
                lambda obs, time: np.asarray(self._mode(actor, obs)), self.config.seed, step, int(episodes)
            )
        return evaluation_of(step, results)

    def save(self, path: str | Path | None = None) -> Path:
        """Save all of it: in its run directory, or in a new one, from which `load` and `pdml resume` continue."""
        live = self._live
        path = None if path is None else path_of("path", path)
        if path is None or (live.path is not None and path.resolve() == live.path.resolve()):
            if live.files is not None and live.path is not None:  # loaded, and nothing has been learned since
                return live.path
            session = self._open()
            session.save()
            return session.path
        directory.check_free(path)
        lease = directory.create(path, live.settings, available_threads(), _command(), live.recorded())
        try:
            if live.path is not None:
                directory.copy_files(live.path, lease)
            lengths = self._lengths if self._session is None else self._session.lengths()
            directory.truncate_files(lease, lengths, self.steps)
            clock, spaces = live.training.clock, live.spec.spaces
            write_best(live.ledger.best, lease)
            write_state(live.state, live.ledger, live.settings, spaces, clock, lengths, lease)
        finally:
            lease.free()
        return path

    def close(self) -> None:
        """Close the environments and free the run directory."""
        session, self._session, self._closed = self._session, None, True
        with closing(self._live), nullcontext() if session is None else closing(session):
            if session is not None:
                self._lengths = session.lengths()

    def _open(self, steps: int | None = None) -> Session:
        """Return the session, whose run directory no other process can have; begin or resume it the first time."""
        if self._closed:
            raise UserError("the agent is closed; load it again from its run directory")
        if self._session is None:
            live, threads = self._live, available_threads()
            if live.path is None:
                path = self._run_dir or directory.default_path(self.config)
                self._session = Session.begin(live, path, threads, _command(), steps)
            else:
                self._session = Session.resume(live.path, lambda: live, threads, _command(), warn)
        return self._session


def _settings(name: str, task: Task, method: str, given: dict[str, Any]) -> Settings:
    """Return the settings of a new agent, checked."""
    if "steps" in given:
        raise UserError("steps: is what learn is given")
    base = defaults(name, method, given.pop("preset", "paper"), task)
    changes = by_dotted_names(given)
    refuse_foreign(method, changes)
    return check(change(base, changes), task)


def _command() -> str:
    return f"pdml.Agent in {Path(sys.argv[0]).name or 'Python'}"
