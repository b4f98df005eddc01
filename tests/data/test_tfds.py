"""tensorflow-datasets end to end: a local builder over local files, prepared here and read without TensorFlow."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from focus_jax.config import Data
from focus_jax.data.sources import open_corpus
from focus_jax.data.store import open_store
from focus_jax.errors import UserError
from tests.data.conftest import write_texts

# Run as a script, as anyone would prepare their own (imported, tensorflow-datasets 4.9.10 needs importlib_resources,
# which it does not install: its issue 11212).
BUILDER = """
import pathlib, sys
import numpy as np
import tensorflow_datasets as tfds

class ShelfOfBooks(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        text = tfds.features.Text()
        features = {"title": text, "book_text": text, "year": tfds.features.Scalar(np.int64)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        files = sorted(pathlib.Path(sys.argv[1]).iterdir())
        return {"train": self._generate_examples(files[:-2]), "test": self._generate_examples(files[-2:])}

    def _generate_examples(self, files):
        for number, file in enumerate(files):
            yield file.stem, {"title": file.stem, "book_text": file.read_bytes(), "year": 1900 + number}

ShelfOfBooks(data_dir=sys.argv[2], file_format="array_record").download_and_prepare()
assert "tensorflow" not in sys.modules
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    texts = write_texts(folder / "texts")
    (texts / "book04.txt").write_bytes("\r\n".join(["naïve"] * 50).encode())
    (folder / "shelf_of_books.py").write_text(BUILDER)
    command = [sys.executable, str(folder / "shelf_of_books.py"), str(texts), str(folder / "prepared")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def data(prepared, tmp_path):
    return Data(
        source="tfds",
        dataset="shelf_of_books",
        dataset_folder=str(prepared / "prepared"),
        validation_split="test",
        text_field="book_text",
        store=str(tmp_path / "store"),
    )


def documents(split, store):
    return store.tokenizer().decode(split.read(0, split.tokens).tolist()).split("<|endoftext|>")[:-1]


def test_end_to_end(data, prepared):
    store = open_store(data, 257)
    texts = [path.read_bytes().decode().replace("\r\n", "\n") for path in sorted((prepared / "texts").iterdir())]
    assert sorted(documents(store.train, store)) == sorted(texts[:-2])
    assert sorted(documents(store.validation, store)) == sorted(texts[-2:])
    assert open_store(data, 257).corpus_hash == store.corpus_hash
    assert "tensorflow" not in sys.modules


def test_in_processes_it_gives_the_same_store(data, monkeypatch):
    monkeypatch.setattr("focus_jax.data.corpus.SMALLEST_PART", 5_000)
    one = open_store(data, 257)
    monkeypatch.setattr("focus_jax.data.encode.WORTH_PROCESSES", 0)
    other = open_store(dataclasses.replace(data, store=data.store + "-2"), 257)
    assert len(one.manifest.train) > 1
    assert other.manifest == one.manifest


def test_the_end_of_the_split_is_held_out_where_nothing_is_named(data):
    store = open_store(dataclasses.replace(data, validation_split="", validation_fraction=0.2), 257)
    whole = open_store(dataclasses.replace(data, store=data.store + "-2"), 257)
    assert documents(store.train, store) + documents(store.validation, store) == documents(whole.train, whole)
    assert store.validation.documents == 2


def test_slices_of_a_split(data):
    sliced = dataclasses.replace(data, split="train[:50%]", validation_split="train[50%:]")
    store = open_store(sliced, 257)
    assert (store.train.documents, store.validation.documents) == (5, 5)
    assert not set(documents(store.train, store)) & set(documents(store.validation, store))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text_field": "text"},
            r"data\.text_field: shelf_of_books/1\.0\.0 has no text field 'text'; it has book_text, title",
        ),
        ({"text_field": "year"}, r"data\.text_field: .* has no text field 'year'"),
        ({"split": "tain"}, r"data\.split: shelf_of_books/1\.0\.0: Unknown split 'tain'"),
        ({"validation_split": "test[:"}, r"data\.validation_split: .*Error parsing split 'test\[:'"),
        ({"split": "train[:0%]"}, r"data\.split: 'train\[:0%\]' of shelf_of_books/1\.0\.0 is empty"),
        ({"validation_split": "train[90%:]"}, r"data\.validation_split: 'train\[90%:\]' and data\.split 'train' share"),
        ({"max_document_bytes": 1000}, r"train, example \d: a document of [\d,]+ bytes"),
        (
            {"dataset": "c4/en"},
            r"data\.dataset: c4/en is not .* `tfds build c4/en --file_format=array_record ",
        ),
        ({"dataset_folder": ""}, r"by `tfds build shelf_of_books --file_format=array_record`"),
    ],
)
def test_bad_input_names_its_field(data, changes, message, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", data.store)
    with pytest.raises(UserError, match=message):
        open_store(dataclasses.replace(data, **changes), 257)


@pytest.fixture
def copied(data, tmp_path, prepared):
    shutil.copytree(prepared / "prepared", tmp_path / "copy")
    return dataclasses.replace(data, dataset_folder=str(tmp_path / "copy"))


def test_a_damaged_file_names_the_example(copied):
    for path in Path(copied.dataset_folder).rglob("*train.array_record*"):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(UserError, match=r"data\.dataset: .* train, example \d is damaged; prepare the"):
        open_store(copied, 257)


def test_another_file_format_names_the_command_that_converts_it(copied):
    for path in Path(copied.dataset_folder).rglob("dataset_info.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps({**info, "fileFormat": "tfrecord"}))
    with pytest.raises(UserError, match=r"`tfds convert_format --dataset_version_dir=\S+ --out_file_format="):
        open_corpus(copied)


def test_a_finished_store_serves_where_the_data_set_is_not(data, tmp_path, capsys):
    store = open_store(data, 257)
    elsewhere = dataclasses.replace(data, dataset_folder=str(tmp_path))
    assert open_store(elsewhere, 257).corpus_hash == store.corpus_hash
    assert "not prepared in" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"another corpus: its dataset was 'shelf_of_books' and is now 'pg19'"):
        open_store(dataclasses.replace(elsewhere, dataset="pg19"), 257)
