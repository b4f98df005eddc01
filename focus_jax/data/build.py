"""Builds a token store from a corpus: once, in parallel, resumable after a kill, in its place only when whole."""

import contextlib
import fcntl
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from focus_jax import config
from focus_jax.data import manifest
from focus_jax.data.corpus import Corpus, combined_hash
from focus_jax.data.documents import Document, Part
from focus_jax.data.encode import encode
from focus_jax.data.manifest import Manifest, Origin, Shard
from focus_jax.data.tokenizer import ByteTokenizer, GPT2Tokenizer, HuggingFaceTokenizer, Tokenizer
from focus_jax.errors import UserError

# A tokenizer is trained on about this much of the training text, evenly spaced documents of it.
TRAINED_ON = 100 * 2**20
NAMED_EMPTY = 5
FIELD_OF_SPLIT = {
    "stdlib": {"train": "source", "validation": "source"},
    "text": {"train": "files", "validation": "validation_files"},
    "tfds": {"train": "split", "validation": "validation_split"},
}


def build(data: config.Data, vocab_size: int, corpus: Corpus) -> None:
    """Builds the store that does not exist yet, going on with what an earlier build of the same store left.

    Raises UserError where the text or the tokenizer cannot be used, or a build of something else is in the way.
    """
    store = Path(data.store)
    unfinished = store.with_name(store.name + ".building")
    if os.path.lexists(store) and (not store.is_dir() or any(store.iterdir())):
        raise UserError(f"data.store: {store} is there but no token store; name another")
    unfinished.mkdir(parents=True, exist_ok=True)
    with _alone(unfinished):
        if (store / manifest.FILE).exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            return
        origin = _origin(data, vocab_size, corpus, unfinished)
        shards = encode(corpus, origin.tokenizer, unfinished)
        _warn_of_empty([name for shard in itertools.chain(*shards.values()) for name in shard.empty])
        _refuse_empty(shards, data)
        whole = Manifest(
            origin=origin,
            corpus_hash=combined_hash((split, shard.text_hash) for split in shards for shard in shards[split]),
            dtype=manifest.token_dtype(origin.tokenizer.vocab_size),
            train=shards["train"],
            validation=shards["validation"],
        )
        manifest.write(whole, unfinished / manifest.FILE)
        (unfinished / "lock").unlink()
        unfinished.replace(store)
        for left_over in ("origin.json", *(f"{shard.name}.json" for shard in (*whole.train, *whole.validation))):
            (store / left_over).unlink()


def difference(origin: Origin, data: config.Data, description: dict[str, str | int]) -> str | None:
    """What differs between what a store was made from and what the config asks for now, in words; None if nothing.

    Only the entries that the description has are compared.
    """
    for key, now in description.items():
        if origin.corpus.get(key) != now:
            return f"another corpus: its {key.replace('_', ' ')} was {origin.corpus.get(key)!r} and is now {now!r}"
    if data.tokenizer in ("bytes", "gpt2", "trained"):
        same = origin.tokenizer.kind == data.tokenizer
    else:
        same = origin.tokenizer.hash == HuggingFaceTokenizer.open(data.tokenizer, data.eos_token).record.hash
    return None if same else f"another tokenizer ({origin.tokenizer.kind} {origin.tokenizer.hash[:12]})"


@contextlib.contextmanager
def _alone(unfinished: Path) -> Iterator[None]:
    """Waits for any other process that builds the same store."""
    with (unfinished / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that is building {unfinished.with_suffix('')}", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _origin(data: config.Data, vocab_size: int, corpus: Corpus, unfinished: Path) -> Origin:
    """The origin, with its tokenizer saved in the folder: made now, or found as an interrupted build left it."""
    record = unfinished / "origin.json"
    if record.exists():
        origin = manifest.read(Origin, record)
        if what := difference(origin, data, corpus.description):
            raise UserError(
                f"data.store: {unfinished} is an unfinished build from {what}; delete it or finish it first"
            )
    else:
        tokenizer = _make_tokenizer(data, vocab_size, corpus)
        tokenizer.save(unfinished)
        origin = Origin(corpus=corpus.description | corpus.named, tokenizer=tokenizer.record)
    if origin.tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"model.vocab_size: {vocab_size}, and the tokenizer of this text has {origin.tokenizer.vocab_size} tokens"
        )
    manifest.write(origin, record)
    return origin


def _make_tokenizer(data: config.Data, vocab_size: int, corpus: Corpus) -> Tokenizer:
    match data.tokenizer:
        case "bytes":
            return ByteTokenizer()
        case "gpt2":
            return GPT2Tokenizer.download()
        case "trained":
            print("training a tokenizer on the training text", file=sys.stderr)
            return HuggingFaceTokenizer.train((document.text for document in _sample(corpus.train)), vocab_size)
        case path:
            return HuggingFaceTokenizer.open(path, data.eos_token)


def _sample(parts: tuple[Part, ...]) -> Iterator[Document]:
    """Every n-th document, so that they come to about TRAINED_ON bytes."""
    step = -(-sum(part.text_bytes for part in parts) // TRAINED_ON) or 1
    passed = 0
    for part in parts:
        yield from part.documents(start=-passed % step, step=step)
        passed += len(part)


def _warn_of_empty(names: list[str]) -> None:
    if names:
        some = ", ".join(names[:NAMED_EMPTY]) + (", …" if len(names) > NAMED_EMPTY else "")
        print(f"warning: {len(names)} empty documents skipped: {some}", file=sys.stderr)


def _refuse_empty(shards: dict[str, tuple[Shard, ...]], data: config.Data) -> None:
    for split, parts in shards.items():
        if not sum(shard.documents for shard in parts):
            raise UserError(f"data.{FIELD_OF_SPLIT[data.source][split]}: the {split} text is empty")
