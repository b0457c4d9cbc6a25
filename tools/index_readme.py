"""README.md as the page of the package on an index: there, paths of the repository lead nowhere.

Hatchling calls it when it builds the package. With a `Repository` in `[project.urls]`, links and pictures become
absolute. Without one, a link becomes its text and a picture is left out.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[(?P<text>[^]]*)\]\((?!https?:)(?P<path>[^)]+)\)\n*")
LINK = re.compile(r"(?<!!)\[(?P<text>[^]]*)\]\((?!https?:|#)(?P<path>[^)]+)\)")


def page_for_index(readme: str, repository: str | None) -> str:
    """Return the text with paths of the repository made absolute, or taken out."""
    if repository is None:
        return LINK.sub(r"\g<text>", PICTURE.sub("", readme))
    base = repository.rstrip("/")
    readme = PICTURE.sub(lambda found: found[0].replace(found["path"], f"{base}/raw/main/{found['path']}", 1), readme)
    return LINK.sub(rf"[\g<text>]({base}/blob/main/\g<path>)", readme)


class ReadmeHook(MetadataHookInterface):
    """Set the readme of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it from README.md and `[project.urls]`."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        page = page_for_index(text, metadata.get("urls", {}).get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
