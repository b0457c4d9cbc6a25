"""Pictures of policies at work for the report: a strip of frames for the first run of each method."""

from collections.abc import Sequence
from pathlib import Path

from pdml.core.errors import UserError
from pdml.reporting.read import Run, groups
from pdml.reporting.sections import MOST_PICTURES, Picture
from pdml.studies.video import NoRendererError, strip


def strips(runs: Sequence[Run]) -> dict[Path, Picture | str]:
    """Render the last policy of the first run of each method on each environment, up to `MOST_PICTURES`.

    Returns:
        By run directory, the picture, or why there is none. Where nothing can render at all, the first reason ends it.
    """
    result: dict[Path, Picture | str] = {}
    for env in sorted({run.config.env for run in runs}):
        for group in groups([run for run in runs if run.config.env == env]).values():
            ready = [run.path for run in group if (run.path / "policy.safetensors").exists()]
            if not ready or len(result) == MOST_PICTURES:
                continue
            try:
                result[ready[0]] = Picture(*strip(ready[0]))
            except UserError as error:
                result[ready[0]] = f"no pictures: {error}"
                if isinstance(error, NoRendererError):
                    return result
    return result
