"""Errors that are the user's to mend: one line that names the field or file and the way out, and exit code 2."""

import sys
from collections.abc import Callable

BAD_INPUT = 2


class UserError(Exception):
    """Bad input, a bad file or a bad config. The message is one line: the field or file, what is wrong, the way out."""


def exit_code(main: Callable[[], int]) -> int:
    """Runs a command; a UserError becomes one line on stderr and exit code 2, every other exception stays a traceback."""
    try:
        return main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
