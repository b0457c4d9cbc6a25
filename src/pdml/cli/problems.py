"""What commands about runs could not read."""

import sys
from collections.abc import Iterable


def name_problems(problems: Iterable[str]) -> int:
    """Print what could not be read, a line each; return the command's exit code, which says whether there was any."""
    code = 0
    for problem in problems:
        print(f"pdml: {problem}", file=sys.stderr)
        code = 2
    return code
