"""The environment of a run that is loaded from Python, passed again or not."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from pdml.config.schema import Settings
from pdml.config.tasks import PYTHON, Task
from pdml.config.validate import check
from pdml.core.errors import UserError
from pdml.envs.env_spec import EnvSpec, spec_of
from pdml.envs.from_python import Env, absent_spec, require_spaces, spec_for
from pdml.envs.gym import make_plain
from pdml.envs.spaces import spaces_from
from pdml.runs.directory import recorded_spaces


def loaded_spec(
    path: Path,
    settings: Settings,
    task: Task,
    env: Env | None,
    eval_env: gymnasium.Env | None,
    functions: dict[str, Any],
) -> EnvSpec:
    """Return the environment of a run.

    Args:
        env: As it was passed again; None: it was not.
        functions: See `pdml.envs.user_fns.known_parts`.
    """
    name = settings.learning.env
    if eval_env is not None and (env is None or env == name):
        raise UserError("eval_env: goes with an environment as env only; from an id, more are made")
    if env is None and name.startswith(PYTHON):
        return absent_spec(spaces_from(recorded_spaces(path)), settings, functions, task)
    check(settings, task)
    if env is None or env == name:
        return spec_of(settings, functions)
    if isinstance(env, str) and not name.startswith(PYTHON):
        raise UserError(f"env = '{env}': the run's environment is '{name}'; leave env out")
    made = partial(make_plain, env) if isinstance(env, str) else env
    spec = spec_for(made, eval_env, settings, functions)
    require_spaces(spec.spaces, spaces_from(recorded_spaces(path)), path)
    return spec
