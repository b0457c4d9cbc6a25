"""The policy of a run on disk, ready to act and to be evaluated."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from pdml.config.files import read_run
from pdml.config.schema import Settings
from pdml.config.tasks import is_listed
from pdml.config.validate import check
from pdml.core.errors import UserError
from pdml.core.pytree import unflatten
from pdml.core.rng import Purpose, key
from pdml.envs.env_spec import spaces_of
from pdml.envs.evaluation import EpisodeResult, Evaluator
from pdml.envs.gym import make_env
from pdml.envs.spaces import spaces_from
from pdml.envs.termination_fns import by_rule, never
from pdml.runs import directory
from pdml.runs.policy_files import policy_file
from pdml.runs.tensor_file import read_arrays
from pdml.training.methods import wire


class SavedPolicy(NamedTuple):
    """The policy of a run, for batches of observations, with actions in [-1, 1]."""

    settings: Settings
    step: int
    mode: Callable[[np.ndarray], np.ndarray]
    sample: Callable[[np.ndarray, jax.Array], np.ndarray]


def load_policy(path: Path, which: str = "last") -> SavedPolicy:
    """Read the last policy of a run, or its best one."""
    settings = check(*read_run(directory.require_run(path)))
    arrays, note = read_arrays(policy_file(path, which))
    env = settings.learning.env
    spaces = spaces_of(env) if is_listed(env) else spaces_from(directory.recorded_spaces(path))
    agent = wire(settings.learning, spaces.layout, by_rule(never)).recipe.agent
    try:
        actor = unflatten(agent.init(key(0, Purpose.AGENT_INIT)).actor, arrays, "actor")
    except ValueError as error:
        raise UserError(f"run = '{path}': its policy does not belong to its configuration ({error})") from None
    mode, sample = jax.jit(agent.mode), jax.jit(agent.sample)
    return SavedPolicy(
        settings,
        note["step"],
        lambda obs: np.asarray(mode(actor, obs)),
        lambda obs, action_key: np.asarray(sample(actor, obs, action_key)),
    )


def evaluate_run(
    path: Path, episodes: int, stochastic: bool, seed: int | None, which: str = "last"
) -> tuple[int, list[EpisodeResult]]:
    """Evaluate a policy of a run in fresh environments; return the policy's step and the episodes."""
    policy = load_policy(path, which)
    config, timeout = policy.settings.learning, policy.settings.run.env_timeout
    chosen = config.seed if seed is None else seed

    def act(obs: np.ndarray, time: int) -> np.ndarray:
        return policy.sample(obs, key(chosen, Purpose.EVALUATION_ACT, time)) if stochastic else policy.mode(obs)

    with closing(Evaluator(lambda: make_env(config.env, config.max_episode_steps, timeout), episodes)) as evaluator:
        return policy.step, evaluator(act, chosen, policy.step, episodes)
