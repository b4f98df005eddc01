"""A tiny run that every test can change: two layers, a window that is much shorter than the sequence.

Its attention is computed by the definition, which compiles several times as quickly; what is computed in blocks equals
it (tests/ops, and in the model tests/model/test_decoder.py)."""

import dataclasses
import os
import random
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from focus_jax.config import Checkpoint, Config, Data, Evaluation, Focus, Optimizer, Telemetry, Training, llama


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many tests and the commands that they start run the same tiny programs; compiling is most of what that costs."""
    base = tmp_path_factory.getbasetemp()
    # Workers of pytest-xdist have folders of their own inside that of the whole run.
    compiled = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    compiled.mkdir(exist_ok=True)
    settings = {
        "jax_compilation_cache_dir": str(compiled),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Every loaded program holds memory maps, and a process may have 65,530 of them."""
    yield
    jax.clear_caches()


@pytest.fixture
def run(tmp_path) -> Config:
    return Config(
        run=str(tmp_path / "run"),
        model=dataclasses.replace(
            llama(vocab_size=257, width=32, layers=2, heads=4, kv_heads=2, mlp_width=48),
            init_std=0.2,
            attention_implementation="reference",
        ),
        attention=Focus(groups=4, top_k=2, window=5, routing_width=8, training="soft", balance_rate=0.5),
        data=Data(
            source="text",
            files=(str(tmp_path / "text" / "*.txt"),),
            validation_fraction=0.2,
            store=str(tmp_path / "store"),
        ),
        training=Training(steps=12, batch_size=4, sequence_length=48),
        optimizer=Optimizer(peak_lr=1e-2, warmup_steps=2, router_lr_multiplier=1.0),
        evaluation=Evaluation(sequences=6, batch_size=4, top_k=(1, 2)),
        checkpoint=Checkpoint(every=4),
        telemetry=Telemetry(log_every=2, progress=False),
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The folder of the run's text: thirty documents of words that are predictable enough to learn something."""
    folder = tmp_path / "text"
    folder.mkdir()
    rng = random.Random(0)
    for number in range(30):
        words = (rng.choice(["in", "the", "beginning", "was", "a", "word", "and", "then"]) for _ in range(120))
        (folder / f"{number:02}.txt").write_text(" ".join(words))
    return folder
