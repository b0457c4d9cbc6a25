r"""Numerical check of Theorem 1 and the Proposition on random finite MDPs [Wang et al. 2023, Sec. 3, App. B-D].

In a finite MDP every quantity of the theorem is the solution of a small linear system, so that each bound can be held
against the true gap. Returns are those of the paper, $J = \sum_{s,a} \rho(s,a) r(s,a)$ with $\sum \rho = 1$, and
$\mathrm{Vol}(S)$ is the number of states. Many MDPs are worked on at once: the first axis of every array counts them.

The paper does not say what "the policy mixture" does. Reading (a): a policy is drawn once, $\rho^{mix} = \sum_i w_i
\rho^{\pi_i}$. Reading (b): a policy is drawn at each step, $\pi_{mix}(a|s) = \sum_i w_i \pi_i(a|s)$.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

Each = Float64[np.ndarray, " t"]
EachPolicy = Float64[np.ndarray, "t k"]
Dynamics = Float64[np.ndarray, "t s a s"]

TOLERANCE = 1e-9
"""A bound fails where the gap is larger by more than this, in units of the largest reward."""

FLOOR = 1e-3
"""Smallest policy shift for PDML's weights, as in `MixtureConfig`."""

SLIP_GAMMAS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
SLIP_RATES = (0.001, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.9)

BOUNDS = {
    "printed (a)": "Theorem 1 as printed, a policy drawn once",
    "printed (b)": "Theorem 1 as printed, a policy drawn at each step",
    "corrected (a)": "distance to the imagined mixture, each policy's own states",
    "corrected (b)": "distance to the imagined mixture",
    "by policy (a)": "corrected (a) split into the shifts of the policies and the fit to the mixture",
    "triangle (a)": "visitation shifts, fit and last term only",
    "no mixture": "the simulation lemma: model error / (1 - gamma)",
}
"""The bounds that are compared, in the order in which they are shown."""


@dataclass(frozen=True)
class TheoryConfig:
    """Settings of the check."""

    seed: int = 0
    """seed of all random numbers"""
    trials: int = 4000
    """random MDPs of each family"""
    num_states: int = 8
    """states of the ordinary MDPs"""
    num_actions: int = 3
    """actions of all random MDPs"""
    num_policies: int = 5
    """policies in the history, the current one included"""
    horizon: float = 100.0
    """longest 1 / (1 - gamma) of the ordinary MDPs, drawn between 2 and this"""

    def __post_init__(self) -> None:
        for name, least in (("trials", 1), ("num_states", 2), ("num_actions", 2), ("num_policies", 2), ("horizon", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class Problem(NamedTuple):
    """MDPs with a learned model and a history of policies, of which the last is the current one."""

    truth: Dynamics
    model: Dynamics
    start: Float64[np.ndarray, "t s"]
    reward: Float64[np.ndarray, "t s a"]
    gamma: Each
    policies: Float64[np.ndarray, "t k s a"]


class Parts(NamedTuple):
    """What the bounds are made of: distances between 0 and 1, for given weights."""

    model_error: Each
    r"""$E_{\rho^\pi_T} TV(T, \hat T)$"""
    visitation_shift: EachPolicy
    r"""$\xi_{\rho_i} = TV(\rho^\pi_T, \rho^{\pi_i}_T)$"""
    policy_shift_a: EachPolicy
    r"""$\xi_{\pi_i}$, in the states of the imagined mixture, reading (a)"""
    policy_shift_b: EachPolicy
    own_policy_shift: EachPolicy
    r"""The same in the policy's own imagined states, $E_{v^{\pi_i}_{\hat T}} TV(\pi, \pi_i)$"""
    last_a: Each
    r"""$TV(\rho^{mix}_{\hat T}, \rho^\pi_{\hat T})$"""
    last_b: Each
    distance_a: Each
    r"""$TV(\rho^\pi_T, \rho^{mix}_{\hat T})$"""
    distance_b: Each
    fit_a: Each
    r"""$TV(\rho^{mix}_T, \rho^{mix}_{\hat T})$, which the paper's proof takes to be 0"""
    fit_b: Each
    split_a: Each
    r"""$E_{v^{mix}_{\hat T}} TV(\pi, \pi_{mix}) - \sum_i w_i \xi_{\pi_i}$, which the proof needs to be at most 0"""
    split_b: Each
    r"""$TV(\rho^\pi_T, \rho^{mix}_T) - \sum_i w_i \xi_{\rho_i}$, likewise"""


class Score(NamedTuple):
    """How one bound did on one family."""

    family: str
    weights: str
    bound: str
    trials: int
    fails: int
    """Where the absolute gap is larger than the bound."""
    fails_one_sided: int
    """Where the real return minus the imagined one is, which is what the theorem states."""
    median_ratio: float
    """Median of absolute gap / bound."""
    largest_ratio: float
    says_nothing: float
    """Share of the MDPs where the bound is no less than any gap that such rewards allow."""


class Sizes(NamedTuple):
    """Median gap and terms of the printed bound on one family, reading (a), in units of the largest reward."""

    family: str
    gap: float
    model: float
    visitation: float
    policy: float
    last: float
    fit: float
    """2 gamma times the distance that the proof takes to be 0."""
    split_a_fails: float
    """Share of the MDPs where convexity of the policy shift fails under reading (a)."""
    split_b_fails: float
    """Share of the MDPs where convexity of the visitation shift fails under reading (b)."""


class Order(NamedTuple):
    """The Proposition on one family, in shares of its MDPs."""

    family: str
    orders_disagree: float
    """Some two policies are ordered in one way by the policy shift and in the other by the visitation shift."""
    pairs_disagree: float
    """The share of such pairs among all."""
    fails_common: int
    """Weighted shifts above their average, the visitation shifts rearranged into the order of the policy shifts."""
    fails_agreeing: int
    """The same on the MDPs whose two orders agree as they are."""
    fails: float
    """The same on all MDPs as they are, the shifts on both sides taken in the states of the stored data."""
    fails_own_states: float
    """The same with each side's policy shifts in the imagined states of its own mixture, as the theorem has it."""
    bound_grows: float
    """PDML's weights make the whole printed bound larger than uniform ones do, reading (a)."""


class Examples(NamedTuple):
    """The MDPs made by hand, of `slip_problem`, `detour_problem` and `fork_problem`."""

    slip_cells: int
    slip_predicted: int
    """Pairs of gamma and slip rate where the closed form violates the printed bound, rewards 0 and 1."""
    slip_violated: tuple[int, int]
    """Pairs where the general code says so: rewards 0 and 1, rewards -1 and 1."""
    slip_largest_ratio: float
    """Largest gap / bound, rewards -1 and 1."""
    slip_deviation: float
    """Largest difference between the closed form and the general code, of the gap and of the bound."""
    detour_gap: float
    detour_printed: float
    detour_corrected: float
    detour_fit: float
    """The distance that the proof takes to be 0."""
    fork_weighted: float
    fork_average: float
    """Weighted shifts with PDML's weights and with uniform ones."""


class Result(NamedTuple):
    """All that `check` finds."""

    config: TheoryConfig
    scores: tuple[Score, ...]
    sizes: tuple[Sizes, ...]
    orders: tuple[Order, ...]
    examples: Examples


def total_variation(p: Float64[np.ndarray, "*#b n"], q: Float64[np.ndarray, "*#b n"]) -> Float64[np.ndarray, "..."]:
    r"""$\frac12 \sum_x |p(x) - q(x)|$ over the last axis."""
    return 0.5 * np.abs(p - q).sum(axis=-1)


def visitation(
    policies: Float64[np.ndarray, "t k s a"],
    dynamics: Dynamics,
    start: Float64[np.ndarray, "t s"],
    gamma: Each,
) -> Float64[np.ndarray, "t k s a"]:
    r"""Solve $v = (1-\gamma) v_0 + \gamma P_\pi^\top v$ and return $\rho(s,a) = v(s) \pi(a|s)$."""
    moves = np.einsum("tksa,tsaz->tkzs", policies, dynamics)
    system = np.eye(moves.shape[-1]) - gamma[:, None, None, None] * moves
    right = np.broadcast_to(((1.0 - gamma)[:, None] * start)[:, None, :, None], (*moves.shape[:3], 1))
    return np.linalg.solve(system, right) * policies


def pdml_weights(shifts: EachPolicy) -> EachPolicy:
    r"""$w_i \propto 1/\xi_{\pi_i}$ for the historical policies; the current one, the last, gets the largest of them."""
    inverse = 1.0 / np.maximum(shifts[:, :-1], FLOOR)
    newest = inverse.max(axis=1, initial=1.0, keepdims=True)
    weights = np.concatenate([inverse, newest], axis=1)
    return weights / weights.sum(axis=1, keepdims=True)


def stored_shifts(problem: Problem) -> EachPolicy:
    """Return the policy shifts in the states of all stored data: what PDML's weights are made of."""
    real = visitation(problem.policies, problem.truth, problem.start, problem.gamma)
    states = real.sum(axis=-1).mean(axis=1)
    return np.einsum("ts,tks->tk", states, _action_shifts(problem))


def gaps(problem: Problem) -> Each:
    r"""$J(\pi, T) - J(\pi, \hat T)$ for the current policy."""
    current, start, gamma = problem.policies[:, -1:], problem.start, problem.gamma
    difference = visitation(current, problem.truth, start, gamma) - visitation(current, problem.model, start, gamma)
    return np.einsum("tksa,tsa->t", difference, problem.reward)


def parts(problem: Problem, weights: EachPolicy) -> Parts:
    """Compute every distance that a bound is made of."""
    truth, model, start, _, gamma, policies = problem
    real, imagined = visitation(policies, truth, start, gamma), visitation(policies, model, start, gamma)
    current, imagined_current = real[:, -1], imagined[:, -1]
    action_shifts = _action_shifts(problem)

    once_real, once = np.einsum("tk,tksa->tsa", weights, real), np.einsum("tk,tksa->tsa", weights, imagined)
    stepwise = np.einsum("tk,tksa->tsa", weights, policies)[:, None]
    step_real, step = (visitation(stepwise, dynamics, start, gamma)[:, 0] for dynamics in (truth, model))

    states = once.sum(axis=-1)
    visitation_shift = _between(current[:, None], real)
    policy_shift_a = np.einsum("ts,tks->tk", states, action_shifts)
    return Parts(
        model_error=(current * total_variation(truth, model)).sum(axis=(1, 2)),
        visitation_shift=visitation_shift,
        policy_shift_a=policy_shift_a,
        policy_shift_b=np.einsum("ts,tks->tk", step.sum(axis=-1), action_shifts),
        own_policy_shift=np.einsum("tks,tks->tk", imagined.sum(axis=-1), action_shifts),
        last_a=_between(once, imagined_current),
        last_b=_between(step, imagined_current),
        distance_a=_between(current, once),
        distance_b=_between(current, step),
        fit_a=_between(once_real, once),
        fit_b=_between(step_real, step),
        split_a=_between(states[..., None] * policies[:, -1], once) - (weights * policy_shift_a).sum(axis=1),
        split_b=_between(current, step_real) - (weights * visitation_shift).sum(axis=1),
    )


def bounds(problem: Problem, weights: EachPolicy, found: Parts) -> dict[str, Each]:
    """Put the bounds of `BOUNDS` together; the largest reward is the largest absolute one, as the proof needs."""
    gamma, volume = problem.gamma, float(problem.start.shape[1])
    largest = np.abs(problem.reward).max(axis=(1, 2))
    model = 2.0 * gamma * found.model_error
    shifts, own = (weights * found.visitation_shift).sum(axis=1), (weights * found.own_policy_shift).sum(axis=1)
    policy_a, policy_b = ((weights * shift).sum(axis=1) for shift in (found.policy_shift_a, found.policy_shift_b))
    in_units = {
        "printed (a)": model + gamma * volume * shifts + 2.0 * policy_a + 2.0 * found.last_a,
        "printed (b)": model + gamma * volume * shifts + 2.0 * policy_b + 2.0 * found.last_b,
        "corrected (a)": model + 2.0 * gamma * found.distance_a + 2.0 * own + 2.0 * found.last_a,
        "corrected (b)": model + 2.0 * gamma * found.distance_b + 2.0 * policy_b + 2.0 * found.last_b,
        "by policy (a)": model + 2.0 * gamma * (shifts + found.fit_a) + 2.0 * own + 2.0 * found.last_a,
        "triangle (a)": 2.0 * (shifts + found.fit_a + found.last_a),
        "no mixture": model / (1.0 - gamma),
    }
    return {name: largest * value for name, value in in_units.items()}


def random_problem(random: np.random.Generator, config: TheoryConfig, family: str) -> Problem:
    """Draw MDPs, models from nearly exact to unrelated, and a history of policies.

    `ordinary`: the sizes and horizons of the config, no structure, policies that walk at random to the current one.
    `sticky`: three states that are rarely left, horizons from 10 to 1000, and policies that hardly differ. `forked`:
    sticky, but the start is left at once, and each policy differs from the current one by much in some states and by
    little in others: the case where a small policy shift can be a large visitation shift.
    """
    sticky, forked = family != "ordinary", family == "forked"
    trials, k, actions = config.trials, config.num_policies, config.num_actions
    states = 3 if sticky else config.num_states

    def between(low: float, high: float, *shape: int) -> Float64[np.ndarray, "..."]:
        return np.exp(random.uniform(np.log(low), np.log(high), (trials, *shape)))

    def dynamics() -> Dynamics:
        mass = random.exponential(size=(trials, states, actions, states)) ** (6.0 if sticky else 2.0)
        return mass / mass.sum(axis=-1, keepdims=True)

    moving = between(1e-4 if sticky else 1.0, 1.0, 1, 1, 1) * np.ones((1, states, 1, 1))
    start = random.exponential(size=(trials, states))
    steps = random.standard_normal((trials, k, states, actions))
    if forked:
        moving[:, 0], start[:, 1:] = 1.0, 0.0
        steps[:, :-1] = steps[:, -1:] + steps[:, :-1] * between(0.01, 3.0, k - 1, states, 1)
    else:
        steps[:, 1:] *= between(*((0.01, 0.3) if sticky else (0.05, 1.0)), 1, 1, 1)
        steps = steps.cumsum(axis=1)
    truth = moving * dynamics() + (1.0 - moving) * np.eye(states)[:, None]
    error, reward = between(1e-3, 1.0, 1, 1, 1), random.uniform(size=(trials, states, actions))
    return Problem(
        truth=truth,
        model=(1.0 - error) * truth + error * dynamics(),
        start=start / start.sum(axis=1, keepdims=True),
        reward=reward / reward.max(axis=(1, 2), keepdims=True),
        gamma=1.0 - 1.0 / between(*((10.0, 1000.0) if sticky else (2.0, config.horizon))),
        policies=np.exp(steps) / np.exp(steps).sum(axis=-1, keepdims=True),
    )


def slip_problem(lowest_reward: float = 0.0) -> Problem:
    r"""Lay out the counterexample over `SLIP_GAMMAS` and `SLIP_RATES`: two states, one action, one policy.

    In truth the first state, of reward 1, is never left; the model leaves it with the slip rate $\epsilon$ for a state
    of the lowest reward, for good. All shifts are 0.
    """
    gamma, rate = (axis.ravel() for axis in np.meshgrid(SLIP_GAMMAS, SLIP_RATES, indexing="ij"))
    cells = len(gamma)
    truth = np.tile(np.eye(2)[:, None], (cells, 1, 1, 1))
    model = truth.copy()
    model[:, 0, 0] = np.stack([1.0 - rate, rate], axis=1)
    start, reward = np.tile([1.0, 0.0], (cells, 1)), np.tile([[1.0], [lowest_reward]], (cells, 1, 1))
    return Problem(truth, model, start, reward, gamma, np.ones((cells, 1, 2, 1)))


def slip_closed_form(lowest_reward: float = 0.0) -> tuple[Each, Each]:
    r"""Return the gap $(1-l) \gamma\epsilon / (1-\gamma+\gamma\epsilon)$ and the printed bound $2 \gamma\epsilon$.

    With $\epsilon$ the slip rate and $l$ the lowest reward: violated where $2 (1-\gamma+\gamma\epsilon) < 1-l$.
    """
    gamma, rate = (axis.ravel() for axis in np.meshgrid(SLIP_GAMMAS, SLIP_RATES, indexing="ij"))
    return (1.0 - lowest_reward) * gamma * rate / (1.0 - gamma + gamma * rate), 2.0 * gamma * rate


def detour_problem(
    slip: float = 1e-3, other: float = 1e-2, gamma: float = 1.0 - 1e-6
) -> tuple[Problem, Float64[np.ndarray, "1 2"]]:
    """Lay out the MDP whose worthless third state the mixture of each step reaches and no single policy does.

    The current policy always takes the first action and stays in the first state; the other one always takes the
    second action and stays in the second; who changes between them ends in the third. The model lets the first state
    slip into the third.
    """
    truth = np.zeros((1, 3, 2, 3))
    for state, after in enumerate(((0, 1), (2, 1), (2, 2))):
        truth[0, state, (0, 1), after] = 1.0
    model = truth.copy()
    model[0, 0, 0] = [1.0 - slip, 0.0, slip]
    policies = np.zeros((1, 2, 3, 2))
    policies[0, 0, :, 1] = policies[0, 1, :, 0] = 1.0
    reward = np.array([[[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]])
    problem = Problem(truth, model, np.array([[1.0, 0.0, 0.0]]), reward, np.array([gamma]), policies)
    return problem, np.array([[other, 1.0 - other]])


def fork_problem(gamma: float = 0.99, spread: float = 0.02) -> Problem:
    r"""Lay out the MDP where the nearest policy visits the farthest states.

    From the start each action leads to a room of its own, for good. The current policy goes left and acts left; the
    first one goes right at the start and differs nowhere else, a policy shift of $1-\gamma$ and a visitation shift of
    1; the second one only acts right now and then, once in its room.
    """
    truth = np.zeros((1, 3, 2, 3))
    for state, after in enumerate(((1, 2), (1, 1), (2, 2))):
        truth[0, state, (0, 1), after] = 1.0
    left = np.ones((3, 3))  # of each policy in each state
    left[0, 0], left[1, 1:] = 0.0, 1.0 - spread
    policies = np.stack([left, 1.0 - left], axis=-1)[None]
    reward = np.array([[[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]])
    return Problem(truth, truth, np.array([[1.0, 0.0, 0.0]]), reward, np.array([gamma]), policies)


def proposition_terms(
    weights: EachPolicy,
    visitation_shift: EachPolicy,
    policy_shift: EachPolicy,
    volume: Each,
) -> Each:
    r"""$\sum_i w_i (c\, \xi_{\rho_i} + 2 \xi_{\pi_i})$, with the `volume` $c = \gamma \mathrm{Vol}(S)$."""
    return (weights * (volume[:, None] * visitation_shift + 2.0 * policy_shift)).sum(axis=1)


def check(config: TheoryConfig | None = None) -> Result:
    """Hold every bound against the true gap, on random MDPs and on the counterexamples."""
    config = config or TheoryConfig()
    random = np.random.default_rng(config.seed)
    scores, sizes, orders = [], [], []
    for family in ("ordinary", "sticky", "forked"):
        problem = random_problem(random, config, family)
        alike = np.full(problem.policies.shape[:2], 1.0 / config.num_policies)
        near = pdml_weights(stored_shifts(problem))
        found = {"uniform": parts(problem, alike), "pdml": parts(problem, near)}
        for name, weights in (("uniform", alike), ("pdml", near)):
            scores += _scores(problem, family, name, bounds(problem, weights, found[name]))
        sizes.append(_sizes(problem, family, near, found["pdml"]))
        orders.append(_order(problem, family, near, found))
    for family, lowest in (("slip", 0.0), ("slip, signed", -1.0)):
        problem = slip_problem(lowest)
        weights = np.ones((len(problem.gamma), 1))
        scores += _scores(problem, family, "pdml", bounds(problem, weights, parts(problem, weights)))
    return Result(config, tuple(scores), tuple(sizes), tuple(orders), _examples())


def rows(result: Result) -> list[dict[str, Any]]:
    """Return one row for each family, weights and bound."""
    return [asdict(result.config) | score._asdict() for score in result.scores]


def _action_shifts(problem: Problem) -> Float64[np.ndarray, "t k s"]:
    """Return how far each policy is from the current one in each state."""
    return total_variation(problem.policies[:, -1:], problem.policies)


def _between(p: Float64[np.ndarray, "*#b s a"], q: Float64[np.ndarray, "*#b s a"]) -> Float64[np.ndarray, "..."]:
    """Return the total variation between distributions over states and actions."""
    return 0.5 * np.abs(p - q).sum(axis=(-2, -1))


def _scores(problem: Problem, family: str, weights: str, values: dict[str, Each]) -> list[Score]:
    """Hold bounds against the gap."""
    gap = gaps(problem)
    largest = np.abs(problem.reward).max(axis=(1, 2))
    span = largest - np.minimum(problem.reward.min(axis=(1, 2)), 0.0)
    scores = []
    for name, value in values.items():
        ratio = np.abs(gap) / np.maximum(value, 1e-300)
        scores.append(
            Score(
                family=family,
                weights=weights,
                bound=name,
                trials=len(gap),
                fails=int((np.abs(gap) > value + TOLERANCE * largest).sum()),
                fails_one_sided=int((gap > value + TOLERANCE * largest).sum()),
                median_ratio=float(np.median(ratio)),
                largest_ratio=float(ratio.max()),
                says_nothing=float((value >= span).mean()),
            )
        )
    return scores


def _sizes(problem: Problem, family: str, weights: EachPolicy, found: Parts) -> Sizes:
    """Take medians of the terms of the printed bound."""
    gamma, volume = problem.gamma, problem.start.shape[1]
    return Sizes(
        family=family,
        gap=float(np.median(np.abs(gaps(problem)))),
        model=float(np.median(2.0 * gamma * found.model_error)),
        visitation=float(np.median(gamma * volume * (weights * found.visitation_shift).sum(axis=1))),
        policy=float(np.median(2.0 * (weights * found.policy_shift_a).sum(axis=1))),
        last=float(np.median(2.0 * found.last_a)),
        fit=float(np.median(2.0 * gamma * found.fit_a)),
        split_a_fails=float((found.split_a > TOLERANCE).mean()),
        split_b_fails=float((found.split_b > TOLERANCE).mean()),
    )


def _order(problem: Problem, family: str, near: EachPolicy, found: dict[str, Parts]) -> Order:
    """Compare the second term under PDML's weights with its average."""
    alike = np.full_like(near, 1.0 / near.shape[1])
    volume = problem.gamma * problem.start.shape[1]
    stored, shift = stored_shifts(problem), found["pdml"].visitation_shift

    def fails(visitation_shift: EachPolicy) -> np.ndarray:
        weighted, average = (proposition_terms(w, visitation_shift, stored, volume) for w in (near, alike))
        return weighted > average + TOLERANCE

    first, second = np.triu_indices(near.shape[1] - 1, k=1)  # the current policy comes last in either order
    pairs = (stored[:, first] - stored[:, second]) * (shift[:, first] - shift[:, second]) < 0.0
    rank = stored.argsort(axis=1).argsort(axis=1)
    own, own_average = (
        proposition_terms(w, shift, found[name].policy_shift_a, volume)
        for name, w in (("pdml", near), ("uniform", alike))
    )
    printed = [bounds(problem, w, found[name])["printed (a)"] for name, w in (("pdml", near), ("uniform", alike))]
    return Order(
        family=family,
        orders_disagree=float(pairs.any(axis=1).mean()),
        pairs_disagree=float(pairs.mean()) if pairs.size else 0.0,
        fails_common=int(fails(np.take_along_axis(np.sort(shift, axis=1), rank, axis=1)).sum()),
        fails_agreeing=int((fails(shift) & ~pairs.any(axis=1)).sum()),
        fails=float(fails(shift).mean()),
        fails_own_states=float((own > own_average + TOLERANCE).mean()),
        bound_grows=float((printed[0] > printed[1] + TOLERANCE).mean()),
    )


def _examples() -> Examples:
    """Work out the MDPs made by hand."""
    violated, ratios, deviations = [], [], []
    for lowest in (0.0, -1.0):
        problem, exact = slip_problem(lowest), slip_closed_form(lowest)
        alone = np.ones((len(problem.gamma), 1))
        gap, printed = gaps(problem), bounds(problem, alone, parts(problem, alone))["printed (a)"]
        violated.append(int((gap > printed + TOLERANCE).sum()))
        ratios.append(float((gap / printed).max()))
        deviations += [float(np.abs(gap - exact[0]).max()), float(np.abs(printed - exact[1]).max())]
    gap, printed = slip_closed_form()

    problem, weights = detour_problem()
    found = parts(problem, weights)
    values = bounds(problem, weights, found)

    fork = fork_problem()
    stored, volume = stored_shifts(fork), fork.gamma * fork.start.shape[1]
    near = pdml_weights(stored)
    shift = parts(fork, near).visitation_shift
    return Examples(
        slip_cells=len(gap),
        slip_predicted=int((gap > printed).sum()),
        slip_violated=(violated[0], violated[1]),
        slip_largest_ratio=ratios[1],
        slip_deviation=max(deviations),
        detour_gap=float(gaps(problem)[0]),
        detour_printed=float(values["printed (b)"][0]),
        detour_corrected=float(values["corrected (b)"][0]),
        detour_fit=float(found.fit_b[0]),
        fork_weighted=float(proposition_terms(near, shift, stored, volume)[0]),
        fork_average=float(proposition_terms(np.full_like(near, 1 / 3), shift, stored, volume)[0]),
    )
