"""What a token store says about itself: manifest.json, and the files that it lists.

A store is a folder: manifest.json; the tokenizer's own file; and per shard NAME.tokens (little-endian token numbers,
documents joined by the end-of-document token) and NAME.lengths (tokens of each document with that token, uint32).
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError
from tqdm import tqdm

from focus_jax.data.tokenizer import TokenizerRecord
from focus_jax.errors import UserError

FILE = "manifest.json"
LENGTH_DTYPE = np.dtype("<u4")


class _Strict:
    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Origin(_Strict):
    """What a store is made from: equal origins give equal stores."""

    format: Literal["focus-jax token store, version 1"] = "focus-jax token store, version 1"
    corpus: dict[str, str | int]
    """The source and what it listed (corpus.Corpus.description)."""
    tokenizer: TokenizerRecord
    policy: Literal["every document ends with eos, none begins with bos"] = (
        "every document ends with eos, none begins with bos"
    )


@dataclass(frozen=True, kw_only=True)
class Shard(_Strict):
    """One part of a split as tokens."""

    name: str
    tokens: int
    documents: int
    text_bytes: int
    """UTF-8 bytes of the text."""
    text_hash: str
    tokens_hash: str
    """SHA-256 of NAME.tokens."""
    lengths_hash: str
    """SHA-256 of NAME.lengths."""
    empty: tuple[str, ...]
    """Documents skipped because there is nothing in them."""


@dataclass(frozen=True, kw_only=True)
class Manifest(_Strict):
    """The whole of manifest.json."""

    origin: Origin
    corpus_hash: str
    dtype: Literal["<u2", "<u4"]
    train: tuple[Shard, ...]
    validation: tuple[Shard, ...]

    def files(self) -> list[tuple[str, int, str]]:
        """Name, bytes and SHA-256 of every file of every shard."""
        size = np.dtype(self.dtype).itemsize
        return [
            entry
            for shard in (*self.train, *self.validation)
            for entry in (
                (f"{shard.name}.tokens", size * shard.tokens, shard.tokens_hash),
                (f"{shard.name}.lengths", LENGTH_DTYPE.itemsize * shard.documents, shard.lengths_hash),
            )
        ]


def token_dtype(vocab_size: int) -> Literal["<u2", "<u4"]:
    """The smallest type that holds every token."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def write(record: object, path: Path) -> None:
    """Writes a record as JSON; the file is there whole or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    with unfinished.open("w") as file:
        json.dump(dataclasses.asdict(record), file, indent=1)  # type: ignore[call-overload]
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def read[Record](kind: type[Record], path: Path) -> Record:
    """Reads a record; UserError where the file is something else."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"data.store: {path} is damaged or of another version ({where}: {first['msg']})") from None


def check_sizes(manifest: Manifest, folder: Path) -> None:
    """Refuses missing and truncated shards; touches no content."""
    for name, size, _ in manifest.files():
        try:
            actual = (folder / name).stat().st_size
        except FileNotFoundError:
            raise UserError(f"data.store: {folder / name} is missing; {_remedy(folder)}") from None
        if actual != size:
            raise UserError(f"data.store: {folder / name} has {actual:,} bytes instead of {size:,}; {_remedy(folder)}")


def check_hashes(manifest: Manifest, folder: Path, *, progress: bool = False) -> None:
    """Refuses shards whose content changed; reads all of it."""
    for name, _, expected in tqdm(manifest.files(), desc="verifying", disable=not progress):
        with (folder / name).open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise UserError(
                f"data.store: {folder / name} has SHA-256 {actual[:12]}… instead of {expected[:12]}…; {_remedy(folder)}"
            )


def _remedy(folder: Path) -> str:
    return f"copy the file again, or delete {folder} and build it anew"
