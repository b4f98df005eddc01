"""The models and text that arms are compared on: one for minutes of two CPU cores, and GPT-2 124M for one GPU."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from focus_jax.config import Checkpoint, Config, Data, Evaluation, Optimizer, Telemetry, Training, llama
from focus_jax.recipes import RECOMMENDED, gpt2_run


def small(folder: Path) -> Config:
    """Two layers on the standard library's sources, 1,024 tokens of which a window reads 17; K and M as recommended.

    Biases, normed queries and keys and larger initial matrices are there for dense attention: without them it is behind
    the window alone at any number of tokens that a CPU can afford (EXPERIMENTS.md).
    """
    model = llama(vocab_size=1024, width=128, layers=2, heads=2, kv_heads=2, mlp_width=344)
    return Config(
        run="",
        model=dataclasses.replace(model, biases=True, qk_norm=True, init_std=0.05),
        attention=dataclasses.replace(RECOMMENDED, window=16),
        data=Data(source="stdlib", tokenizer="trained", store=str(folder / "stdlib-1024")),
        training=Training(steps=8000, batch_size=1, sequence_length=1024),
        optimizer=Optimizer(peak_lr=4e-3, warmup_steps=200),
        evaluation=Evaluation(sequences=96),
        checkpoint=Checkpoint(every=2000),
        telemetry=Telemetry(log_every=50, progress=False),
    )


def gpu(folder: Path) -> Config:
    """GPT-2 124M, 500M tokens of C4."""
    run = gpt2_run(
        "gpt2_124m", width=768, layers=12, heads=12, peak_lr=6e-4, batch_size=512, tokens=500e6, microbatches=8
    )
    return dataclasses.replace(
        run,
        attention=dataclasses.replace(RECOMMENDED, window=64),
        evaluation=dataclasses.replace(run.evaluation, top_k=()),
        data=dataclasses.replace(run.data, store=str(folder / Path(run.data.store).name)),
    )


PRESETS: Mapping[str, Callable[[Path], Config]] = {"small": small, "gpu": gpu}
