"""A run that is opened again for analysis, with its parts compiled and an environment for fresh steps."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from pdml.config.files import read_run
from pdml.config.schema import Config, Settings
from pdml.config.validate import check
from pdml.core.errors import UserError
from pdml.core.pytree import unflatten
from pdml.core.transition import Layout
from pdml.envs.env_spec import spec_of
from pdml.runs import directory
from pdml.training.diagnostics import FreshSteps, collect_fresh_steps
from pdml.training.methods import wire
from pdml.training.recipe import Parts


class OpenRun(NamedTuple):
    """A run that is opened again."""

    path: Path
    config: Config
    env: gymnasium.Env
    layout: Layout
    parts: Parts

    def fresh(self, actor: Any, step: int, count: int) -> FreshSteps:
        """Take fresh stochastic steps of a policy."""
        act = self.parts.act
        return collect_fresh_steps(
            self.layout, self.env, lambda obs, key: act(actor, obs, key), self.config.seed, step, count
        )

    def archives(self) -> dict[int, Path]:
        """Return the archived states, by steps after warm-up."""
        found = sorted((self.path / "archive").glob("step_*.safetensors"))
        return {self.config.schedule.after_warmup(int(file.stem.removeprefix("step_"))): file for file in found}

    def chosen_archives(self, steps: Sequence[int]) -> dict[int, Path]:
        """Return the archived states of some steps after warm-up, by default all; raise where there is none."""
        known = self.archives()
        if not known:
            raise UserError(f"run = '{self.path}': nothing archived; train with --archive-at STEPS")
        for step in steps:
            if step not in known:
                raise UserError(f"at = {step}: not archived; there are {', '.join(map(str, known))}")
        return {step: known[step] for step in (steps or known)}


@contextmanager
def opened(
    path: Path, changed: Callable[[Settings], Settings] = lambda settings: settings
) -> Generator[OpenRun, None, None]:
    """Open a run with its settings, or with what is made of them. A run that is still going will do."""
    settings = changed(check(*read_run(directory.require_run(path))))
    spec = spec_of(settings)
    assert spec.make is not None
    layout = spec.spaces.layout
    with closing(spec.make()) as env:
        yield OpenRun(path, settings.learning, env, layout, wire(settings.learning, layout, spec.known))


def restored_tree(template: Any, arrays: dict[str, np.ndarray], prefix: str, file: Path) -> Any:
    """Rebuild a tree from the arrays of a file."""
    try:
        return unflatten(template, arrays, prefix)
    except ValueError as error:
        raise UserError(f"'{file}' does not belong to its run's configuration ({error})") from None
