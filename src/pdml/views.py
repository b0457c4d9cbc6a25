"""What `pdml.Agent` returns and calls: evaluations, the model's predictions, callbacks."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pdml.core.batching import as_batch
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
    return all(answer is not False for answer in answers)


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
        self._means = jax.jit(live.training.parts.model.dynamics.means)

    def predict(self, obs: Any, action: Any) -> Prediction:
        """Predict one step or a batch of steps; actions are in the environment's own range."""
        model, spec = self._live.state.model, self._live.spec
        states = as_batch(obs, spec.spaces.obs_size)
        actions = as_batch(action, len(spec.spaces.low), "action")
        if len(states) != len(actions):
            raise UserError(f"action: {len(actions)} of them for {len(states)} observations")
        actions = spec.spaces.from_env(actions)
        outputs = np.asarray(self._means(model, states, actions))
        mean = outputs.mean(axis=0)
        next_obs, reward = states + mean[:, 1:], mean[:, 0]
        steps = tuple(map(jnp.asarray, (states, actions, next_obs)))
        if spec.known.reward is not None:
            reward = np.asarray(spec.known.reward(*steps))
        ended = np.asarray(self._live.training.parts.model.terminates(model, *steps)) > 0.5
        shape = np.shape(obs)[:-1]
        spread = outputs[:, :, 1:].std(axis=0)
        return Prediction(
            next_obs.reshape(np.shape(obs)), reward.reshape(shape), ended.reshape(shape), spread.reshape(np.shape(obs))
        )
