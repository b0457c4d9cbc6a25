"""The one exception that stands for a mistake of the user."""


class UserError(Exception):
    """A mistake the user can mend: one sentence that names what was wrong and what is allowed.

    The command line prints the sentence and exits with code 2; nothing has been written by then.
    """
