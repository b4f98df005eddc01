"""Turns the parts of a corpus into shards of tokens, one after the other or in one process per core."""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from tqdm import tqdm

from focus_jax.data import manifest
from focus_jax.data.corpus import Corpus, TextHash, is_empty
from focus_jax.data.documents import Part
from focus_jax.data.manifest import LENGTH_DTYPE, Shard
from focus_jax.data.tokenizer import Tokenizer, TokenizerRecord, load
from focus_jax.errors import UserError

# Starting processes costs more than they save below this much text.
WORTH_PROCESSES = 64 * 2**20
# Characters per call of a tokenizer library: enough for its threads, little enough for its objects (150 bytes each).
CALL = 2**19

Progress = Callable[[int], None]


def encode(corpus: Corpus, tokenizer: TokenizerRecord, folder: Path) -> dict[str, tuple[Shard, ...]]:
    """Encodes every part that has no shard yet."""
    splits = corpus.splits()
    names = {split: [f"{split}-{number:05d}" for number in range(len(parts))] for split, parts in splits.items()}
    jobs = [(name, part) for split, parts in splits.items() for name, part in zip(names[split], parts, strict=True)]
    missing = [(name, part) for name, part in jobs if not (folder / f"{name}.json").exists()]
    work = sum(part.text_bytes for _, part in missing)
    with tqdm(
        desc="tokenizing", total=sum(part.text_bytes for _, part in jobs), unit="B", unit_scale=True, unit_divisor=1024
    ) as bar:
        bar.initial = bar.total - work
        bar.update(bar.initial)
        if work < WORTH_PROCESSES:
            encoder = load(tokenizer, folder)
            for name, part in missing:
                _encode_part(name, part, encoder, folder, bar.update)
        else:
            _encode_in_processes(missing, tokenizer, folder, bar)
        bar.update(bar.total - bar.n)  # what cleaning the text took away
    return {split: tuple(manifest.read(Shard, folder / f"{name}.json") for name in names[split]) for split in names}


_worker_state: dict[str, Any] = {}


def _encode_in_processes(jobs: list[tuple[str, Part]], tokenizer: TokenizerRecord, folder: Path, bar: tqdm) -> None:
    context = multiprocessing.get_context("spawn")  # forking a process with JAX's threads in it can hang
    done, stop = context.Value("q", 0), context.Event()
    start = (tokenizer, folder, done, stop)
    with ProcessPoolExecutor(min(len(jobs), _cores()), context, _start_worker, start) as pool:
        pending = {pool.submit(_encode_in_worker, name, part) for name, part in jobs}
        try:
            while pending:
                finished, pending = wait(pending, timeout=0.5, return_when="FIRST_COMPLETED")
                bar.update(done.value + bar.initial - bar.n)
                for future in finished:
                    future.result()
        except BrokenProcessPool:
            raise UserError(
                "data.store: a process that was tokenizing was killed, perhaps for its memory; run the same command "
                "again (finished shards are kept), with a smaller data.max_document_bytes if it repeats"
            ) from None
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker(tokenizer: TokenizerRecord, folder: Path, done: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process per core already
    _worker_state.update(tokenizer=load(tokenizer, folder), folder=folder, done=done, stop=stop)


def _encode_in_worker(name: str, part: Part) -> None:
    done, stop = _worker_state["done"], _worker_state["stop"]

    def progress(count: int) -> None:
        if stop.is_set():
            raise CancelledError
        with done.get_lock():
            done.value += count

    _encode_part(name, part, _worker_state["tokenizer"], _worker_state["folder"], progress)


def _encode_part(name: str, part: Part, tokenizer: Tokenizer, folder: Path, progress: Progress) -> None:
    """Writes one shard. NAME.json comes last: its presence says that the shard is finished."""
    with _ShardWriter(folder, name, tokenizer.record) as shard:
        for pieces in _calls(_pieces(part, tokenizer, shard)):
            for piece, tokens in zip(pieces, tokenizer.encode_many([piece.text for piece in pieces]), strict=True):
                shard.append(tokens)
                if piece.ends_document:
                    shard.end_document()
            progress(sum(piece.bytes for piece in pieces))
    manifest.write(shard.record(), folder / f"{name}.json")


class _Piece(NamedTuple):
    text: str
    bytes: int
    ends_document: bool


def _pieces(part: Part, tokenizer: Tokenizer, shard: "_ShardWriter") -> Iterator[_Piece]:
    for document in part.documents():
        if is_empty(document):
            shard.skip(document.name)
            continue
        text = document.text.encode()
        shard.begin_document(text)
        *before, last = tokenizer.cut(document.text)
        for piece in before:
            yield _Piece(piece, 0, ends_document=False)
        yield _Piece(last, len(text), ends_document=True)


def _calls(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Groups pieces until they are worth a call of the tokenizer library."""
    group: list[_Piece] = []
    length = 0
    for piece in pieces:
        group.append(piece)
        length += len(piece.text)
        if length >= CALL:
            yield group
            group, length = [], 0
    if group:
        yield group


class _ShardWriter:
    """Writes NAME.tokens as they come, then NAME.lengths, and keeps count."""

    def __init__(self, folder: Path, name: str, tokenizer: TokenizerRecord) -> None:
        self._stem = folder / name
        self._dtype = np.dtype(manifest.token_dtype(tokenizer.vocab_size))
        self._end = np.array([tokenizer.eos])
        self._lengths: list[int] = []
        self._length = 0
        self._empty: list[str] = []
        self._text_bytes = 0
        self._text_hash, self._tokens_hash, self._lengths_hash = TextHash(), hashlib.sha256(), hashlib.sha256()

    def __enter__(self) -> "_ShardWriter":
        self._file = self._stem.with_suffix(".tokens").open("wb")
        return self

    def __exit__(self, *failure: object) -> None:
        with self._file:
            _to_disk(self._file)
        with self._stem.with_suffix(".lengths").open("wb") as file:
            lengths = np.array(self._lengths, LENGTH_DTYPE).tobytes()
            self._lengths_hash.update(lengths)
            file.write(lengths)
            _to_disk(file)

    def skip(self, name: str) -> None:
        self._empty.append(name)

    def begin_document(self, text_utf8: bytes) -> None:
        self._text_hash.update(text_utf8)
        self._text_bytes += len(text_utf8)

    def append(self, tokens: np.ndarray) -> None:
        content = tokens.astype(self._dtype).tobytes()
        self._tokens_hash.update(content)
        self._file.write(content)
        self._length += len(tokens)

    def end_document(self) -> None:
        self.append(self._end)
        self._lengths.append(self._length)
        self._length = 0

    def record(self) -> Shard:
        return Shard(
            name=self._stem.name,
            tokens=sum(self._lengths),
            documents=len(self._lengths),
            text_bytes=self._text_bytes,
            text_hash=self._text_hash.hexdigest(),
            tokens_hash=self._tokens_hash.hexdigest(),
            lengths_hash=self._lengths_hash.hexdigest(),
            empty=tuple(self._empty),
        )


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
