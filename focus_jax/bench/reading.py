"""How fast training batches are read from a token store.

    python -m focus_jax.bench.reading [--store FOLDER] [--seconds 5]

Random windows of a run's later batches, with the one reading thread that training uses; nothing else is done with them.
Without a store named, it is a sparse one of 10.7 billion tokens that no page of has been read before.
"""

import argparse
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from focus_jax.data import manifest
from focus_jax.data.batches import train_batches
from focus_jax.data.manifest import LENGTH_DTYPE, Manifest, Origin, Shard
from focus_jax.data.store import TokenStore, open_finished
from focus_jax.data.tokenizer import ByteTokenizer
from focus_jax.errors import exit_code

SHAPES = ((32, 256), (32, 1024), (64, 2048))
"""Sequences of a batch, tokens of a sequence."""
FIRST_STEP = 1000
SHARDS, TOKENS_PER_SHARD, DOCUMENTS_PER_SHARD = 80, 2**27, 10_000


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.bench.reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0, help="that each shape is read for")
    options = parser.parse_args()
    with contextlib.nullcontext(options.store) if options.store else sparse_store() as folder:
        start = time.perf_counter()
        store = open_finished(folder, "--store")
        print(f"{store.train.tokens:,} tokens, opened in {1000 * (time.perf_counter() - start):.0f} ms")
        for batch_size, sequence_length in SHAPES:
            tokens, batches, seconds = _read(store, batch_size, sequence_length, options.seconds)
            print(
                f"B = {batch_size:3}, T = {sequence_length:5}: {tokens / seconds / 1e6:6.1f} M tokens/s, "
                f"{1000 * seconds / batches:.2f} ms a batch"
            )
    return 0


@contextlib.contextmanager
def sparse_store() -> Iterator[Path]:
    """A store of zeros that takes no room on the disk."""
    shard = Shard(
        name="",
        tokens=TOKENS_PER_SHARD,
        documents=DOCUMENTS_PER_SHARD,
        text_bytes=5 * TOKENS_PER_SHARD,
        text_hash="",
        tokens_hash="",
        lengths_hash="",
        empty=(),
    )
    shards = tuple(dataclasses.replace(shard, name=f"train-{number:05d}") for number in range(SHARDS))
    whole = Manifest(
        origin=Origin(corpus={}, tokenizer=ByteTokenizer.record),
        corpus_hash="",
        dtype="<u2",
        train=shards,
        validation=shards[:1],
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in shards:
            for ending, size in (("tokens", 2 * one.tokens), ("lengths", LENGTH_DTYPE.itemsize * one.documents)):
                with (folder / f"{one.name}.{ending}").open("wb") as file:
                    file.truncate(size)
        manifest.write(whole, folder / manifest.FILE)
        yield folder


def _read(store: TokenStore, batch_size: int, sequence_length: int, at_least: float) -> tuple[int, int, float]:
    """Tokens, batches and seconds."""
    batches = train_batches(
        store, sequence_length=sequence_length, batch_size=batch_size, seed=0, first_step=FIRST_STEP
    )
    next(batches)
    start = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - start) < at_least:
        next(batches)
        count += 1
    return count * batch_size * sequence_length, count, passed


if __name__ == "__main__":
    sys.exit(exit_code(main))
