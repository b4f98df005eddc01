import os
import subprocess
import sys
from pathlib import Path

import pytest

from focus_jax.step_memory import keep_step_memory

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's"),
    pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="steps run on the GPU"),
]

PROGRAM = """
import os, sys
from focus_jax.step_memory import keep_step_memory
print("begun", flush=True)
keep_step_memory()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
"""
ASKED = (
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"
)


@pytest.mark.parametrize(
    ("before", "after", "starts"),
    [
        (None, ASKED, 2),
        ("glibc.malloc.check=0", f"glibc.malloc.check=0:{ASKED}", 2),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0", 1),
    ],
)
def test_the_command_begins_once_more_with_its_arguments_unless_the_user_has_decided(before, after, starts):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if before is not None:
        environment["GLIBC_TUNABLES"] = before
    command = [sys.executable, "-c", PROGRAM, "--name", "a b"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["begun"] * starts + [f"{after} ['--name', 'a b']"]


def test_nothing_is_asked_for_beside_an_nvidia_gpu(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(Path, "glob", lambda folder, _: iter([folder / "nvidia0"]))
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("begun once more"))
    keep_step_memory()
    assert "GLIBC_TUNABLES" not in os.environ


STEPS = """
import resource
import jax, jax.numpy as jnp
from focus_jax.step_memory import keep_step_memory
keep_step_memory()

@jax.jit
def step(x):
    return jax.lax.optimization_barrier(x * jnp.arange(64.0)[:, None, None]).sum()

x = jnp.ones((1000, 1000))
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[1:]))
"""


@pytest.mark.parametrize(("tunables", "faults"), [("", range(10)), ("glibc.malloc.hugetlb=0", range(100, 10**9))])
def test_a_step_takes_no_memory_from_the_system_that_the_step_before_had(tunables, faults):
    environment = os.environ | {"GLIBC_TUNABLES": tunables, "JAX_PLATFORMS": "cpu"}
    output = subprocess.run([sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, check=True)
    assert int(output.stdout) in faults
