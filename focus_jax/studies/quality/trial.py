"""Trains one arm as `train.py` would, in a run folder of its own, and makes a row of what that folder says."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from focus_jax.config import Config
from focus_jax.data.store import open_store
from focus_jax.errors import UserError
from focus_jax.evaluation import stored
from focus_jax.evaluation.command import causality
from focus_jax.evaluation.report.record import RunRecord
from focus_jax.model import parameter_count
from focus_jax.pretraining import pretrain
from focus_jax.run_folder import RunFolder
from focus_jax.studies.quality.arms import Arm, config_of
from focus_jax.studies.results import Row
from focus_jax.telemetry.readings import LoggedReading


def train_arm(arm: Arm, folder: Path) -> int:
    """Begins its run, or continues it. The exit code is not 0 where the run was stopped before its end."""
    run = config_of(arm, folder)
    if run.checkpoint.every % run.telemetry.log_every:
        raise UserError(
            f"checkpoint.every: a curve has seconds where telemetry.log_every has a row; {run.checkpoint.every} is no "
            f"multiple of {run.telemetry.log_every}"
        )
    run_folder = RunFolder(Path(run.run))
    run_folder.check(run)
    return pretrain(run, run_folder, open_store(run.data, run.model.vocab_size))


def row_of(arm: Arm, folder: Path, window: int) -> Row:
    """Of an arm that has been trained.

    window: positions beyond it are where distant tokens could help, the same ones for every arm.
    """
    run = config_of(arm, folder)
    record = RunRecord.read(Path(run.run))
    (training,) = record.training().values()
    return {
        **dataclasses.asdict(arm),
        "parameters": parameter_count(run),
        "tokens": record.tokens,
        "window": window,
        "seconds": training[-1]["seconds"],
        "seconds_per_step": training[-1]["seconds"] / record.step,
        "kept_in_training": float(np.mean([row["kept_fraction"] for row in training])),
        "readings": [_reading(record, reading, window) for reading in record.evaluations()],
        "dominance": [history[-1]["dominance"] for history in record.groups().values()],
        "switch_rate": [history[-1]["switch_rate"] for history in record.groups().values()],
        "leak": _leak(run),
    }


def _reading(record: RunRecord, reading: LoggedReading, window: int) -> Row:
    """How the arm does when it is read so: at the end, and at each checkpoint before."""
    history = record.evaluations()[reading]
    seconds = {row["step"]: row["seconds"] for rows in record.training().values() for row in rows}
    curve = [
        [row["tokens"], seconds[row["step"]], row["loss"], _beyond(record, row["step"], reading, window)]
        for row in history
    ]
    last = history[-1]
    return {
        **{field: last[field] for field in ("routing", "top_k", "gate", "causal", "loss", "ppl", "kept_fraction")},
        "name": reading.name,
        "loss_beyond_window": curve[-1][-1],
        "curve": curve,
    }


def _beyond(record: RunRecord, step: int, reading: LoggedReading, window: int) -> float:
    arrays = stored.load(RunFolder(record.folder).token_losses(step, reading.key))
    return float(np.mean(arrays["nats_ST"][:, window + 1 :][arrays["valid_ST"][:, window + 1 :]], dtype=np.float64))


def _leak(run: Config) -> list[dict[str, Any]] | None:
    """What the causality check finds, where it finds anything."""
    findings, causal = causality(Path(run.run), run, None, None)
    return None if causal else findings
