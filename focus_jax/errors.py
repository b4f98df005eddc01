"""Errors that are the user's to mend: one line that names the field or file and the way out, no traceback."""

import errno
import io
import os
import re
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
    """Runs a command. A UserError, an error of the operating system about a file, and a device that is missing or too
    small become one line on stderr and their exit code; other exceptions stay tracebacks."""
    _print_in_any_encoding()
    try:
        return main()
    except UserError as error:
        return _say(str(error), error.exit_code)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        return _say(what, CannotWrite.exit_code if error.errno in DISK_FULL else UserError.exit_code)
    except (RuntimeError, MemoryError) as error:
        if trouble := _trouble_with_device(error):
            return _say(trouble, UserError.exit_code)
        raise
    except KeyboardInterrupt:
        return _say("interrupted", 128 + signal.SIGINT)


def _trouble_with_device(error: Exception) -> str | None:
    """JAX has one kind of error for everything; only its words tell them apart."""
    first_line = str(error).split("\n")[0]
    if isinstance(error, MemoryError) or re.search("RESOURCE_EXHAUSTED|[Oo]ut of memory", first_line):
        return (
            f"out of memory ({first_line}); a smaller training.batch_size, evaluation.batch_size or model, or more "
            "training.microbatches, needs less"
        )
    return None


def require_device() -> None:
    """Starts JAX. Raises UserError where there is none of the platforms that the environment asks for."""
    import jax

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        first_line = str(error).split("\n")[0]
        raise UserError(
            f"JAX_PLATFORMS: there is no {asked or 'usable'} device here, or no JAX for it; unset it, or install the "
            f"JAX of that platform {first_line and f'({first_line})'}"
        ) from None


def _print_in_any_encoding() -> None:
    """A terminal that has no "±" gets a question mark; the run goes on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _say(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
