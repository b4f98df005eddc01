"""What a token store is made from: two splits of documents, cut into parts, and a description to know it by again."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from focus_jax.data.documents import Document, Part
from focus_jax.errors import UserError

# Text per shard: a split is cut in this many, as work for many processes that is little to lose in a kill, unless they
# would be smaller or larger than is sensible for files.
PARTS = 64
SMALLEST_PART, LARGEST_PART = 8 * 2**20, 256 * 2**20


class MissingCorpusError(UserError):
    """The text is not on this machine; a finished store of it can still be used."""

    def __init__(self, message: str, description: dict[str, str | int]) -> None:
        super().__init__(message, description)
        self.description = description
        """The entries of Corpus.description and Corpus.named that are known without the text."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Corpus:
    """The documents of a data source. Its parts do not depend on the machine or the number of processes."""

    description: dict[str, str | int]
    """Recorded in the store and compared when it is opened again; cheap to compute, so not the content's hash."""
    train: tuple[Part, ...]
    validation: tuple[Part, ...]
    modified_ns: int
    """When any of the text last changed (0: it never does)."""
    named: dict[str, str | int] = field(default_factory=dict)
    """Recorded beside the description, and compared only where the text is not on the machine: how it was named."""

    def splits(self) -> dict[str, tuple[Part, ...]]:
        return {"train": self.train, "validation": self.validation}


def bytes_per_part(split_bytes: int) -> int:
    """How much text of a split goes into one part."""
    return min(max(split_bytes // PARTS, SMALLEST_PART), LARGEST_PART)


class TextHash:
    """SHA-256 of a part's documents: names do not count, boundaries do."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, text_utf8: bytes) -> None:
        self._hash.update(len(text_utf8).to_bytes(8, "little"))
        self._hash.update(text_utf8)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def is_empty(document: Document) -> bool:
    """A document without anything to learn from; it is skipped."""
    return not document.text.strip()


def part_hash(part: Part) -> str:
    """The hash of a part's text, read anew."""
    text_hash = TextHash()
    for document in part.documents():
        if not is_empty(document):
            text_hash.update(document.text.encode())
    return text_hash.hexdigest()


def combined_hash(hashes: Iterable[tuple[str, str]]) -> str:
    """The corpus hash, from the split and the text hash of every part in order."""
    return hashlib.sha256("\n".join(f"{split} {digest}" for split, digest in hashes).encode()).hexdigest()
