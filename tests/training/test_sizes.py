"""The real 124M config on a CPU."""

import math
from pathlib import Path

import pytest

from focus_jax.config import Data
from focus_jax.config_loading import load
from tests.changes import changed
from tests.commands import ROOT
from tests.training.runs import rows, start


@pytest.mark.slow
def test_gpt2_124m_takes_steps(tmp_path: Path):
    """Both twins with their real sizes and optimizer on real text; fewer and shorter sequences, no warm-up, and layers
    as a loop, which compiles in a fraction of the time."""
    run = changed(
        load(ROOT / "configs" / "gpt2_124m.py"),
        run=str(tmp_path / "run"),
        data=Data(source="stdlib", tokenizer="trained", store=str(tmp_path / "store")),
        training={"steps": 2, "batch_size": 2, "sequence_length": 256, "microbatches": 2, "scan_layers": True},
        optimizer={"warmup_steps": 1},
        evaluation={"sequences": 2, "batch_size": 2, "top_k": (2,)},
        checkpoint={"every": 2},
        telemetry={"log_every": 1},
    )
    assert start(run) == 0
    for model in run.models:
        losses = [row["loss"] for row in rows(run) if row["kind"] == "train" and row["model"] == model]
        assert len(losses) == 2
        assert losses[0] == pytest.approx(math.log(run.model.vocab_size), abs=0.5)
        assert losses[-1] < losses[0] - 0.3
