"""Errors of the machine, which are no UserErrors yet."""

import os
import subprocess
import sys

import pytest

from focus_jax.errors import exit_code
from tests.commands import ROOT


def failing(error: Exception):
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 64000000000000 bytes."),
        RuntimeError("INTERNAL: Error dispatching computation: Out of memory allocating 64000000000000 bytes.\nmore"),
        MemoryError("Unable to allocate 57.0 TiB for an array"),
    ],
)
def test_a_model_that_does_not_fit_is_said_in_one_line(error, capsys):
    assert exit_code(failing(error)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: out of memory (")
    assert "a smaller training.batch_size" in said
    assert said.count("\n") == 1


def test_other_errors_keep_their_traceback():
    with pytest.raises(RuntimeError, match="something else"):
        exit_code(failing(RuntimeError("something else")))


@pytest.mark.parametrize("platform", ["rocm", "nonsense"])
def test_a_platform_that_is_not_there_is_named(platform):
    program = "import sys; from focus_jax.errors import *; sys.exit(exit_code(require_device))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": platform, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert f"error: JAX_PLATFORMS: there is no {platform} device here" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_without_a_character_stops_nothing():
    program = "import sys; from focus_jax.errors import *; sys.exit(exit_code(lambda: print('± …') or 0))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "? ?\n"), done.stderr
