"""Pictures of policies at work for the report: a strip of frames for the first run of each method."""

from collections.abc import Sequence
from pathlib import Path

from pdml.config.tasks import PYTHON
from pdml.core.errors import UserError
from pdml.reporting.read import Run, groups
from pdml.reporting.sections import MOST_PICTURES, Picture
from pdml.studies.video import NoRendererError, strip


def strips(runs: Sequence[Run], import_modules: bool = False) -> dict[Path, Picture | str]:
    """Render the last policy of the first run of each method on each environment, up to `MOST_PICTURES`.

    Args:
        import_modules: Also render environments named `module:Id`. That runs the module's code, so it is not done
            unasked: the runs may be somebody else's.

    Returns:
        By run directory, the picture, or why there is none. Where nothing can render at all, the first reason ends it.
    """
    result: dict[Path, Picture | str] = {}
    for env in sorted({run.config.env for run in runs}):
        for group in groups([run for run in runs if run.config.env == env]).values():
            ready = [run.path for run in group if (run.path / "policy.safetensors").exists()]
            if not ready or len(result) == MOST_PICTURES:
                continue
            if ":" in env and not env.startswith(PYTHON) and not import_modules:
                result[ready[0]] = f"no pictures: they need the module of {env}; `pdml report --frames` imports it"
                continue
            try:
                result[ready[0]] = Picture(*strip(ready[0]))
            except UserError as error:
                result[ready[0]] = f"no pictures: {error}"
                if isinstance(error, NoRendererError):
                    return result
    return result
