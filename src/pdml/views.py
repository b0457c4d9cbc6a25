"""What `pdml.Agent` returns and calls: evaluations, the model's predictions, callbacks."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from pdml.core.batching import as_batch, padded, power_of_two
from pdml.core.errors import UserError
from pdml.envs.evaluation import EpisodeResult
from pdml.runs.recorder import StepRecord
from pdml.runs.session import LiveRun

if TYPE_CHECKING:
    from pdml.api import Agent


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
        """Sample standard deviation of the returns; 0 for one episode."""
        return float(np.std(self.returns, ddof=1)) if len(self.returns) > 1 else 0.0


def evaluation_of(step: int, results: list[EpisodeResult]) -> Evaluation:
    """Put episodes together."""
    return Evaluation(step, tuple(r.total for r in results), tuple(r.length for r in results))


class Callback:
    """What to do while an agent learns: override what you need. Return False from any method to stop learning."""

    def on_step(self, agent: "Agent") -> bool | None:
        """Called after every real step."""

    def on_block(self, agent: "Agent", row: dict[str, Any]) -> bool | None:
        """Called at the end of a block, with its row of progress.csv."""

    def on_evaluation(self, agent: "Agent", evaluation: Evaluation) -> bool | None:
        """Called after an evaluation: every `eval_every` steps, and at the end of `learn`."""


def call_back(callback: Callback, agent: "Agent", record: StepRecord) -> bool:
    """Call a callback after a step or at the end; return whether to continue."""
    answers = [callback.on_step(agent)] if record.stepped else []
    if record.evaluation:
        answers.append(callback.on_evaluation(agent, evaluation_of(agent.steps, record.evaluation)))
    if record.block is not None:
        answers.append(callback.on_block(agent, record.block))
    return not any(map(_is_false, answers))


def _is_false(answer: Any) -> bool:
    """Whether a callback has answered false, also as a truth value of NumPy or JAX; None and other values go on."""
    is_truth = isinstance(answer, bool | np.bool_) or (isinstance(answer, np.ndarray | jax.Array) and answer.size == 1)
    return is_truth and np.asarray(answer).dtype == bool and not answer


class Prediction(NamedTuple):
    """What the model expects of steps, by the mean of its best networks."""

    next_obs: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    """Whether the step terminates the episode."""
    spread: np.ndarray
    """Standard deviation over the networks of each entry of the next observation: how much they disagree."""


class Model:
    """The learned model of an agent, to look at."""

    def __init__(self, live: LiveRun):
        self._live = live
        part, known = live.training.parts.model, live.spec.known

        def expected(model: Any, obs: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
            outputs = part.dynamics.means(model, obs, action)
            mean = outputs.mean(axis=0)
            next_obs = obs + mean[:, 1:]
            reward = mean[:, 0] if known.reward is None else known.reward(obs, action, next_obs)
            ended = part.terminates(model, obs, action, next_obs) > 0.5
            return next_obs, reward, ended, outputs[:, :, 1:].std(axis=0)

        self._expected = jax.jit(expected)

    def predict(self, obs: Any, action: Any) -> Prediction:
        """Predict one step or a batch of steps; actions are in the environment's own range."""
        spaces = self._live.spec.spaces
        states = as_batch(obs, spaces.obs_size)
        actions = as_batch(action, len(spaces.low), "action")
        if len(states) != len(actions):
            raise UserError(f"action: {len(actions)} of them for {len(states)} observations")
        room = power_of_two(len(states))
        found = self._expected(self._live.state.model, padded(states, room), padded(spaces.from_env(actions), room))
        next_obs, reward, ended, spread = (np.array(each)[: len(states)] for each in found)
        whole, each = np.shape(obs), np.shape(obs)[:-1]
        return Prediction(next_obs.reshape(whole), reward.reshape(each), ended.reshape(each), spread.reshape(whole))
