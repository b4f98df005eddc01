"""Several processes train one run, on this machine with CPU collectives: what one process computes, one that speaks,
all stop together, and a checkpoint moves between numbers of processes and meshes, and is evaluated on any."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from focus_jax.config import Config
from focus_jax.errors import CONTINUE_ME, UserError
from focus_jax.parallel.joining import CANNOT_JOIN, join
from focus_jax.run_folder import RunFolder
from tests.changes import changed
from tests.commands import ROOT, command, write_config_file
from tests.training.runs import final_states, rows, start, stop_after

LOSSES = ("loss", "grad_norm", "delta_nats", "kept_fraction")


@pytest.fixture
def run(run: Config) -> Config:
    return changed(run, model={"layers": 1}, evaluation={"top_k": (1,)}, attention={"probes": 6})


def launch(run: Config, folder: Path, *overrides: str, count: int = 2, only: int | None = None, devices: int = 1):
    """`count` processes of one run, or `only` one of them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "train.py", "--config", str(write_config_file(folder, run)), *overrides]
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(number),
                "JAX_NUM_CPU_DEVICES": str(devices),
                "JAX_COMPILATION_CACHE_DIR": str(folder / f"compiled-{number}"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (range(count) if only is None else [only])
    ]


def ends(processes) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each."""
    ended = []
    for process in processes:
        out, err = process.communicate(timeout=400)
        ended.append((process.returncode, out, err))
    return ended


def test_a_process_that_cannot_join_says_so_in_one_line(run, tmp_path):
    ((code, _, err),) = ends(launch(run, tmp_path, "--mesh.join-seconds", "2", only=1))
    assert code == CANNOT_JOIN
    said = err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("error: mesh.join_seconds: process 1 of 2 has not met the others at localhost:")


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"JAX_PROCESS_ID": "0"}, r"^JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID: set all"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, r"^JAX_PROCESS_ID: 2 is"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "x", "JAX_PROCESS_ID": "0"}, r"two numbers"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(monkeypatch, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said):
        join(1)


def test_a_run_of_one_process_joins_nothing(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    join(1)
    assert not jax.distributed.is_initialized()


def named(run: Config, name: str) -> Config:
    return changed(run, run=f"{run.run}-{name}")


def assert_same_run(one: Config, other: Config) -> None:
    """To rounding: sums over devices have another order."""
    for a, b in zip(rows(one), rows(other), strict=True):
        assert (a["kind"], a["step"], a["tokens"], a.get("model")) == (
            b["kind"],
            b["step"],
            b["tokens"],
            b.get("model"),
        )
        for name in set(LOSSES) & a.keys():
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-4), (a["step"], name)
    for a, b in zip(jax.tree.leaves(final_states(one)), jax.tree.leaves(final_states(other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_two_processes_stop_together_and_one_goes_on(run, text, tmp_path):
    whole, moved = named(run, "whole"), named(run, "moved")
    assert start(whole) == 0
    folder = RunFolder(Path(moved.run))
    with folder.alone():
        refused = ends(launch(moved, tmp_path))
    assert [code for code, _, _ in refused] == [2, 2]
    assert all("another process is training in this folder" in err for _, _, err in refused)

    # Each has half of every matrix, and both bring the same sequences.
    processes = launch(moved, tmp_path, "--mesh.data", "1", "--mesh.tensor", "2")
    while not (folder.metrics.exists() and folder.metrics.read_text()):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    # While they compile, so that it comes before their first step; only one of them gets it.
    processes[1].send_signal(signal.SIGTERM)
    stopped = ends(processes)
    assert [code for code, _, _ in stopped] == [CONTINUE_ME] * 2
    assert "stopped after step 2" in stopped[0][1]
    assert [path.name for path in folder.checkpoints.iterdir()] == ["2"]
    assert start(moved) == 0
    assert_same_run(whole, moved)


@pytest.mark.slow
def test_one_process_stops_and_two_with_two_devices_each_go_on(run, text, tmp_path, monkeypatch):
    whole, moved = named(run, "whole"), named(run, "moved")
    assert start(whole) == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert start(moved) == CONTINUE_ME
    (first, first_out, _), (second, second_out, _) = ends(
        launch(moved, tmp_path, "--mesh.data", "1", "--mesh.fsdp", "2", "--mesh.tensor", "2", devices=2)
    )
    assert (first, second) == (0, 0)
    assert "checkpoint at step 12 of 12" in first_out
    assert [line for line in second_out.splitlines() if "Gloo" not in line and "peer ranks" not in line] == []
    stored = json.loads(RunFolder(Path(moved.run)).config.read_text())
    assert (stored["mesh"]["fsdp"], stored["mesh"]["tensor"]) == (2, 2)
    assert_same_run(whole, moved)


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_alike_on_one_device_and_on_eight(run, text, tmp_path, monkeypatch):
    assert start(run) == 0
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
    (one, other) = (evaluated(run, mesh, tmp_path / f"{mesh}.jsonl") for mesh in ("1,1,1", "2,2,2"))
    assert [row["kind"] for row in one] == [row["kind"] for row in other]
    assert {"eval", "compare", "groups", "tokens"} <= {row["kind"] for row in one}
    for a, b in zip(one, other, strict=True):
        assert_alike(a, b)


def evaluated(run: Config, mesh: str, path: Path) -> list[dict]:
    done = command("eval.py", "--run", run.run, "--mesh", mesh, "--json", path)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_alike(one: object, other: object) -> None:
    """Numbers to rounding, everything else exactly."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert isinstance(other, list)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert other == (pytest.approx(one, rel=1e-5, abs=1e-5) if isinstance(one, float) else one)
