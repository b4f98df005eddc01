"""Which files a corpus takes, which it holds out, and what it does to their bytes."""

import dataclasses
import sysconfig
from pathlib import Path

import pytest

from focus_jax.data.documents import clean
from focus_jax.data.sources import check, open_corpus
from focus_jax.errors import UserError

BOM = b"\xef\xbb\xbf"


def names(parts):
    return [name for part in parts for name in part.names]


@pytest.mark.parametrize("raw", [b"a\nb\n", b"a\r\nb\r\n", BOM + b"a\nb\n", BOM + b"a\r\nb\r\n"])
def test_byte_order_mark_and_crlf_do_not_become_text(raw):
    assert clean(raw, "x") == "a\nb\n"


@pytest.mark.parametrize(("raw", "offset"), [(b"good \xff bad", 5), (BOM + b"good \xff bad", 8), (b"cut \xe2\x82", 4)])
def test_undecodable_bytes_are_named_by_file_and_offset(raw, offset):
    with pytest.raises(UserError, match=rf"book\.txt: byte 0x{raw[offset]:02x} at offset {offset} "):
        clean(raw, "book.txt")


def test_held_out_files_depend_on_names_alone_and_stay_when_the_folder_moves(data, texts, tmp_path):
    before = open_corpus(data)
    moved = texts.rename(tmp_path / "elsewhere")
    after = open_corpus(dataclasses.replace(data, files=tuple(f"{moved}/book{n:02d}.txt" for n in reversed(range(12)))))
    assert after.description == before.description
    assert names(after.validation) == names(before.validation)
    sizes = {path.name: path.stat().st_size for path in moved.iterdir()}
    share = sum(sizes[name] for name in names(before.validation)) / sum(sizes.values())
    assert 0.1 < share <= 0.2
    assert sorted(names(before.train) + names(before.validation)) == sorted(sizes)


def test_a_small_corpus_still_holds_out_its_smallest_file(data, texts):
    (texts / "book00.txt").write_text("")
    files = tuple(str(texts / f"book{n:02d}.txt") for n in (0, 11, 3))
    corpus = open_corpus(dataclasses.replace(data, files=files, validation_fraction=0.01))
    assert (names(corpus.train), names(corpus.validation)) == (["book00.txt", "book11.txt"], ["book03.txt"])


def test_named_held_out_files_leave_the_training_globs(data, texts):
    corpus = open_corpus(dataclasses.replace(data, validation_files=(str(texts / "book0[12].txt"),)))
    assert names(corpus.validation) == ["book01.txt", "book02.txt"]
    assert len(names(corpus.train)) == 10


def test_stdlib_is_the_library_without_its_tests(data):
    corpus = open_corpus(dataclasses.replace(data, source="stdlib", files=()))
    files = set(names(corpus.train)) | set(names(corpus.validation))
    assert {"typing.py", "asyncio/events.py", "idlelib/help.py"} <= files
    assert not any(
        {"test", "tests", "idle_test", "site-packages", "__pycache__"} & set(Path(name).parts) for name in files
    )
    root = Path(sysconfig.get_path("stdlib"))
    size = sum((root / name).stat().st_size for name in files)
    held_out = sum((root / name).stat().st_size for name in names(corpus.validation))
    assert 5e6 < size < 30e6
    assert 0.15 < held_out / size <= 0.2


def test_large_corpora_are_cut_into_parts_that_keep_every_file_in_order(data, monkeypatch):
    monkeypatch.setattr("focus_jax.data.corpus.SMALLEST_PART", 5_000)
    corpus = open_corpus(data)
    assert len(corpus.train) > 2
    assert names(corpus.train) == sorted(names(corpus.train))
    assert all(part.text_bytes <= 5_000 or len(part) == 1 for part in corpus.train)


def test_a_document_beyond_the_limit_is_refused_by_name(data):
    corpus = open_corpus(dataclasses.replace(data, max_document_bytes=2_500))
    with pytest.raises(UserError, match=r"book\d\d\.txt: a document of [\d,]+ bytes, and data\.max_document_bytes"):
        [document for part in corpus.train for document in part.documents()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"files": ()}, r"data\.files: name at least one glob"),
        ({"files": ("nowhere/*.txt",)}, r"data\.files: 'nowhere/\*\.txt' matches no file"),
        ({"source": "stdlib"}, r'data\.files: read by source="text" only'),
        ({"dataset": "pg19"}, r'data\.dataset: read by source="tfds" only'),
        ({"source": "tfds", "files": ()}, r"data\.dataset: name a data set"),
        ({"tokenizer": "gpt3"}, r"data\.tokenizer: 'gpt3' is not"),
        ({"tokenizer": "gpt2"}, r"model\.vocab_size: 257, and tokenizer 'gpt2' has 50257 tokens"),
        ({"eos_token": "</s>"}, r"data\.eos_token: tokenizer 'bytes' has its own"),
        ({"mixture": (("a", 1.0), ("a", 2.0))}, r"data\.mixture: a store is named twice"),
        ({"weight": 2.0}, r"data\.weight: only means something beside data\.mixture"),
    ],
)
def test_bad_combinations_name_their_field(data, changes, message):
    def checked_and_opened():
        changed = dataclasses.replace(data, **changes)
        check(changed, 257)
        open_corpus(changed)

    with pytest.raises(UserError, match=message):
        checked_and_opened()


def test_one_file_cannot_be_split(data, texts):
    with pytest.raises(UserError, match=r"data\.validation_files: 1 of 1 files"):
        open_corpus(dataclasses.replace(data, files=(str(texts / "book00.txt"),)))


def test_nothing_left_to_train_on(data):
    with pytest.raises(UserError, match=r"data\.validation_files: every file is held out"):
        open_corpus(dataclasses.replace(data, validation_files=data.files))
