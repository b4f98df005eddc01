"""Corpora of tensorflow-datasets, prepared once as ArrayRecord and read without TensorFlow."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.read_only_builder import builder_from_files

from focus_jax import config
from focus_jax.data.corpus import Corpus, MissingCorpusError, bytes_per_part
from focus_jax.data.documents import Document, check_length, clean
from focus_jax.errors import UserError

FORMAT = "array_record"
# What the tfds command itself needs: its package does not install all of it.
ENVIRONMENT = "pip install tensorflow-datasets tensorflow apache-beam mlcroissant importlib_resources"


@dataclass(frozen=True)
class ExamplePart:
    """Examples start … stop − 1 of a split."""

    folder: str
    split: str
    start: int
    stop: int
    text_field: str
    text_bytes: int
    max_document_bytes: int

    def __len__(self) -> int:
        return self.stop - self.start

    def documents(self, start: int = 0, step: int = 1) -> Iterator[Document]:
        examples = _examples(self.folder, self.split)
        for index in range(self.start + start, self.stop, step):
            name = f"{self.folder} {self.split}, example {index}"
            text = _text(examples, index, self.text_field)
            if text is None:
                raise UserError(f"data.dataset: {name} is damaged; prepare the data set again")
            check_length(len(text), name, self.max_document_bytes)
            yield Document(name, clean(text, name))


def tfds_corpus(data: config.Data) -> Corpus:
    """A data set prepared on this machine; raises MissingCorpusError with the command that prepares it."""
    builder = _builder(data)
    _check_text_field(builder, data)
    train = _split_length(builder, "data.split", data.split)
    if data.validation_split:
        held_out = _split_length(builder, "data.validation_split", data.validation_split)
        _refuse_overlap(builder, data)
        validation_split, held_out_from = data.validation_split, 0
    else:
        held_out = max(1, round(data.validation_fraction * train))
        train -= held_out
        validation_split, held_out_from = data.split, train
    return Corpus(
        description={
            **_description(data),
            "version": builder.info.full_name,
            "examples": train,
            "validation_examples": held_out,
        },
        train=_parts(builder, data, data.split, 0, train),
        validation=_parts(builder, data, validation_split, held_out_from, held_out_from + held_out),
        modified_ns=0,
    )


def _description(data: config.Data) -> dict[str, str | int]:
    """What is known of the corpus without having it."""
    return {
        "source": data.source,
        "dataset": data.dataset,
        "text_field": data.text_field,
        "split": data.split,
        "validation_split": data.validation_split,
    }


def _builder(data: config.Data) -> Any:
    try:
        builder = builder_from_files(data.dataset, data_dir=data.dataset_folder or None)
    except tfds.core.DatasetNotFoundError:
        raise MissingCorpusError(
            f"data.dataset: {data.dataset} is not prepared in {data.dataset_folder or tfds.core.constants.DATA_DIR}; "
            f"prepare it by `{_prepare_command(data)}` in an environment of its own (`{ENVIRONMENT}`)",
            _description(data),
        ) from None
    if FORMAT not in {file_format.value for file_format in builder.info.available_file_formats()}:
        raise UserError(
            f"data.dataset: {builder.data_path} is in another file format; convert it by `tfds convert_format "
            f"--dataset_version_dir={shlex.quote(str(builder.data_path))} --out_file_format={FORMAT}` "
            f"in an environment of its own (`{ENVIRONMENT}`)"
        )
    return builder


def _prepare_command(data: config.Data) -> str:
    folder = f" --data_dir={shlex.quote(data.dataset_folder)}" if data.dataset_folder else ""
    return f"tfds build {shlex.quote(data.dataset)} --file_format={FORMAT}{folder}"


def _check_text_field(builder: Any, data: config.Data) -> None:
    texts = [name for name, feature in builder.info.features.items() if isinstance(feature, tfds.features.Text)]
    if data.text_field not in texts:
        raise UserError(
            f"data.text_field: {builder.info.full_name} has no text field {data.text_field!r}; "
            f"it has {', '.join(sorted(texts)) or 'none'}"
        )


def _split_length(builder: Any, field: str, split: str) -> int:
    try:
        length = builder.info.splits[split].num_examples
    except ValueError as error:
        raise UserError(f"{field}: {builder.info.full_name}: {str(error).splitlines()[0]}") from None
    if length < 1:
        raise UserError(f"{field}: {split!r} of {builder.info.full_name} is empty")
    return length


def _refuse_overlap(builder: Any, data: config.Data) -> None:
    trained = builder.info.splits[data.split].file_instructions
    for held_out in builder.info.splits[data.validation_split].file_instructions:
        for other in trained:
            same_file = other.filename == held_out.filename
            if same_file and max(other.skip, held_out.skip) < min(
                other.skip + other.take, held_out.skip + held_out.take
            ):
                raise UserError(
                    f"data.validation_split: {data.validation_split!r} and data.split {data.split!r} share examples; "
                    'slice both, as in "train[:99%]" and "train[99%:]"'
                )


def _parts(builder: Any, data: config.Data, split: str, start: int, stop: int) -> tuple[ExamplePart, ...]:
    splits = builder.info.splits.values()
    mean_bytes = max(1, sum(s.num_bytes for s in splits) // sum(s.num_examples for s in splits))
    length = max(1, bytes_per_part(mean_bytes * (stop - start)) // mean_bytes)
    return tuple(
        ExamplePart(
            folder=str(builder.data_path),
            split=split,
            start=first,
            stop=min(first + length, stop),
            text_field=data.text_field,
            text_bytes=mean_bytes * (min(first + length, stop) - first),
            max_document_bytes=data.max_document_bytes,
        )
        for first in range(start, stop, length)
    )


def _text(examples: Sequence[dict[str, Any]], index: int, text_field: str) -> bytes | None:
    """The text of an example; None where the file is damaged (ArrayRecord returns nothing then, or raises anything)."""
    try:
        return examples[index][text_field]
    except Exception:
        return None


@lru_cache(maxsize=2)
def _examples(folder: str, split: str) -> Sequence[dict[str, Any]]:
    return tfds.builder_from_directory(folder).as_data_source(split, file_format=FORMAT)
