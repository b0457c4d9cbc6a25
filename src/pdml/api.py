"""`pdml.Agent`: the same runs as `pdml train`, from Python, with any environment."""

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from pdml.config.schema import Config, change, defaults, leaves
from pdml.config.tasks import PYTHON
from pdml.config.validate import OBJECT, check, read_config, refuse_foreign
from pdml.core import signals
from pdml.core.errors import UserError, nearest
from pdml.core.rng import Purpose, key
from pdml.envs.env_spec import problem_of
from pdml.envs.evaluation import EpisodeResult, evaluate
from pdml.envs.from_python import Env, absent, describe, packed, problem_for, require_sizes, warn
from pdml.envs.gym import Episode, begin, follow, make_plain
from pdml.runs import checkpoint, directory, resources
from pdml.runs.device import available_threads
from pdml.runs.policy import Policy, as_batch
from pdml.runs.progress import Watcher
from pdml.runs.recorder import Happened, policy_of
from pdml.runs.session import Session, failures_noted
from pdml.training.loop import absorb, act, add_prior, open_block


class Callback:
    """What to do while an agent learns: override what you need. Return False from any of these to stop learning."""

    def on_step(self, agent: "Agent") -> bool | None:
        """Be told of every real step."""

    def on_block(self, agent: "Agent", row: dict[str, Any]) -> bool | None:
        """Be told of the end of a block, with its row of progress.csv."""

    def on_evaluation(self, agent: "Agent", evaluation: "Evaluation") -> bool | None:
        """Be told of an evaluation."""


class Evaluation(NamedTuple):
    """Returns and lengths of some episodes."""

    step: int
    """Real steps learned from."""
    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns, of a sample; 0 for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0


class Prediction(NamedTuple):
    """What the model expects of steps, by the mean of its best networks."""

    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    """Whether the step ends the episode by itself."""
    spread: np.ndarray
    """Standard deviation over these networks of each entry of the next observation: how much they disagree."""


class Model:
    """The learned model of an agent, to look at."""

    def __init__(self, session: Session):
        self._session = session
        self._known, self._spaces = session.problem.known, session.problem.spaces
        world = session.parts.recipe.world
        assert world is not None
        self._world, self._outputs = world, jax.jit(world.dynamics.means)

    def predict(self, obs: Any, action: Any) -> Prediction:
        """Predict one step or a batch of steps; actions are in the environment's own range."""
        model = self._session.state.model
        states = as_batch(obs, self._spaces.obs_size)
        actions = as_batch(action, len(self._spaces.low), "action")
        if len(states) != len(actions):
            raise UserError(f"action: {len(actions)} of them for {len(states)} observations")
        actions = self._spaces.inward(actions)
        outputs = np.asarray(self._outputs(model, states, actions))
        mean = outputs.mean(axis=0)
        next_obs, reward = states + mean[:, 1:], mean[:, 0]
        if self._known.reward is not None:
            reward = np.asarray(self._known.reward(*map(jnp.asarray, (states, actions, next_obs))))
        ended = np.asarray(self._world.ending(model, *map(jnp.asarray, (states, actions, next_obs)))) > 0.5
        shape = np.shape(obs)[:-1]
        spread = outputs[:, :, 1:].std(axis=0)
        return Prediction(
            next_obs.reshape(np.shape(obs)), reward.reshape(shape), ended.reshape(shape), spread.reshape(np.shape(obs))
        )


class Agent:
    """Learns a policy for an environment from few real steps; what it learns is kept in a run directory.

    Args:
        env: An id, an environment, a function that makes one, or a pair (observation space, action space) for those
            who step their environment themselves with `act` and `observe`.
        method: See `pdml list methods`.
        seed: Of everything random.
        eval_env: An environment for evaluation, where `env` is an environment itself.
        termination: Says which steps end an episode: a function (obs, action, next_obs) -> bool of whole batches,
            written with jax.numpy, or one of the words of `pdml train --termination`. By default the rule of the
            environment where it is known, else it is learned.
        reward: A function of the same form that gives the reward of each step; by default it is learned.
        prior: Transitions that were collected before, as arrays by the names obs, action, reward, next_obs and
            terminated. They are learned from as a block of their own.
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
        termination: str | Callable | None = None,
        reward: str | Callable | None = None,
        prior: Mapping[str, Any] | None = None,
        run_dir: str | Path | None = None,
        **config: Any,
    ):
        name, task = describe(env)
        functions = {k: v for k, v in (("termination", termination), ("reward", reward)) if callable(v)}
        given = {k: v for k, v in (("termination", termination), ("reward", reward)) if v is not None}
        words = {k: OBJECT if callable(v) else v for k, v in given.items()}
        if "steps" in config:
            raise UserError("steps: is what learn is given")
        preset = config.pop("preset", "paper")
        base = defaults(name, method, preset, task)
        changes = _flat({**config, **words, "seed": seed})
        refuse_foreign(method, changes)
        settled = check(change(base, changes))
        problem = problem_for(env, eval_env, settled, functions)
        rows = None if prior is None else packed(prior, problem.spaces, settled)
        if run_dir is not None and not isinstance(run_dir, str | Path):
            raise UserError(f"run_dir = {run_dir!r}: must be a path")
        self._run_dir = None if run_dir is None else Path(run_dir)
        if self._run_dir is not None:
            directory.check_free(self._run_dir)
        self._setup(Session(settled, problem))
        if rows is not None:
            add_prior(self._session.state, rows)

    def _setup(self, session: Session) -> None:
        self._session = session
        self._asking = session.problem.make is None
        self._opened: tuple[int, np.ndarray] | None = None
        self._draws = 0
        agent = session.parts.recipe.agent
        self._mode, self._sample = jax.jit(agent.mode), jax.jit(agent.sample)

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: Env | None = None,
        *,
        eval_env: gymnasium.Env | None = None,
        termination: Callable | None = None,
        reward: Callable | None = None,
    ) -> "Agent":
        """Load a run, of `pdml train` or of another agent, from its newest checkpoint; `learn` goes on with it there.

        What was handed over as a Python object must be handed over again. Without its environment an agent predicts
        but cannot learn. The policy alone needs none of it: `pdml.Policy.load`.
        """
        path = Path(path)
        config = read_config(directory.require(path) / "config.json")
        functions = {k: v for k, v in (("termination", termination), ("reward", reward)) if v is not None}
        if env is None and config.env.startswith(PYTHON):
            problem = absent(path, config, functions)
        elif env is None or env == config.env:
            problem = problem_of(check(config), functions)
        elif isinstance(env, str) and not config.env.startswith(PYTHON):
            raise UserError(f"env = '{env}': the run's environment is '{config.env}'; leave env out")
        else:
            made = partial(make_plain, env) if isinstance(env, str) else env
            problem = problem_for(made, eval_env, check(config), functions)
            require_sizes(problem.spaces, path)
        agent = cls.__new__(cls)
        agent._run_dir = path
        agent._setup(Session(config, problem).load(path, warn))
        return agent

    @property
    def config(self) -> Config:
        """All settings."""
        return self._session.config

    @property
    def steps(self) -> int:
        """Real steps taken so far."""
        return self._session.state.step

    @property
    def path(self) -> Path | None:
        """The run directory, once there is one."""
        return self._session.path

    def learn(self, steps: int, callback: Callback | None = None, progress_bar: bool = True) -> "Agent":
        """Learn from so many more real steps; twice n is the same as once 2n. Ctrl-C saves the run first.

        Args:
            progress_bar: Show a bar on a terminal, elsewhere a line for each evaluation.
        """
        if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
            raise UserError(f"steps = {steps!r}: must be a whole number, at least 1")
        session = self._session
        if session.env is None:
            raise UserError("learn: there is no environment to step; give one as env=, or use act and observe")
        if callback is not None and not isinstance(callback, Callback):
            raise UserError(f"callback = {callback!r}: must be a pdml.Callback")
        if self._asking:  # its own episode begins anew after somebody else's steps
            session.state.episode = begin(session.env, self.config.seed, session.state.episode.number + 1)
            self._asking = False
        target = session.state.step + int(steps)
        self._take_up(target)
        watcher = Watcher(target, self.config.warmup_steps, self.steps) if progress_bar else None

        def after(happened: Happened) -> bool:
            return callback is None or _tell(callback, self, happened)

        with self._working():
            session.learn(target, watcher, after)
        return self

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Save when asked to stop meanwhile; after that, and after a failure, stand at the last checkpoint."""
        session = self._session
        assert session.path is not None
        try:
            with signals.listening(), failures_noted(session.path):
                yield
                if signals.asked() and session.recorder is not None:
                    session.recorder.save(session.state)
                    signals.check()
        except signals.Stopped as stopped:
            self._recover()
            raise KeyboardInterrupt(f"{stopped}; the run is saved in {session.path}") from None
        except UserError:
            raise
        except Exception:
            self._recover()
            raise

    def _recover(self) -> None:
        """Go back to the last checkpoint: learning may have been broken off in the middle."""
        old = self._session
        assert old.path is not None
        try:
            session = Session(self.config, old.problem).load(old.path, warn)
        except Exception as error:
            warn(f"the agent cannot go back to its last checkpoint ({error}); load it again")
            old.close()
            return
        old.close()
        self._setup(session)

    def act(self, obs: Any) -> np.ndarray:
        """Return the action to take now, to explore, in the environment's own range; then call `observe`.

        At the first step of a block it fits the model, which takes a while; agents with a lesson learn in `observe`, at
        a block's last step.
        """
        session, state = self._session, self._session.state
        batch = as_batch(obs, session.problem.spaces.obs_size)
        if np.ndim(obs) != 1 or not np.isfinite(batch).all():
            raise UserError("obs: one observation of finite numbers is needed")
        if not self._asking:
            state.episode = Episode(state.episode.number + 1, foreign=True)
            self._asking = True
        self._take_up()
        with self._working():
            if session.recorder is None or session.recorder.short or state.step >= self.config.steps:
                more = 0 if state.step < self.config.steps else max(self.config.warmup_steps, 10_000)
                session.aim(self.config.steps + more)
            state.episode.obs = batch[0]
            open_block(state, session.parts, self.config, session.clock)
            action = act(state, session.parts, self.config)
        self._opened = (state.step, action)
        return session.problem.spaces.outward(action[None])[0]

    def observe(
        self, next_obs: Any, reward: float, terminated: bool, truncated: bool = False, action: Any = None
    ) -> None:
        """Learn from what the action of `act` led to.

        Args:
            terminated: The episode ended by itself: nothing more would have come.
            truncated: It was cut, for example by a time limit: more would have come.
            action: What was done in truth, if it was not the action of `act`.
        """
        session, state = self._session, self._session.state
        if self._opened is None or self._opened[0] != state.step:
            raise UserError("observe: call act first, once for every observe")
        spaces = session.problem.spaces
        after = as_batch(next_obs, spaces.obs_size, "next_obs")
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = np.nan
        if np.ndim(next_obs) != 1 or not np.isfinite(after).all() or not np.isfinite(value):
            raise UserError("next_obs, reward: one observation and one reward of finite numbers are needed")
        taken = self._opened[1]
        if action is not None:
            done = as_batch(action, len(spaces.low), "action")
            if np.ndim(action) != 1 or not np.isfinite(done).all():
                raise UserError("action: one action of finite numbers is needed")
            taken = spaces.inward(done)[0]
        with self._working():
            state.episode, step = follow(state.episode, taken, after[0], value, bool(terminated), bool(truncated))
            absorb(state, step, session.parts, self.config, session.clock)
            assert session.recorder is not None
            session.recorder(state)

    def predict(self, obs: Any, deterministic: bool = True) -> np.ndarray:
        """Return the action for one observation, or for each of a batch, in the environment's own range."""
        spaces = self._session.problem.spaces
        batch = as_batch(obs, spaces.obs_size)
        room = 1 << (len(batch) - 1).bit_length() if len(batch) else 1  # few shapes, few compilations
        padded = np.zeros((room, spaces.obs_size), np.float32)
        padded[: len(batch)] = batch
        actor = self._session.state.agent.actor
        if deterministic:
            action = self._mode(actor, padded)
        else:
            action = self._sample(actor, padded, key(self.config.seed, Purpose.PREDICT, self._draws))
            self._draws += 1
        scaled = spaces.outward(np.asarray(action)[: len(batch)])
        return scaled.reshape(*np.shape(obs)[:-1], len(spaces.low))

    @property
    def policy(self) -> Policy:
        """The deterministic policy as it is now, as a function of numpy arrays that needs no JAX; it can be saved."""
        return policy_of(self._session.state, self._session.problem.spaces)

    @property
    def model(self) -> Model:
        """The learned model."""
        if self._session.state.model is None:
            raise UserError(f"model: method '{self.config.method}' has none")
        return Model(self._session)

    def evaluate(self, episodes: int = 10) -> Evaluation:
        """Run the deterministic policy for some episodes in environments of their own; learning is not disturbed."""
        if isinstance(episodes, bool) or not isinstance(episodes, int | np.integer) or episodes < 1:
            raise UserError(f"episodes = {episodes!r}: must be a whole number, at least 1")
        fresh = self._session.problem.fresh
        if fresh is None:
            raise UserError("evaluate: needs an environment of its own; give eval_env=, or an id or a factory as env")
        actor, lent = self._session.state.agent.actor, self._session.problem.lent
        envs = [fresh() for _ in range(1 if lent else int(episodes))]
        try:
            results = evaluate(
                envs, lambda obs, time: np.asarray(self._mode(actor, obs)), self.config.seed, self.steps, int(episodes)
            )
        finally:
            for env in envs if not lent else []:
                env.close()
        return _evaluation(self.steps, results)

    def save(self, path: str | Path | None = None) -> Path:
        """Save all of it: in its run directory, or in a new one, from which `load` and `pdml resume` go on."""
        session = self._session
        if path is None or (session.path is not None and Path(path).resolve() == session.path.resolve()):
            if session.loaded and session.path is not None:  # nothing has been learned since
                return session.path
            self._take_up()
            recorder = session.recorder or session.aim(self.config.steps)
            recorder.save(session.state)
            assert session.path is not None
            return session.path
        path = Path(path)
        lock = directory.create(path, self.config, available_threads(), _command(), session.problem.spaces)
        if session.path is not None:
            for name in (*directory.TABLES, "blocks", "archive"):
                source = session.path / name
                if source.is_dir():
                    shutil.copytree(source, path / name)
                elif source.exists():
                    shutil.copy(source, path / name)
        lengths = session.lengths()
        directory.cut_back(path, lengths, self.steps)
        files = {"lengths": lengths, "total": session.clock.total(), "seconds": session.clock.seconds}
        file = path / "checkpoints" / f"step_{self.steps:08d}.safetensors"
        checkpoint.save(session.state, self.config, file, files)
        self.policy.save(path / "policy.safetensors")
        lock.free()
        return path

    def close(self) -> None:
        """Close the environments and free the run directory."""
        self._session.close()

    def _take_up(self, steps: int = 0) -> None:
        """Have a run directory of one's own from now on, if there is room for so many steps."""
        session = self._session
        if session.closed:
            raise UserError("the agent is closed; load it again from its run directory")
        if session.path is None:
            path = self._run_dir or directory.default_path(self.config)
            aim = change(self.config, {"steps": steps or self.config.steps})
            resources.require(resources.estimate(aim, session.layout, session.state.prior), path)
            session.create(path, available_threads(), _command())
        elif session.loaded:
            session.take_up(available_threads(), _command(), warn)


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names, from names and groups as Python writes them."""
    names = [leaf.name for leaf in leaves()]
    groups = {name.partition(".")[0] for name in names if "." in name}
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name in groups and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[name] = value
    for name, value in flat.items():
        if name in groups:
            raise UserError(f"{name} = {value!r}: is a group; give its settings as a dict")
        if name not in names:
            raise UserError(f"{name}: unknown setting{nearest(name, names)}")
        if isinstance(value, list):
            flat[name] = tuple(value)
    return flat


def _tell(callback: Callback, agent: Agent, happened: Happened) -> bool:
    """Tell a callback what a step brought about; return whether to go on."""
    answers = [callback.on_step(agent)]
    if happened.evaluation:
        answers.append(callback.on_evaluation(agent, _evaluation(agent.steps, happened.evaluation)))
    if happened.block is not None:
        answers.append(callback.on_block(agent, happened.block))
    return all(answer is not False for answer in answers)


def _evaluation(step: int, results: list[EpisodeResult]) -> Evaluation:
    return Evaluation(step, tuple(r.total for r in results), tuple(r.length for r in results))


def _command() -> str:
    return f"pdml.Agent in {Path(sys.argv[0]).name or 'Python'}"
