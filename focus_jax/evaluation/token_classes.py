"""What kind of text a token is, told from its letters alone, and how much a grouping of tokens follows that."""

import builtins
import keyword
import re

import numpy as np

_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an the this that these those my your his her its our their some any no every each either neither another
        i you he she it we they my him us me them who whom whose which what myself yourself himself herself itself
        of in to for with on at by from up about into over after under above below between through during before
        behind and or but nor so yet because although though while if unless until than whether when where why how
        am is are was were be been being have has had having do does did will would shall should can could may might
        must not there here then as
        """,
    )
)
"""Closed classes of English: determiners, pronouns, prepositions, conjunctions, auxiliaries."""

CLASSES = (
    "space",
    "punctuation",
    "number",
    "Python keyword",
    "Python builtin",
    "function word",
    "capitalised",
    "word",
    "piece of a word",
    "other",
)
_SPACE, _PUNCTUATION, _NUMBER, _KEYWORD, _BUILTIN, _FUNCTION, _CAPITALISED, _WORD, _PIECE, _OTHER = range(len(CLASSES))

_ONLY_PYTHON = frozenset(keyword.kwlist) - _FUNCTION_WORDS
_BUILTINS = frozenset(dir(builtins)) - _FUNCTION_WORDS - _ONLY_PYTHON


def class_of(token: str) -> int:
    """Number of the token's class in CLASSES; whole words are those that begin with a space."""
    text = token.strip()
    if not text:
        return _SPACE
    if text in _ONLY_PYTHON:
        return _KEYWORD
    if text.lower() in _FUNCTION_WORDS:
        return _FUNCTION
    if text in _BUILTINS:
        return _BUILTIN
    if not any(letter.isalnum() for letter in text):
        return _OTHER if "\ufffd" in text else _PUNCTUATION
    if re.fullmatch(r"[\d.,_]+", text):
        return _NUMBER
    if text[0].isupper():
        return _CAPITALISED
    if text.isalpha():
        return _WORD if token[0].isspace() else _PIECE
    return _OTHER


def purity(group_N: np.ndarray, class_N: np.ndarray, groups: int) -> tuple[list[str | None], list[float | None]]:
    """The most frequent class of every group and its share of the group's tokens; None for an empty group."""
    counts_KC = np.zeros((groups, len(CLASSES)), np.int64)
    np.add.at(counts_KC, (group_N, class_N), 1)
    sizes_K = counts_KC.sum(axis=1)
    most = [CLASSES[counts_C.argmax()] if size else None for counts_C, size in zip(counts_KC, sizes_K, strict=True)]
    shares = [counts_C.max() / size if size else None for counts_C, size in zip(counts_KC, sizes_K, strict=True)]
    return most, [None if share is None else float(share) for share in shares]


def shuffled(group_N: np.ndarray) -> np.ndarray:
    """A random grouping with groups of the same sizes, always the same one."""
    return np.random.default_rng(0).permutation(group_N)
