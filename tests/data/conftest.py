"""A small corpus of files that a test can change, and a config that reads it."""

import random

import pytest

from focus_jax.config import Data

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "looked",
    "at",
    "the",
    "moon,",
    "which",
    "was",
    "long",
    "enough.",
]


def write_texts(folder, count=12, words=400, seed=0):
    """Writes files of random sentences, each of another length."""
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = " ".join(draw.choice(WORDS) for _ in range(words + 37 * number))
        (folder / f"book{number:02d}.txt").write_text(text.replace(" on ", " on\n"))
    return folder


@pytest.fixture
def texts(tmp_path):
    return write_texts(tmp_path / "texts")


@pytest.fixture
def data(tmp_path, texts) -> Data:
    return Data(source="text", files=(str(texts / "*.txt"),), validation_fraction=0.2, store=str(tmp_path / "store"))
