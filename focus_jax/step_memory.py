"""The memory of a step kept for the next one, and in huge pages.

JAX on a CPU takes the memory of a step afresh at every step and gives it back. To have it from the kernel each time, in
pages of 4 KB, costs up to a sixth of the time.
"""

import os
import sys
from pathlib import Path

_TUNABLES = {
    "hugetlb": 1,
    # Only memory of the main arena's heap can be kept, so all of it is to come from there.
    "arena_max": 1,
    "mmap_max": 0,
    "trim_threshold": 2**34,
}
_VARIABLE = "GLIBC_TUNABLES"


def keep_step_memory() -> None:
    """Begins the command again, with glibc asked to do so: it reads GLIBC_TUNABLES at the start of a process alone.

    Returns where the environment has a word on glibc.malloc.hugetlb already, on systems that do not know them, and
    where there is an NVIDIA GPU, whose memory is not glibc's: there the host is to give back what a checkpoint took.
    """
    given = os.environ.get(_VARIABLE, "")
    if sys.platform != "linux" or "glibc.malloc.hugetlb" in given or any(Path("/dev").glob("nvidia[0-9]*")):
        return
    wishes = (f"glibc.malloc.{name}={value}" for name, value in _TUNABLES.items())
    os.environ[_VARIABLE] = ":".join((*filter(None, [given]), *wishes))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
