"""Whole runs in this process, and what is left of them."""

import json
import signal
from pathlib import Path

import pytest

from focus_jax.config import Config, of_model
from focus_jax.data.store import open_store
from focus_jax.parallel.mesh import make_mesh
from focus_jax.pretraining import pretrain
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import Telemetry
from focus_jax.training.checkpoints import Checkpoints
from focus_jax.training.learner import Learner

WALL_CLOCK = ("seconds", "tokens_per_second", "data_seconds", "mfu", "mfu_executed")
CONTINUING = ("started", "resumed", "unusable_checkpoint")


def start(run: Config) -> int:
    return pretrain(run, RunFolder(Path(run.run)), open_store(run.data, run.model.vocab_size))


def rows(run: Config) -> list[dict]:
    """Without what the clock decides, and without the events of starting and resuming."""
    lines = (Path(run.run) / "metrics.jsonl").read_text().splitlines()
    everything = [json.loads(line) for line in lines]
    return [
        {name: value for name, value in row.items() if name not in WALL_CLOCK}
        for row in everything
        if row.get("name") not in CONTINUING
    ]


def final_states(run: Config) -> dict:
    checkpoints = Checkpoints(RunFolder(Path(run.run)).checkpoints)
    learners = [Learner(name, of_model(run, name), make_mesh(run.mesh)) for name in run.models]
    abstract = {learner.name: learner.abstract_state() for learner in learners}
    states, _ = checkpoints.restore(run.training.steps, abstract)
    checkpoints.close()
    return states


def stop_after(monkeypatch: pytest.MonkeyPatch, stop_step: int) -> None:
    """The signal arrives while a step is being reported, as it would from a scheduler."""
    progress = Telemetry.progress

    def progress_then_stop(self: Telemetry, step: int) -> None:
        progress(self, step)
        if step == stop_step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Telemetry, "progress", progress_then_stop)


def events(run: Config) -> list[dict]:
    lines = (Path(run.run) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "event"]
