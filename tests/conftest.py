"""A tiny run that every test can change: two layers, a window that is much shorter than the sequence."""

import dataclasses

import pytest

from focus_jax.config import Checkpoint, Config, Data, Evaluation, Focus, Optimizer, Telemetry, Training, llama


@pytest.fixture
def run(tmp_path) -> Config:
    return Config(
        run=str(tmp_path / "run"),
        model=dataclasses.replace(
            llama(vocab_size=257, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48), init_std=0.2
        ),
        attention=Focus(groups=4, top_k=2, window=5, routing_width=8),
        data=Data(source="text", files=(str(tmp_path / "text" / "*.txt"),), store=str(tmp_path / "store")),
        training=Training(steps=12, batch_size=4, sequence_length=48),
        optimizer=Optimizer(peak_lr=1e-2, warmup_steps=2),
        evaluation=Evaluation(sequences=6, batch_size=4, top_k=(1, 2)),
        checkpoint=Checkpoint(every=4),
        telemetry=Telemetry(log_every=2, progress=False),
    )
