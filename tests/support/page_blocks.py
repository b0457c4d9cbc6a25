"""The fenced blocks of a page of the documentation."""

import re
import textwrap


def blocks(text, *languages):
    """Return the fenced blocks of some languages."""
    found = re.findall(r"^( *)```([^\n`]*)\n(.*?)^\1```\s*?$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(code) for _, language, code in found if language.strip() in languages]


def save_modules(page, folder):
    """Write the blocks that begin with the name of a file, such as `# point.py`, to that file."""
    for block in blocks(page.read_text(), "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (folder / named[1]).write_text(block)
