import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from focus_jax.huge_pages import use_huge_pages
print("begun", flush=True)
use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("before", "after", "starts"),
    [
        (None, "glibc.malloc.hugetlb=1", 2),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1", 2),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0", 1),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_the_command_begins_once_more_with_its_arguments_unless_the_user_has_decided(before, after, starts):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if before is not None:
        environment["GLIBC_TUNABLES"] = before
    command = [sys.executable, "-c", PROGRAM, "--name", "a b"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["begun"] * starts + [f"{after} ['--name', 'a b']"]
