"""Where a measured row comes from: the code and the machine that made it."""

import os
import platform
import subprocess
from pathlib import Path

import jax

PACKAGE = Path(__file__).parents[1]
CPU_FACTS = Path("/proc/cpuinfo")
VECTORS = ("avx512f", "avx2", "avx")
"""Widest first: twice the width is up to twice the speed, and cloud machines of one name differ in it."""


def commit() -> str | None:
    """Of the package's working tree, with git's own `-dirty` where the package differs from it; None outside of git."""
    head = _git("rev-parse", "HEAD")
    return f"{head}-dirty" if head and _git("status", "--porcelain", "--", ".") else head


def machine() -> str:
    """The accelerator's kind; of a CPU its name, widest vector instructions and cores."""
    kind = jax.devices()[0].device_kind
    return f"{cpu()}, {os.cpu_count()} cores" if kind == "cpu" else kind


def cpu() -> str:
    """Name and widest vector instructions as Linux tells them, the architecture elsewhere."""
    if not CPU_FACTS.exists():
        return platform.machine()
    lines = (line.partition(":") for line in CPU_FACTS.read_text().splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    name = facts.get("model name", platform.machine())
    vectors = [vector for vector in VECTORS if vector in facts.get("flags", "").split()]
    return " ".join([name, *vectors[:1]])


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
