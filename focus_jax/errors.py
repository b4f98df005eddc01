"""Errors that are the user's to mend: one line that names the field or file and the way out, no traceback."""

import errno
import signal
import sys
from collections.abc import Callable

# sysexits.h EX_TEMPFAIL: not done, run the same command again to continue.
CONTINUE_ME = 75
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UserError(Exception):
    """Bad input, a bad file or a bad config. The message is one line: the field or file, what is wrong, the way out."""

    exit_code = 2


class CannotWrite(UserError):  # noqa: N818 - it names what happened
    """A disk that is full or fails. Nothing that was complete is lost; the same command goes on when there is room."""

    exit_code = 74  # sysexits.h EX_IOERR


def exit_code(main: Callable[[], int]) -> int:
    """Runs a command. A UserError, or an error of the operating system about a file, becomes one line on stderr and its
    exit code; other exceptions stay tracebacks."""
    try:
        return main()
    except UserError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        return _say(what, CannotWrite.exit_code if error.errno in DISK_FULL else UserError.exit_code)
    except KeyboardInterrupt:
        return _say("interrupted", 128 + signal.SIGINT)


def _say(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
