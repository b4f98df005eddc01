"""Signals that come while the main thread is deep in a computation, as in a compilation."""

import signal
import subprocess
import sys

from tests.commands import ROOT

PROGRAM = """
import hashlib
from focus_jax.training.stop import StopSignals

with StopSignals() as signals:
    print("computing", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", ROUNDS)
    print(signals.requested)
"""


def start(rounds: int) -> subprocess.Popen[str]:
    program = PROGRAM.replace("ROUNDS", str(rounds))
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "computing\n"
    return process


def test_a_first_signal_is_answered_at_once_and_the_computation_ends():
    process = start(rounds=5_000_000)
    process.send_signal(signal.SIGTERM)
    assert "stopping after this step" in process.stderr.readline()
    assert process.communicate(timeout=60)[0] == "True\n"
    assert process.returncode == 0


def test_a_second_signal_stops_at_once():
    process = start(rounds=2**31 - 1)
    process.send_signal(signal.SIGTERM)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
