"""Text to token numbers and back: raw bytes, GPT-2's BPE (tiktoken), and Hugging Face tokenizers, given or trained.

No tokenizer adds a beginning-of-document token, and a special token's name inside the text is ordinary text, so that
only the store writes ends of documents. Documents are encoded line by line where that provably gives the same tokens.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from focus_jax.errors import UserError

END_OF_TEXT = "<|endoftext|>"
USUAL_EOS_TOKENS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")

PIECE = 2**15
"""Characters that a text is cut into, about."""
# A line feed between two printing characters. No pattern of the GPT-2 family joins it to the character after it.
LINE_END = re.compile(r"(?<=\S\n)(?=\S)")


@dataclass(frozen=True, kw_only=True)
class TokenizerRecord:
    """What a store remembers of its tokenizer."""

    kind: Literal["bytes", "gpt2", "trained", "file"]
    hash: str
    """SHA-256 of the vocabulary and the end-of-document policy; equal hashes give equal tokens."""
    vocab_size: int
    eos: int
    eos_token: str
    bos: None = None
    """No token begins a document."""


class Tokenizer(Protocol):
    """Text to token numbers and back."""

    record: TokenizerRecord

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text, no end of document among them."""

    def cut(self, text: str) -> Iterator[str]:
        """Cuts a text into pieces whose tokens, one after the other, are those of the whole."""

    def encode_many(self, pieces: list[str]) -> list[np.ndarray]:
        """Encodes several texts or pieces."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token numbers; bytes that are not UTF-8 become U+FFFD."""

    def save(self, folder: Path) -> None:
        """Writes what `load` needs."""


def load(record: TokenizerRecord, folder: Path) -> Tokenizer:
    """The tokenizer of a store, from the store's own folder."""
    if record.kind == "bytes":
        return ByteTokenizer()
    if record.kind == "gpt2":
        return GPT2Tokenizer.load(folder)
    return HuggingFaceTokenizer(_read(folder / "tokenizer.json"), record)


def lines(text: str) -> Iterator[str]:
    """Cuts a text at line ends, about every PIECE characters."""
    start = 0
    while start < len(text):
        end = LINE_END.search(text, start + PIECE)
        stop = end.start() if end else len(text)
        yield text[start:stop]
        start = stop


class ByteTokenizer:
    """The 256 byte values, and 256 for the end of a document."""

    record = TokenizerRecord(
        kind="bytes",
        hash=hashlib.sha256(b"bytes, end of document 256").hexdigest(),
        vocab_size=257,
        eos=256,
        eos_token=END_OF_TEXT,
    )

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def cut(self, text: str) -> Iterator[str]:
        return lines(text)

    def encode_many(self, pieces: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(piece.encode(), np.uint8) for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(bytes([t]) if t < 256 else END_OF_TEXT.encode() for t in tokens).decode(errors="replace")

    def save(self, folder: Path) -> None:
        pass


class GPT2Tokenizer:
    """GPT-2's byte-level BPE of 50,257 tokens."""

    FILE = "gpt2.tiktoken"

    def __init__(self, settings: dict[str, Any]) -> None:
        import tiktoken

        self._ranks: dict[bytes, int] = settings["mergeable_ranks"]
        self._encoding = tiktoken.Encoding(**settings)
        self.record = TokenizerRecord(
            kind="gpt2",
            hash=hashlib.sha256(_tiktoken_file(self._ranks)).hexdigest(),
            vocab_size=self._encoding.n_vocab,
            eos=self._encoding.eot_token,
            eos_token=END_OF_TEXT,
        )

    @classmethod
    def download(cls) -> "GPT2Tokenizer":
        """From tiktoken's cache, or the network."""
        import requests
        from tiktoken_ext import openai_public

        try:
            return cls(openai_public.gpt2())
        except (OSError, ValueError, requests.RequestException) as error:
            raise UserError(
                "data.tokenizer: tiktoken has no GPT-2 files in its cache and cannot fetch them "
                f"({type(error).__name__}). Where there is a network, run `TIKTOKEN_CACHE_DIR=DIR python -c "
                "\"import tiktoken; tiktoken.get_encoding('gpt2')\"`, copy DIR here, and set TIKTOKEN_CACHE_DIR=DIR"
            ) from None

    @classmethod
    def load(cls, folder: Path) -> "GPT2Tokenizer":
        from tiktoken_ext import openai_public

        lines = (line.split() for line in _read(folder / cls.FILE).splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        return cls(
            {
                "name": "gpt2",
                "explicit_n_vocab": 50_257,
                "pat_str": openai_public.r50k_pat_str,
                "mergeable_ranks": ranks,
                "special_tokens": {END_OF_TEXT: 50_256},
            }
        )

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def cut(self, text: str) -> Iterator[str]:
        return lines(text)

    def encode_many(self, pieces: list[str]) -> list[np.ndarray]:
        return [self._encoding.encode_to_numpy(piece, disallowed_special=()) for piece in pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._encoding.decode(list(tokens))

    def save(self, folder: Path) -> None:
        (folder / self.FILE).write_bytes(_tiktoken_file(self._ranks))


class HuggingFaceTokenizer:
    """A tokenizer.json."""

    def __init__(self, content: bytes, record: TokenizerRecord) -> None:
        self.record = record
        self._content = content
        self._tokenizer = _parse(content, "tokenizer.json")
        self._by_line = _encodes_lines_alone(json.loads(content))

    @classmethod
    def open(cls, path: str, eos_token: str) -> "HuggingFaceTokenizer":
        """A given tokenizer.json; UserError where it is none, or the end of a document is not to be found."""
        file = Path(path).expanduser()
        content = _read(file)
        tokenizer = _parse(content, path)
        eos_token = eos_token or _find_eos(tokenizer, file)
        if tokenizer.token_to_id(eos_token) is None:
            raise UserError(f"data.eos_token: {path} has no token {eos_token!r}")
        return cls(content, _record("file", content, tokenizer, eos_token))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "HuggingFaceTokenizer":
        """A byte-level BPE as GPT-2's; the same texts give the same tokenizer."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[END_OF_TEXT],
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        content = tokenizer.to_str(pretty=True).encode()
        return cls(content, _record("trained", content, tokenizer, END_OF_TEXT))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def cut(self, text: str) -> Iterator[str]:
        return lines(text) if self._by_line else iter([text])

    def encode_many(self, pieces: list[str]) -> list[np.ndarray]:
        encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_bytes(self._content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"data.tokenizer: cannot read {path} ({error.strerror})") from None


def _tiktoken_file(ranks: dict[bytes, int]) -> bytes:
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)


def _parse(content: bytes, name: str) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"data.tokenizer: {name} is not a Hugging Face tokenizer.json ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _record(kind: Literal["trained", "file"], content: bytes, tokenizer: Any, eos_token: str) -> TokenizerRecord:
    eos = tokenizer.token_to_id(eos_token)
    return TokenizerRecord(
        kind=kind,
        hash=hashlib.sha256(content + b"\nend of document %d" % eos).hexdigest(),
        # Not the number of tokens: some vocabularies have gaps.
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
        eos=eos,
        eos_token=eos_token,
    )


def _find_eos(tokenizer: Any, path: Path) -> str:
    """The end of a document: what tokenizer_config.json beside the tokenizer says, else the one usual name it has."""
    beside = path.with_name("tokenizer_config.json")
    if beside.is_file():
        try:
            declared = json.loads(beside.read_bytes()).get("eos_token")
        except ValueError:
            raise UserError(f"data.eos_token: {beside} is not JSON; mend it or name the token") from None
        if declared:
            return declared["content"] if isinstance(declared, dict) else declared
    found = [token for token in USUAL_EOS_TOKENS if tokenizer.token_to_id(token) is not None]
    if len(found) != 1:
        raise UserError(
            f"data.eos_token: {path} does not say which token ends a document (no eos_token in tokenizer_config.json "
            f"beside it, and {' and '.join(found) or 'none'} of {', '.join(USUAL_EOS_TOKENS)} in it); name the token"
        )
    return found[0]


def _encodes_lines_alone(settings: dict[str, Any]) -> bool:
    """Whether cutting at LINE_END provably gives the same tokens: GPT-2's pattern, and nothing that reaches over it."""
    split = settings["pre_tokenizer"] or {}
    return (
        split.get("type") == "ByteLevel"
        and split.get("use_regex", True)
        and not split["add_prefix_space"]
        and settings["normalizer"] is None
        and not any("\n" in t["content"] or t["lstrip"] or t["rstrip"] for t in settings["added_tokens"])
    )
