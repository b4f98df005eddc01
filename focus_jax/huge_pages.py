"""Large arrays in huge pages. JAX on a CPU takes the memory of a step afresh at every step, and to hand it out in pages
of 4 KB costs the kernel up to a sixth of the time."""

import os
import sys

_WISH = "glibc.malloc.hugetlb"
_VARIABLE = "GLIBC_TUNABLES"


def use_huge_pages() -> None:
    """Begins the command again, with glibc asked for huge pages: it reads GLIBC_TUNABLES at the start of a process
    alone. Returns where the environment has a word on them already, and on systems that do not know them."""
    tunables = os.environ.get(_VARIABLE, "")
    if sys.platform != "linux" or _WISH in tunables:
        return
    os.environ[_VARIABLE] = f"{tunables}:{_WISH}=1".lstrip(":")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
