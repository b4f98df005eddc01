"""Errors that are the user's to mend: one line that names the field or file and the way out, no traceback."""

import sys
from collections.abc import Callable


class UserError(Exception):
    """Bad input, a bad file or a bad config. The message is one line: the field or file, what is wrong, the way out."""

    exit_code = 2


def exit_code(main: Callable[[], int]) -> int:
    """Runs a command; a UserError becomes one line on stderr and its exit code; other exceptions stay tracebacks."""
    try:
        return main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
