"""The seams: types of the functions that parts are made of.

A model, an actor or an agent is a pytree whose structure only its own package knows; elsewhere it is `Any`.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

Metrics = dict[str, float]
"""Numbers to log, by name."""


@runtime_checkable
class PolicyHead(Protocol):
    """Mean and log standard deviation of a policy before the tanh."""

    def __call__(self, actor: Any, obs: Float[Array, "b obs"], /) -> tuple[Float[Array, "b a"], Float[Array, "b a"]]:
        """Return mean and log standard deviation."""
        ...


@runtime_checkable
class SampleAction(Protocol):
    """Samples actions of a policy, in [-1, 1]."""

    def __call__(self, actor: Any, obs: Float[Array, "b obs"], key: PRNGKeyArray, /) -> Float[Array, "b a"]:
        """Return an action for each observation."""
        ...


@runtime_checkable
class StepFunction(Protocol):
    """A vectorised function of steps: a reward, or whether they terminate."""

    def __call__(
        self, obs: Float[Array, "b obs"], action: Float[Array, "b a"], next_obs: Float[Array, "b obs"], /
    ) -> Array:
        """Return one value per step."""
        ...


class KnownParts(NamedTuple):
    """What is known of an environment and need not be learned; None: the model learns it."""

    terminated: StepFunction | None
    reward: StepFunction | None = None


@runtime_checkable
class TerminationProbability(Protocol):
    """How likely each imagined step terminates the episode."""

    def __call__(
        self, model: Any, obs: Float[Array, "b obs"], action: Float[Array, "b a"], next_obs: Float[Array, "b obs"], /
    ) -> Float[Array, " b"]:
        """Return a probability per step."""
        ...


@runtime_checkable
class MeanPredictions(Protocol):
    """What the networks of a model expect of steps: reward and change of state, in their own units."""

    def __call__(
        self, model: Any, obs: Float[Array, "b obs"], action: Float[Array, "b a"], /
    ) -> Float[Array, "networks b outputs"]:
        """Return the mean of each network that makes rollouts."""
        ...
