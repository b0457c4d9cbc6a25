"""What a method is made of: a recipe names its parts, and `compiled` jits them for the loop."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from pdml.agents.base import AgentParts, DeviceMetrics
from pdml.config.schema import Config
from pdml.core.nets import squash
from pdml.core.transition import Layout
from pdml.core.types import TerminationProbability
from pdml.data.minibatches import MinibatchSampler
from pdml.data.model_buffer import ModelBuffer, resize
from pdml.data.refine import Refine
from pdml.dhmbpo.learner import UpdatePhase
from pdml.models.fit import DynamicsModel
from pdml.models.rollouts import BranchedRollouts
from pdml.training.scores import RowScores, row_scores
from pdml.weighting.base import Weighting


class ModelParts(NamedTuple):
    """The parts of a learned model, in the order in which a block uses them."""

    weighting: Weighting
    dynamics: DynamicsModel
    terminates: TerminationProbability
    empty_buffer: Callable[[Config, Layout, int], ModelBuffer]
    """From the configuration, the layout and the steps of a run: the model buffer before anything is imagined."""
    rollouts: BranchedRollouts | None
    """None: the update phase makes its own rollouts."""
    refine: Refine


class Recipe(NamedTuple):
    """The parts of a method."""

    agent: AgentParts
    minibatches: Callable[[Config, int], MinibatchSampler]
    """From the configuration and the number of real transitions per minibatch."""
    model: ModelParts | None
    """None: the method is model-free."""
    update_phase: UpdatePhase | None = None
    """How the agent learns between blocks; None: it learns after every step."""


@runtime_checkable
class Act(Protocol):
    """Samples the action of one observation."""

    def __call__(self, actor: Any, obs: Any, key: PRNGKeyArray, /) -> Float[Array, " a"]:
        """Return the action, in [-1, 1]."""
        ...


@runtime_checkable
class ActByNoise(Protocol):
    """Chooses the action of one observation that belongs to given noise."""

    def __call__(self, actor: Any, obs: Any, noise: Any, /) -> Float[Array, " a"]:
        """Return the action, in [-1, 1].

        Args:
            noise: Standard normal, one number per entry of the action.
        """
        ...


@runtime_checkable
class ImproveOnRows(Protocol):
    """Completes minibatches of real transitions with imagined ones, and updates the agent on each."""

    def __call__(
        self, agent: Any, buffer: ModelBuffer | None, batches: Any, chosen: Any, importance: Any, key: PRNGKeyArray, /
    ) -> tuple[Any, DeviceMetrics, Float[Array, "updates b"] | None]:
        """Return the agent, the updates' mean metrics, and a priority per row (None: the agent has none).

        Args:
            batches: Real transitions, [updates, real rows, width].
            chosen: Slots of the model buffer, [updates, imagined rows]; None: drawn uniformly here.
            importance: See `pdml.agents.base.Improve`.
        """
        ...


class Parts(NamedTuple):
    """A recipe whose functions are compiled, each once per run."""

    recipe: Recipe
    act: Act
    act_by_noise: ActByNoise
    improve: ImproveOnRows
    rollouts: BranchedRollouts | None
    resize: Callable[[ModelBuffer, Any], ModelBuffer]
    scores: RowScores

    @property
    def model(self) -> ModelParts:
        """The parts of the model, of a method that has one."""
        assert self.recipe.model is not None, "a model-free method has no model"
        return self.recipe.model


def real_rows(config: Config, recipe: Recipe) -> int:
    """Return how many rows of an agent's minibatch are real; the rest are imagined."""
    return config.batch_size if recipe.model is None else int(config.real_ratio * config.batch_size)


def compiled(config: Config, layout: Layout, recipe: Recipe) -> Parts:
    """Jit a recipe at its edge."""
    model, imagined_rows = recipe.model, config.batch_size - real_rows(config, recipe)

    def act(actor: Any, obs: Float[Array, " obs"], key: PRNGKeyArray, /) -> Float[Array, " a"]:
        return recipe.agent.sample(actor, obs[None], key)[0]

    def act_by_noise(actor: Any, obs: Float[Array, " obs"], noise: Float[Array, " a"], /) -> Float[Array, " a"]:
        return squash(*recipe.agent.head(actor, obs[None]), noise[None])[0][0]

    def improve(
        agent: Any,
        buffer: ModelBuffer | None,
        batches: Float[Array, "updates real width"],
        chosen: Int[Array, "updates imagined"] | None,
        importance: Float[Array, "updates b"] | None,
        key: PRNGKeyArray,
        /,
    ) -> tuple[Any, DeviceMetrics, Float[Array, "updates b"] | None]:
        row_key, update_key = jax.random.split(key)
        if buffer is not None:
            if chosen is None:
                chosen = jax.random.randint(row_key, (config.updates_per_step, imagined_rows), 0, buffer.size)
            batches = jnp.concatenate([batches, buffer.rows[chosen]], axis=1)
        assert recipe.agent.improve is not None
        return recipe.agent.improve(agent, batches, importance, update_key)

    rollouts = None if model is None else model.rollouts
    return Parts(
        recipe=recipe,
        act=jax.jit(act),
        act_by_noise=jax.jit(act_by_noise),
        improve=jax.jit(improve, donate_argnums=0),
        rollouts=None if rollouts is None else jax.jit(rollouts, donate_argnums=2),
        resize=jax.jit(resize, donate_argnums=0),
        scores=row_scores(config, layout),
    )
