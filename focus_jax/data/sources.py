"""The corpus that a config names, and the fields that each source reads."""

import dataclasses
from pathlib import Path

from focus_jax import config
from focus_jax.data.corpus import Corpus
from focus_jax.errors import UserError

FIELDS_OF_SOURCE = {
    "stdlib": set[str](),
    "text": {"files", "validation_files"},
    "tfds": {"dataset", "dataset_folder", "split", "validation_split", "text_field"},
}
VOCABULARY = {"bytes": 257, "gpt2": 50_257}
SMALLEST_TRAINED_VOCABULARY = 257


def check(data: config.Data, vocab_size: int) -> None:
    """Refuses combinations that cannot work, and fields that the source would not read, without touching any text."""
    _check_source(data)
    _check_tokenizer(data, vocab_size)
    stores = [Path(data.store).resolve(), *(Path(store).resolve() for store, _ in data.mixture)]
    if len(set(stores)) < len(stores):
        raise UserError("data.mixture: a store is named twice; give it one entry with the sum of the weights")
    if not data.mixture and data.weight != 1:
        raise UserError("data.weight: only means something beside data.mixture, which is empty")


def open_corpus(data: config.Data) -> Corpus:
    """Lists the corpus without reading its text. Raises MissingCorpusError where it is not on this machine."""
    if data.source == "tfds":
        from focus_jax.data.tfds import tfds_corpus

        return tfds_corpus(data)
    from focus_jax.data.files import stdlib_corpus, text_corpus

    return stdlib_corpus(data) if data.source == "stdlib" else text_corpus(data)


def _check_source(data: config.Data) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(data)}
    for source, names in FIELDS_OF_SOURCE.items():
        for name in sorted(names):
            if source != data.source and getattr(data, name) != defaults[name]:
                raise UserError(f'data.{name}: read by source="{source}" only, and data.source is "{data.source}"')
    if data.source == "text" and not data.files:
        raise UserError('data.files: name at least one glob for source="text"')
    if data.source == "tfds" and not data.dataset:
        raise UserError('data.dataset: name a data set for source="tfds"')


def _check_tokenizer(data: config.Data, vocab_size: int) -> None:
    if data.tokenizer == "trained":
        if vocab_size < SMALLEST_TRAINED_VOCABULARY:
            raise UserError(
                f"model.vocab_size: {vocab_size}, and a trained tokenizer needs at least "
                f"{SMALLEST_TRAINED_VOCABULARY} (256 bytes and the end of a document)"
            )
    elif data.tokenizer in VOCABULARY:
        expected = VOCABULARY[data.tokenizer]
        if vocab_size != expected:
            raise UserError(f"model.vocab_size: {vocab_size}, and tokenizer {data.tokenizer!r} has {expected} tokens")
    elif not Path(data.tokenizer).expanduser().is_file():
        raise UserError(
            f'data.tokenizer: {data.tokenizer!r} is not "bytes", "gpt2" or "trained", and there is no such file'
        )
    if data.eos_token and (data.tokenizer in VOCABULARY or data.tokenizer == "trained"):
        raise UserError(f"data.eos_token: tokenizer {data.tokenizer!r} has its own; leave the field empty")
