"""Run folders as training leaves them, without training: made from a seed, with figures of a plausible size."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from focus_jax.config import (
    Checkpoint,
    Config,
    Data,
    Evaluation,
    Focus,
    Optimizer,
    Telemetry,
    Training,
    llama,
)
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.metrics import MetricsFile, Row


def synthetic_config(run_folder: Path, **changes) -> Config:
    config = Config(
        run=str(run_folder),
        model=llama(vocab_size=4096, width=192, layers=4, heads=6, kv_heads=2, mlp_width=512),
        attention=Focus(groups=8, top_k=2, window=64, dense_layers=(0,)),
        data=Data(tokenizer="trained", store="stores/synthetic"),
        training=Training(steps=600, batch_size=16, sequence_length=512),
        optimizer=Optimizer(peak_lr=1e-3, warmup_steps=50),
        evaluation=Evaluation(sequences=64, top_k=(1, 2)),
        checkpoint=Checkpoint(every=100),
        telemetry=Telemetry(log_every=10),
    )
    return dataclasses.replace(config, **changes)


def write_run(config: Config, steps_done: int | None = None, events: bool = False) -> Path:
    """Writes config.json and metrics.jsonl up to a step, the last one by default."""
    folder = Path(config.run)
    RunFolder(folder).write_config(config)
    metrics = MetricsFile(RunFolder(folder).metrics)
    for row in rows_of_run(config, events):
        if row["step"] <= (steps_done or config.training.steps):
            metrics.write(row)
    metrics.close()
    return folder


def rows_of_run(config: Config, events: bool = False) -> Iterator[Row]:
    random = np.random.default_rng(config.seed)
    seed_effect = 0.01 * random.standard_normal()
    for step in range(1, config.training.steps + 1):
        progress = step / config.training.steps
        if step == 1 or step % config.telemetry.log_every == 0:
            yield from _train_rows(config, step, progress, random)
        if step % config.checkpoint.every == 0 or step == config.training.steps:
            yield from _checkpoint_rows(config, step, progress, seed_effect, random)
        if events and step == config.training.steps // 2:
            yield from _events(config, step)


def _row(config: Config, kind: str, step: int, **fields) -> Row:
    tokens = step * config.training.batch_size * config.training.sequence_length
    return {"kind": kind, "step": step, "tokens": tokens, **fields}


def _loss(model: str, progress: float) -> float:
    return 2.6 + 5.7 * math.exp(-9 * progress) + (0.02 - 0.06 * progress if model == "focus" else 0)


def _train_rows(config: Config, step: int, progress: float, random) -> Iterator[Row]:
    noise = 0.08 * random.standard_normal()
    for model in config.models:
        speed = 9_200.0 if model == "focus" else 11_900.0
        yield _row(
            config,
            "train",
            step,
            model=model,
            loss=_loss(model, progress) + noise,
            **({"router_loss": 12 + 4 * math.exp(-9 * progress)} if model == "focus" else {}),
            grad_norm=0.4 + 2 * math.exp(-20 * progress),
            lr=1e-3 * min(1.0, step / 50),
            seconds=step * config.training.batch_size * config.training.sequence_length / speed,
            tokens_per_second=speed * (1 + 0.02 * random.standard_normal()),
            data_seconds=0.0002,
            mfu=speed * 1e-6,
        )


def _checkpoint_rows(config: Config, step: int, progress: float, seed_effect: float, random) -> Iterator[Row]:
    dense_loss = _loss("dense", progress) + 0.05
    if "dense" in config.models:
        yield _eval_row(
            config, step, dense_loss, model="dense", routing="none", top_k=None, gate=None, kept_fraction=1.0
        )
    if "focus" not in config.models:
        return
    for routing, top_k, gate, kept, extra in _readings(config):
        loss = _loss("focus", progress) + 0.05 + extra + seed_effect
        reading = {"routing": routing, "top_k": top_k, "gate": gate, "causal": _causal(config)}
        yield _eval_row(config, step, loss, model="focus", kept_fraction=kept, **reading)
        if "dense" in config.models:
            delta = loss - dense_loss
            yield _row(
                config,
                "compare",
                step,
                **reading,
                delta_nats=delta,
                delta_ci95=[delta - 0.012, delta + 0.012],
                delta_within_window=0.4 * delta,
                delta_beyond_window=1.1 * delta,
            )
    yield from _groups_rows(config, step, progress, random)


def _causal(config: Config) -> bool:
    return config.attention.balance != "sinkhorn"


def _readings(config: Config):
    yield "soft", None, config.attention.gate, 1.0, 0.0
    for top_k in config.evaluation.top_k:
        kept = 0.25 + 0.75 * top_k / config.attention.groups
        yield "hard", top_k, None, kept, 0.22 / (top_k + 1)
        yield "hard", top_k, config.attention.gate, kept, 0.08 / (top_k + 1)


def _eval_row(config: Config, step: int, loss: float, causal: bool = True, **fields) -> Row:
    length = config.training.sequence_length
    bins = [2**power for power in range(length.bit_length() - 1)]
    return _row(
        config,
        "eval",
        step,
        **fields,
        causal=causal,
        loss=loss,
        ppl=math.exp(loss),
        bits_per_byte=loss / math.log(2) / 3.1,
        stderr=0.021,
        loss_within_window=loss + 0.3,
        loss_beyond_window=loss - 0.05,
        loss_by_position=[[0, loss + 3.0], *([first, loss + 1.5 / math.sqrt(first)] for first in bins)],
        sequences=config.evaluation.sequences,
        valid_tokens=config.evaluation.sequences * (length - 1),
    )


def _groups_rows(config: Config, step: int, progress: float, random) -> Iterator[Row]:
    groups = config.attention.groups
    for layer in range(config.model.layers):
        if layer in config.attention.dense_layers:
            continue
        load = random.dirichlet(np.full(groups, 12.0))
        yield _row(
            config,
            "groups",
            step,
            layer=layer,
            load=load.tolist(),
            dominance=float(min(1, load.max() * 1.3)),
            entropy=math.log(groups) * (1 - 0.6 * progress),
            confidence=1 / groups + 0.5 * progress,
            switch_rate=None if step == config.checkpoint.every else 0.3 * (1 - progress) + 0.02,
        )


def _events(config: Config, step: int) -> Iterator[Row]:
    yield _row(config, "event", step, name="resumed", message="continued from the checkpoint of this step")
    yield _row(
        config, "event", step, name="starved_group", message="layer 2: group 5 holds 0.4 % of the tokens", layer=2
    )
