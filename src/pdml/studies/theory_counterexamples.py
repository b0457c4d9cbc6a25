"""Three small MDPs, made by hand, on which Theorem 1 or the Proposition fails: slip, detour and fork."""

import numpy as np
from jaxtyping import Float64

from pdml.studies.theory_mdps import Each, FiniteMDPs

SLIP_GAMMAS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
SLIP_RATES = (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.9)


def slip_mdps(lowest_reward: float = 0.0) -> FiniteMDPs:
    r"""Build the slip for all pairs of `SLIP_GAMMAS` and `SLIP_RATES`: two states, one action, one policy.

    In truth the agent never leaves the first state, where the reward is 1. In the model it leaves for good with the
    slip rate $\epsilon$ per step, to a state with the lowest reward. All shifts are 0.
    """
    gamma, rate = _slip_pairs()
    cells = len(gamma)
    truth = np.tile(np.eye(2)[:, None], (cells, 1, 1, 1))
    model = truth.copy()
    model[:, 0, 0] = np.stack([1.0 - rate, rate], axis=1)
    start, reward = np.tile([1.0, 0.0], (cells, 1)), np.tile([[1.0], [lowest_reward]], (cells, 1, 1))
    return FiniteMDPs(truth, model, start, reward, gamma, np.ones((cells, 1, 2, 1)))


def slip_closed_form(lowest_reward: float = 0.0) -> tuple[Each, Each]:
    r"""Return the gap $(1-l) \gamma\epsilon / (1-\gamma+\gamma\epsilon)$ and the printed bound $2 \gamma\epsilon$.

    $\epsilon$ is the slip rate and $l$ the lowest reward. The bound is violated where $2 (1-\gamma+\gamma\epsilon) <
    1-l$.
    """
    gamma, rate = _slip_pairs()
    return (1.0 - lowest_reward) * gamma * rate / (1.0 - gamma + gamma * rate), 2.0 * gamma * rate


def _slip_pairs() -> tuple[Each, Each]:
    """Return gamma and slip rate of every pair."""
    gamma, rate = np.meshgrid(SLIP_GAMMAS, SLIP_RATES, indexing="ij")
    return gamma.ravel(), rate.ravel()


def detour_mdp(
    slip: float = 1e-3, other: float = 1e-2, gamma: float = 1.0 - 1e-6
) -> tuple[FiniteMDPs, Float64[np.ndarray, "1 2"]]:
    """Build an MDP with a worthless third state that no single policy reaches; return it with the mixture's weights.

    The current policy always takes the first action and stays in the first state. The other policy always takes the
    second action and stays in the second state. Switching between them leads to the third state, so a mixture that
    draws a policy at each step ends there. The model also lets the current policy slip from the first state into the
    third.
    """
    truth = np.zeros((1, 3, 2, 3))
    for state, after in enumerate(((0, 1), (2, 1), (2, 2))):
        truth[0, state, (0, 1), after] = 1.0
    model = truth.copy()
    model[0, 0, 0] = [1.0 - slip, 0.0, slip]
    policies = np.zeros((1, 2, 3, 2))
    policies[0, 0, :, 1] = policies[0, 1, :, 0] = 1.0
    reward = np.array([[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]])
    mdp = FiniteMDPs(truth, model, np.array([[1.0, 0.0, 0.0]]), reward, np.array([gamma]), policies)
    return mdp, np.array([[other, 1.0 - other]])


def fork_mdp(gamma: float = 0.99, spread: float = 0.02) -> FiniteMDPs:
    r"""Build an MDP where the policy with the smaller policy shift has the larger visitation shift.

    From the start, each action leads to an absorbing room of its own. The current policy always acts left. The first
    past policy goes right at the start and differs nowhere else: its policy shift is $1-\gamma$, its visitation shift
    1. The second past policy goes left at the start and later acts right with probability `spread`.
    """
    truth = np.zeros((1, 3, 2, 3))
    for state, after in enumerate(((1, 2), (1, 1), (2, 2))):
        truth[0, state, (0, 1), after] = 1.0
    left = np.ones((3, 3))  # probability of the left action, per policy and state
    left[0, 0], left[1, 1:] = 0.0, 1.0 - spread
    policies = np.stack([left, 1.0 - left], axis=-1)[None]
    reward = np.array([[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]])
    return FiniteMDPs(truth, truth, np.array([[1.0, 0.0, 0.0]]), reward, np.array([gamma]), policies)
