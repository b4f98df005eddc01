"""The token store: tokens of a corpus on disk, opened without reading them."""

import mmap
import sys
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from focus_jax import config
from focus_jax.data import manifest
from focus_jax.data.build import build, difference
from focus_jax.data.corpus import Corpus, MissingCorpusError, combined_hash, part_hash
from focus_jax.data.manifest import LENGTH_DTYPE, Manifest, Shard
from focus_jax.data.sources import check, open_corpus
from focus_jax.data.tokenizer import Tokenizer, load
from focus_jax.errors import UserError

# Stores up to this size have every checksum verified when they are opened (a fraction of a second);
# larger ones by `python -m focus_jax.data.prepare`.
VERIFIED_WHEN_OPENED = 128 * 2**20
OPEN_SHARDS = 256


class Split:
    """The tokens of a split as one long sequence, documents joined by the end-of-document token."""

    def __init__(self, folder: Path, dtype: str, shards: Sequence[Shard]) -> None:
        self._paths = [folder / shard.name for shard in shards]
        self._dtype = np.dtype(dtype)
        self._ends = np.cumsum([shard.tokens for shard in shards], dtype=np.int64)
        self._map = lru_cache(maxsize=OPEN_SHARDS)(self._map_shard)
        self.tokens = sum(shard.tokens for shard in shards)
        """Tokens, with one end-of-document token per document."""
        self.documents = sum(shard.documents for shard in shards)
        self.bytes = sum(shard.text_bytes for shard in shards)
        """UTF-8 bytes of the text."""
        self.tokens_per_byte = self.tokens / self.bytes

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start … stop − 1 as int32; touches no other page of the files."""
        tokens = np.empty(stop - start, np.int32)
        filled = 0
        while filled < len(tokens):
            shard = int(np.searchsorted(self._ends, start + filled, side="right"))
            in_shard = self._map(shard)
            offset = start + filled - int(self._ends[shard]) + len(in_shard)
            some = in_shard[offset : offset + len(tokens) - filled]
            tokens[filled : filled + len(some)] = some
            filled += len(some)
        return tokens

    def document_of(self, positions: np.ndarray) -> np.ndarray:
        """The number of the document (int32, from 0) that the token at each position belongs to."""
        return np.searchsorted(self._document_ends, positions, side="right").astype(np.int32)

    def lengths(self, shard: int) -> np.ndarray:
        """Tokens of each document of a shard, its end included."""
        return np.fromfile(self._paths[shard].with_name(self._paths[shard].name + ".lengths"), LENGTH_DTYPE)

    @property
    def shards(self) -> int:
        return len(self._paths)

    @cached_property
    def _document_ends(self) -> np.ndarray:
        return np.cumsum(np.concatenate([self.lengths(shard) for shard in range(self.shards)]), dtype=np.int64)

    def _map_shard(self, shard: int) -> np.ndarray:
        with self._paths[shard].with_name(self._paths[shard].name + ".tokens").open("rb") as file:
            tokens = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tokens.madvise(mmap.MADV_RANDOM)  # windows are far apart: reading ahead would read in vain
        return np.frombuffer(tokens, self._dtype)


class TokenStore:
    """A finished store. `open_store` is how to get one."""

    def __init__(self, folder: Path, manifest: Manifest, mixture: tuple[tuple["TokenStore", float], ...] = ()) -> None:
        self.folder = folder
        self.manifest = manifest
        self.train = Split(folder, manifest.dtype, manifest.train)
        self.validation = Split(folder, manifest.dtype, manifest.validation)
        self.corpus_hash = manifest.corpus_hash
        """SHA-256 of the text, documents and split."""
        self.tokenizer_hash = manifest.origin.tokenizer.hash
        self.vocab_size = manifest.origin.tokenizer.vocab_size
        self.eos = manifest.origin.tokenizer.eos
        self.mixture = mixture
        """Every store that training draws from, this one included, with its weight; empty if this is the only one."""

    @property
    def identity(self) -> dict[str, str]:
        """Equal for stores of the same tokens."""
        return {"corpus": self.corpus_hash, "tokenizer": self.tokenizer_hash}

    def tokenizer(self) -> Tokenizer:
        return load(self.manifest.origin.tokenizer, self.folder)

    def summary(self) -> str:
        """One line: how much text, and the hashes that identify it."""
        tokenizer = self.manifest.origin.tokenizer
        return (
            f"{self.folder}: {self.train.tokens:,} training and {self.validation.tokens:,} validation tokens, "
            f"{self.train.tokens_per_byte:.3f} per byte; corpus {self.corpus_hash[:16]}, "
            f"tokenizer {tokenizer.kind} {tokenizer.hash[:16]} ({tokenizer.vocab_size:,})"
        )


def open_store(data: config.Data, vocab_size: int) -> TokenStore:
    """Opens the token store of a config, building it first if it does not exist.

    Raises UserError for bad text, a damaged store, or one made from another corpus, split, tokenizer or vocabulary.
    """
    check(data, vocab_size)
    folder = Path(data.store)
    corpus, description = _find_corpus(data)
    if corpus is not None and not (folder / manifest.FILE).exists():
        build(data, vocab_size, corpus)
    store = open_finished(folder)
    if what := difference(store.manifest.origin, data, description) or _changed(store, corpus):
        raise UserError(
            f"data.store: {folder} was made from {what}; delete the folder to build it anew, or name another"
        )
    if store.vocab_size != vocab_size:
        raise UserError(
            f"model.vocab_size: {vocab_size}, and the tokens of {folder} have a vocabulary of {store.vocab_size}"
        )
    return _mixed(store, data)


def open_finished(folder: Path, field: str = "data.store") -> TokenStore:
    """Opens a store by its folder alone. Raises UserError where it is none (naming the field), or is damaged."""
    if not (folder / manifest.FILE).exists():
        raise UserError(f"{field}: {folder} is no finished token store; make it by python -m focus_jax.data.prepare")
    whole = manifest.read(Manifest, folder / manifest.FILE)
    manifest.check_sizes(whole, folder)
    if sum(size for _, size, _ in whole.files()) <= VERIFIED_WHEN_OPENED:
        manifest.check_hashes(whole, folder)
    return TokenStore(folder, whole)


def _find_corpus(data: config.Data) -> tuple[Corpus | None, dict[str, str | int]]:
    """The corpus and its description. A finished store does not need the text, so that it can be copied elsewhere."""
    try:
        corpus = open_corpus(data)
    except MissingCorpusError as error:
        if not (Path(data.store) / manifest.FILE).exists():
            raise
        print(f"note: {error}; the finished store {data.store} is used without comparing it", file=sys.stderr)
        return None, error.description
    return corpus, corpus.description


def _changed(store: TokenStore, corpus: Corpus | None) -> str | None:
    """Reads the text again if any of it is newer than the store: the same names and sizes can hide other content."""
    if corpus is None or corpus.modified_ns <= (store.folder / manifest.FILE).stat().st_mtime_ns:
        return None
    now = combined_hash((split, part_hash(part)) for split, parts in corpus.splits().items() for part in parts)
    return None if now == store.corpus_hash else f"other text (corpus {store.corpus_hash[:12]}, now {now[:12]})"


def _mixed(store: TokenStore, data: config.Data) -> TokenStore:
    if not data.mixture:
        return store
    others = [(open_finished(Path(folder), "data.mixture"), weight) for folder, weight in data.mixture]
    for other, _ in others:
        if other.tokenizer_hash != store.tokenizer_hash:
            raise UserError(f"data.mixture: {other.folder} was made by another tokenizer than {store.folder}")
    return TokenStore(store.folder, store.manifest, ((store, data.weight), *others))
