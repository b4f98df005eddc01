"""Token stores: built once, the same every time, resumable, and refused where they are not what was asked for."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from focus_jax.bench.reading import sparse_store
from focus_jax.data import encode as encode_module
from focus_jax.data import manifest
from focus_jax.data.build import _sample
from focus_jax.data.corpus import Corpus
from focus_jax.data.documents import Document
from focus_jax.data.encode import encode
from focus_jax.data.files import FilePart
from focus_jax.data.sources import open_corpus
from focus_jax.data.store import open_finished, open_store
from focus_jax.data.tokenizer import ByteTokenizer
from focus_jax.errors import UserError
from tests.data.conftest import write_texts

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr("focus_jax.data.corpus.SMALLEST_PART", 5_000)


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def test_a_store_holds_every_document_in_order_and_its_end(data, texts):
    store = open_store(data, 257)
    texts_in_store = []
    for split in (store.train, store.validation):
        tokens = split.read(0, split.tokens)
        assert tokens.dtype == np.int32
        documents = store.tokenizer().decode(tokens.tolist()).split("<|endoftext|>")[:-1]
        assert len(documents) == split.documents
        assert sum(len(text.encode()) for text in documents) == split.bytes == split.tokens - split.documents
        texts_in_store += documents
        boundaries = np.flatnonzero(tokens == store.eos)
        assert split.document_of(boundaries).tolist() == list(range(split.documents))
        assert split.document_of(boundaries[:-1] + 1).tolist() == list(range(1, split.documents))
    assert sorted(texts_in_store) == sorted(path.read_text() for path in texts.iterdir())


def test_reading_across_shards(data, texts, small_parts):
    (texts / "book04b.txt").write_text(" \n" * 5_000)  # a shard with nothing in it
    split = open_store(data, 257).train
    assert 0 in [shard.tokens for shard in open_store(data, 257).manifest.train]
    whole = split.read(0, split.tokens)
    for start in range(0, split.tokens - 9_000, 997):
        np.testing.assert_array_equal(split.read(start, start + 9_000), whole[start : start + 9_000])
    assert split.read(5, 5).shape == (0,)


@pytest.mark.parametrize(("tokenizer", "vocab_size"), [("bytes", 257), ("trained", 300)])
def test_the_same_config_gives_the_same_bytes_alone_or_in_processes(
    data, small_parts, monkeypatch, tokenizer, vocab_size
):
    data = dataclasses.replace(data, tokenizer=tokenizer)
    open_store(data, vocab_size)
    other = dataclasses.replace(data, store=data.store + "-2")
    monkeypatch.setattr(encode_module, "WORTH_PROCESSES", 0)
    open_store(other, vocab_size)
    assert content(data.store) == content(other.store)
    assert [path.name for path in Path(data.store).parent.iterdir() if "building" in path.name] == []


def test_a_finished_store_is_reused_without_reading_the_text(data, monkeypatch):
    store = open_store(data, 257)

    def no_reading(*_):
        raise AssertionError("the text was read again")

    monkeypatch.setattr(FilePart, "documents", no_reading)
    assert open_store(data, 257).corpus_hash == store.corpus_hash


def test_tokens_take_two_bytes_where_the_vocabulary_allows():
    assert [manifest.token_dtype(size) for size in (257, 65_536, 65_537)] == ["<u2", "<u2", "<u4"]


def test_a_tokenizer_is_trained_on_training_text_alone(data, texts):
    data = dataclasses.replace(data, tokenizer="trained", validation_files=(str(texts / "book03.txt"),))
    before = open_store(data, 300)
    (texts / "book03.txt").write_text("quite other words, xylophone zebra " * 200)
    after = open_store(dataclasses.replace(data, store=data.store + "-2"), 300)
    assert after.tokenizer_hash == before.tokenizer_hash
    assert after.corpus_hash != before.corpus_hash


def test_a_tokenizer_is_trained_on_evenly_spaced_documents_of_a_large_corpus(data, small_parts, monkeypatch):
    parts = open_corpus(data).train
    assert len(parts) > 2
    names = [document.name for part in parts for document in part.documents()]
    assert [document.name for document in _sample(parts)] == names
    monkeypatch.setattr("focus_jax.data.build.TRAINED_ON", sum(part.text_bytes for part in parts) // 3 + 1)
    assert [document.name for document in _sample(parts)] == names[::3]


def test_too_little_text_for_the_vocabulary(data):
    with pytest.raises(UserError, match=r"model\.vocab_size: 40000, and the tokenizer of this text has \d+ tokens"):
        open_store(dataclasses.replace(data, tokenizer="trained"), 40_000)


def test_empty_files_are_skipped_with_a_warning(data, texts, capsys):
    for name in ("empty", "blank", "mark"):
        (texts / f"{name}.txt").write_bytes({"empty": b"", "blank": b" \n", "mark": b"\xef\xbb\xbf"}[name])
    store = open_store(data, 257)
    assert store.train.documents + store.validation.documents == 12
    warning = capsys.readouterr().err
    assert "warning: 3 empty documents skipped" in warning
    assert all(f"{name}.txt" in warning for name in ("empty", "blank", "mark"))


def test_a_split_without_text_is_refused(data, texts):
    (texts / "empty.txt").touch()
    with pytest.raises(UserError, match=r"data\.validation_files: the validation text is empty"):
        open_store(dataclasses.replace(data, validation_files=(str(texts / "empty.txt"),)), 257)


class InterruptedBuildError(Exception):
    pass


def test_an_interrupted_build_goes_on_without_reading_finished_shards_again(data, small_parts, monkeypatch):
    expected = content(open_store(dataclasses.replace(data, store=data.store + "-whole"), 257).folder)
    documents = FilePart.documents
    read = []

    def counted(part, *args):
        if len(read) == 3:
            raise InterruptedBuildError
        read.append(part)
        yield from documents(part, *args)

    monkeypatch.setattr(FilePart, "documents", counted)
    with pytest.raises(InterruptedBuildError):
        open_store(data, 257)
    assert not Path(data.store).exists()
    first = list(read)
    monkeypatch.setattr(FilePart, "documents", lambda part, *args: read.append(part) or documents(part, *args))
    open_store(data, 257)
    assert content(data.store) == expected
    assert not set(first) & set(read[3:])


def test_an_unfinished_build_of_something_else_is_not_mixed_in(data, texts, monkeypatch):
    monkeypatch.setattr(encode_module, "_encode_part", lambda *_: (_ for _ in ()).throw(InterruptedBuildError))
    with pytest.raises(InterruptedBuildError):
        open_store(data, 257)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"store\.building is an unfinished build from another tokenizer \(bytes"):
        open_store(dataclasses.replace(data, tokenizer="trained"), 300)
    (texts / "more.txt").write_text("more")
    with pytest.raises(
        UserError, match=r"store\.building is an unfinished build from another corpus: its files was 12"
    ):
        open_store(data, 257)


@dataclasses.dataclass(frozen=True)
class DeadlyPart:
    """A part that kills the process that reads it, as the kernel does when memory runs out."""

    text_bytes: int = 10

    def __len__(self) -> int:
        return 1

    def documents(self, start=0, step=1):
        os.kill(os.getpid(), signal.SIGKILL)
        yield Document("never", "")


def test_a_killed_worker_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "WORTH_PROCESSES", 0)
    corpus = Corpus(description={}, train=(DeadlyPart(),), validation=(DeadlyPart(),), modified_ns=0)
    with pytest.raises(UserError, match=r"data\.store: a process that was tokenizing was killed"):
        encode(corpus, ByteTokenizer.record, tmp_path)


@dataclasses.dataclass(frozen=True)
class LongPart:
    """A part that takes a second."""

    text_bytes: int = 10

    def __len__(self) -> int:
        return 100

    def documents(self, start=0, step=1):
        for _ in range(100):
            time.sleep(0.01)
            yield Document("long", "a" * encode_module.CALL)


@dataclasses.dataclass(frozen=True)
class BadPart(LongPart):
    """A part with a document that cannot be used."""

    def documents(self, start=0, step=1):
        raise UserError("bad document")


def test_a_failure_stops_the_other_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "WORTH_PROCESSES", 0)
    corpus = Corpus(description={}, train=(LongPart(), BadPart()), validation=(), modified_ns=0)
    with pytest.raises(UserError, match="bad document"):
        encode(corpus, ByteTokenizer.record, tmp_path)
    assert not (tmp_path / "train-00000.json").exists()


def test_bad_text_in_a_worker_process_names_the_file(data, texts, monkeypatch):
    monkeypatch.setattr(encode_module, "WORTH_PROCESSES", 0)
    (texts / "book05.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"book05\.txt: byte 0xe9 at offset 3"):
        open_store(data, 257)


class TestRefused:
    @pytest.fixture
    def store(self, data):
        return open_store(data, 257)

    def test_other_files(self, store, data, texts):
        (texts / "more.txt").write_text("more")
        with pytest.raises(
            UserError, match=r"data\.store: .* made from another corpus: its files was 12 and is now 13"
        ):
            open_store(data, 257)

    def test_another_split(self, store, data):
        with pytest.raises(UserError, match=r"data\.store: .* another corpus: its listing"):
            open_store(dataclasses.replace(data, validation_fraction=0.4), 257)

    def test_other_content_of_the_same_size(self, store, data, texts):
        path = texts / "book05.txt"
        path.write_text(path.read_text()[::-1])
        future = (Path(data.store) / manifest.FILE).stat().st_mtime_ns + 10**9
        os.utime(path, ns=(future, future))
        with pytest.raises(UserError, match=r"data\.store: .* made from other text \(corpus"):
            open_store(data, 257)

    def test_the_same_content_written_again_is_not(self, store, data, texts):
        future = (Path(data.store) / manifest.FILE).stat().st_mtime_ns + 10**9
        os.utime(texts / "book05.txt", ns=(future, future))
        assert open_store(data, 257).corpus_hash == store.corpus_hash

    def test_another_tokenizer(self, store, data):
        with pytest.raises(UserError, match=r"data\.store: .* made from another tokenizer \(bytes"):
            open_store(dataclasses.replace(data, tokenizer="trained"), 300)

    def test_another_vocabulary(self, data):
        trained = dataclasses.replace(data, tokenizer="trained")
        open_store(trained, 300)
        with pytest.raises(UserError, match=r"model\.vocab_size: 310, and the tokens of .* a vocabulary of 300"):
            open_store(trained, 310)

    def test_a_missing_shard(self, store, data):
        (store.folder / "train-00000.tokens").unlink()
        with pytest.raises(UserError, match=r"data\.store: .*train-00000\.tokens is missing"):
            open_store(data, 257)

    def test_a_truncated_shard(self, store, data):
        os.truncate(store.folder / "train-00000.tokens", 100)
        with pytest.raises(
            UserError, match=r"train-00000\.tokens has 100 bytes instead of [\d,]+; copy the file again"
        ):
            open_store(data, 257)

    def test_a_wrong_checksum(self, store, data):
        path = store.folder / "validation-00000.tokens"
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
        with pytest.raises(UserError, match=r"validation-00000\.tokens has SHA-256"):
            open_store(data, 257)

    @pytest.mark.parametrize("damage", ["cut", "version", "other"])
    def test_a_damaged_manifest(self, store, data, damage):
        path = store.folder / manifest.FILE
        text = path.read_text()
        damaged = {"cut": text[:-100], "version": text.replace("version 1", "version 9"), "other": "{}"}[damage]
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"data\.store: .*manifest\.json is damaged or of another version"):
            open_store(data, 257)

    def test_a_folder_that_is_something_else(self, data):
        Path(data.store).mkdir()
        (Path(data.store) / "thesis.tex").touch()
        with pytest.raises(UserError, match=r"data\.store: .* is there but no token store"):
            open_store(data, 257)


def test_a_finished_store_serves_where_its_text_is_not(data, texts, capsys):
    store = open_store(data, 257)
    shutil.rmtree(texts)
    assert open_store(data, 257).corpus_hash == store.corpus_hash
    assert "matches no file; the finished store" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"another corpus: its globs was '.*txt' and is now '.*text'"):
        open_store(dataclasses.replace(data, files=(data.files[0].replace("txt", "text"),)), 257)
    with pytest.raises(UserError, match=r"another corpus: its source was 'text' and is now 'stdlib'"):
        open_store(dataclasses.replace(data, source="stdlib", files=()), 257)


def test_a_store_of_ten_billion_tokens_opens_at_no_cost():
    program = """
import resource, sys
from focus_jax.data.sources import open_corpus
from focus_jax.data.store import open_finished, Path
import numpy as np
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = memory()
train = open_finished(Path(sys.argv[1])).train
draw = np.random.default_rng(0)
for start in draw.integers(0, train.tokens - 1025, 300):
    assert not train.read(start, start + 1025).any()
print(train.tokens, memory() - before)
"""
    with sparse_store() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True, cwd=REPOSITORY
        )
    read, kilobytes = map(int, done.stdout.split())
    assert read > 10**10
    assert kilobytes < 50_000


@pytest.mark.slow
def test_a_build_killed_for_real_goes_on(data, tmp_path):
    write_texts(tmp_path / "texts", count=200, words=60_000)
    config = tmp_path / "config.py"
    fields = {"files": data.files, "store": data.store, "source": "text", "tokenizer": "trained"}
    config.write_text(f"""
from focus_jax.config import *
def get_config():
    return Config(
        run="unused", model=gpt2(vocab_size=300, width=8, layers=1, heads=1), attention=Dense(), models=("dense",),
        data=Data(**{fields!r}), training=Training(steps=1, batch_size=1, sequence_length=8),
        optimizer=Optimizer(peak_lr=1e-3, warmup_steps=0), checkpoint=Checkpoint(every=1))
""")
    command = [sys.executable, "-m", "focus_jax.data.prepare", "--config", str(config)]
    build = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    building = Path(data.store + ".building")
    while not list(building.glob("train-*.json")):
        assert build.poll() is None
    build.kill()
    build.wait()
    finished = {path: path.stat().st_mtime_ns for path in building.glob("*.json") if path.name.startswith("train")}
    tokens = {path.with_suffix(".tokens").name: path.with_suffix(".tokens").stat().st_mtime_ns for path in finished}
    assert not Path(data.store).exists()
    printed = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    assert "documents                                 1" in printed
    assert {name: (Path(data.store) / name).stat().st_mtime_ns for name in tokens} == tokens
    store = open_finished(Path(data.store))
    assert store.train.documents + store.validation.documents == 200
    assert json.loads((store.folder / manifest.FILE).read_text())["origin"]["tokenizer"]["kind"] == "trained"
    verified = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout
    assert "every checksum holds" in verified
