"""Builds the token store of a config, or verifies the one that is there, and prints its statistics.

python -m focus_jax.data.prepare --config configs/NAME.py [--data.tokenizer gpt2 …]

Run again after a kill, it goes on where it was. Exit codes: 0 done · 2 bad input, or a damaged store.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from focus_jax.config_loading import load
from focus_jax.data import manifest
from focus_jax.data.store import Split, TokenStore, open_store
from focus_jax.errors import exit_code

PERCENTILES = (1, 10, 50, 90, 99, 100)
# Lengths are counted in bins that grow by 1 %, so that billions of documents need no memory.
BINS = np.unique(np.concatenate([[0], np.round(1.01 ** np.arange(2300))])).astype(np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.data.prepare",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True)
    arguments, overrides = parser.parse_known_args()
    run = load(arguments.config, overrides)
    finished_before = (Path(run.data.store) / manifest.FILE).exists()
    store = open_store(run.data, run.model.vocab_size)
    if finished_before:
        manifest.check_hashes(store.manifest, store.folder, progress=True)
        print("every checksum holds")
    print(statistics(store))
    return 0


def statistics(store: TokenStore) -> str:
    """What is in a store, as a table. Percentiles are exact to 1 %."""
    tokenizer = store.manifest.origin.tokenizer
    splits = (store.train, store.validation)
    percentiles = [length_percentiles(split) for split in splits]
    rows = [
        ("", "train", "validation"),
        ("documents", *(f"{split.documents:,}" for split in splits)),
        ("tokens", *(f"{split.tokens:,}" for split in splits)),
        ("bytes of text", *(f"{split.bytes:,}" for split in splits)),
        ("bytes per token", *(f"{split.bytes / split.tokens:.3f}" for split in splits)),
        *(
            (f"tokens of a document, p{percent}", *(f"{lengths[i]:,}" for lengths in percentiles))
            for i, percent in enumerate(PERCENTILES)
        ),
    ]
    return "\n".join(
        [
            f"store      {store.folder} ({len(store.manifest.train) + len(store.manifest.validation)} shards)",
            f"corpus     {store.corpus_hash}",
            f"tokenizer  {tokenizer.kind} {tokenizer.hash}, {tokenizer.vocab_size:,} tokens",
            f"policy     every document ends with {tokenizer.eos_token} ({tokenizer.eos}), none begins with a token",
            *(f"{name:27}{train:>18}{validation:>18}" for name, train, validation in rows),
        ]
    )


def length_percentiles(split: Split) -> list[int]:
    """Tokens of the documents at PERCENTILES, from one shard's lengths at a time."""
    counts = np.zeros(len(BINS), np.int64)
    longest = 0
    for shard in range(split.shards):
        lengths = split.lengths(shard)
        counts += np.bincount(np.searchsorted(BINS, lengths), minlength=len(BINS))
        longest = max(longest, int(lengths.max(initial=0)))
    places = np.searchsorted(np.cumsum(counts), np.array(PERCENTILES) / 100 * split.documents)
    return [min(int(BINS[place]), longest) for place in places]


if __name__ == "__main__":
    sys.exit(exit_code(main))
