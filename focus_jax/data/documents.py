"""A document and what is done to its bytes before they become tokens. The same for every source."""

import codecs
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from focus_jax.errors import UserError


class Document(NamedTuple):
    """One text and the name that errors and warnings use for it."""

    name: str
    text: str


class Part(Protocol):
    """A run of a split's documents that is small enough to be one shard of the token store. Parts can be pickled."""

    @property
    def text_bytes(self) -> int:
        """About how much text there is, for progress and sampling."""

    def __len__(self) -> int:
        """Number of documents."""

    def documents(self, start: int = 0, step: int = 1) -> Iterator[Document]:
        """Reads document start, start + step, …; raises UserError for one that cannot be used."""


def clean(raw: bytes, name: str) -> str:
    """Decodes UTF-8, without the byte order mark and with CRLF as LF; UserError where the bytes are something else."""
    body = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + len(raw) - len(body)
        raise UserError(
            f"{name}: byte 0x{raw[offset]:02x} at offset {offset} is not UTF-8; convert the text or leave it out"
        ) from None
    return text.replace("\r\n", "\n")


def check_length(length: int, name: str, max_document_bytes: int) -> None:
    """Refuses a document that would not fit in memory in one piece."""
    if length > max_document_bytes:
        raise UserError(
            f"{name}: a document of {length:,} bytes, and data.max_document_bytes is {max_document_bytes:,}; "
            "split it, or raise the limit if memory allows"
        )
