"""Pages that rebuild themselves: between two marks stands what a command prints.

A table stands between `<!-- pdml: COMMAND -->` and `<!-- end -->`. The mark `<!-- pdml: figure ... --out DIR -->`
stands alone: its command draws a picture, which the page shows. Marks begin a line; those in fenced blocks are
examples.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pdml.core.errors import UserError

MARK = re.compile(r"<!-- pdml: (?P<command>.*\S) -->\s*")
END = "<!-- end -->"


class Mark(NamedTuple):
    """A command in a page, and the lines that it stands for."""

    page: Path
    line: int
    """The number of the line with the command."""
    words: tuple[str, ...]
    """The command, without `pdml`."""
    end: int
    """The number of the line with the end mark; that of the command for a figure."""

    @property
    def is_figure(self) -> bool:
        """Whether the command draws instead of printing."""
        return self.words[0] == "figure"

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}, line {self.line}"


def find_pages(paths: Iterable[Path]) -> list[Path]:
    """Return the given pages, and those below the given directories but for folders like `_build`."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"page = '{path}': does not exist")
        below = sorted(path.rglob("*.md")) if path.is_dir() else [path]
        found += [page for page in below if not any(part.startswith(("_", ".")) for part in _folders(page, path))]
    return list(dict.fromkeys(found))


def _folders(page: Path, top: Path) -> tuple[str, ...]:
    return page.relative_to(top).parts[:-1]


def read_page(page: Path) -> str:
    """Return the text of a page."""
    try:
        return page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"page = '{page}': cannot be read ({type(error).__name__})") from None


def find_marks(page: Path, text: str) -> list[Mark]:
    """Return the marks of a page; raise where one is not closed or cannot be read."""
    marks: list[Mark] = []
    opened: Mark | None = None
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        if line.rstrip() == END:
            if opened is None:
                raise UserError(f"{page}, line {number}: '{END}' without a command before it")
            marks.append(opened._replace(end=number))
            opened = None
        elif line.startswith("<!-- pdml"):
            if opened is not None:
                raise UserError(f"{opened.place}: no '{END}' before the next command")
            mark = _read_mark(page, number, line)
            if mark.is_figure:
                marks.append(mark)
            else:
                opened = mark
    if opened is not None:
        raise UserError(f"{opened.place}: no '{END}' after the command")
    return marks


def _read_mark(page: Path, number: int, line: str) -> Mark:
    found = MARK.fullmatch(line)
    try:
        words = shlex.split(found["command"]) if found else []
    except ValueError:
        words = []
    if not words:
        raise UserError(f"{page}, line {number}: '{line.strip()}' is no command; write <!-- pdml: COMMAND -->")
    return Mark(page, number, tuple(words), number)


def rebuild_page(text: str, marks: Sequence[Mark], printed: Callable[[Mark], str]) -> tuple[str, list[Mark]]:
    """Put what each command prints between its marks; return the text, and the marks where it was something else."""
    lines = text.splitlines(keepends=True)
    changed: list[Mark] = []
    for mark in reversed([mark for mark in marks if not mark.is_figure]):
        new = f"\n{printed(mark).strip()}\n\n".splitlines(keepends=True)
        if lines[mark.line : mark.end - 1] != new:
            lines[mark.line : mark.end - 1] = new
            changed.insert(0, mark)
    return "".join(lines), changed
