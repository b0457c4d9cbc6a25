"""The exceptions of the package: mistakes of the user, and what ends a run."""

from collections.abc import Iterable
from difflib import get_close_matches

BUSY_EXIT = 3
"""Exit code of a command whose run belongs to another process."""


class UserError(Exception):
    """A mistake that the user can fix: one sentence that names what was wrong and what is allowed.

    The command line prints the sentence and exits with code 2; nothing has been learned or lost by then.
    """


class BusyError(UserError):
    """Another process is running this directory; the exit code is `BUSY_EXIT`, and trying again later may help."""


class RunError(Exception):
    """A run failed, for a reason that is no mistake of the user; it is written to error.txt, and the exit code is 1."""


class LostRunError(RunError):
    """Another process has taken over the run of this one, which writes nothing more; the exit code is `BUSY_EXIT`."""


class Diverged(RunError):  # noqa: N818 (it is a RunError)
    """A number that learning depends on is no longer finite; the sentence names it."""


def nearest(name: object, names: Iterable[str]) -> str:
    """Suggest the closest allowed name, if one is close; of dotted names, those that end with it."""
    known = {each.lower(): each for each in names}
    same = [each for lower, each in known.items() if lower.endswith(f".{str(name).lower()}")]
    if same:
        return f" (did you mean {' or '.join(same)}?)"
    near = get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {known[near[0]]}?)" if near else ""
