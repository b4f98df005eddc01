"""Corpora made of files, one document a file: local text, and the Python standard library's own sources."""

import codecs
import glob
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from focus_jax import config
from focus_jax.data.corpus import Corpus, MissingCorpusError, bytes_per_part
from focus_jax.data.documents import Document, check_length, clean
from focus_jax.errors import UserError

# Tests are half of the standard library, and repetitive; the rest is not part of it.
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class FilePart:
    """Files below a folder, in the order given."""

    root: str
    names: tuple[str, ...]
    text_bytes: int
    max_document_bytes: int

    def __len__(self) -> int:
        return len(self.names)

    def documents(self, start: int = 0, step: int = 1) -> Iterator[Document]:
        for name in self.names[start::step]:
            path = Path(self.root, name)
            check_length(path.stat().st_size, str(path), self.max_document_bytes)
            yield Document(str(path), clean(path.read_bytes(), str(path)))


def stdlib_corpus(data: config.Data) -> Corpus:
    """The running Python's standard library without its tests; the files held out depend on their paths alone."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if NOT_LIBRARY.isdisjoint(name.parts) and path.is_file() and path.stat().st_size > 0:
            files[name.as_posix()] = path.stat()
    return _corpus(data, root, files, _held_out(files, data), {"python": platform.python_version()})


def text_corpus(data: config.Data) -> Corpus:
    """Local files; raises MissingCorpusError where a glob matches nothing."""
    matched = _matches(data, "files")
    held_out = _matches(data, "validation_files")
    root = Path(os.path.commonpath([path.parent for path in matched | held_out]))
    files = {path.relative_to(root).as_posix(): path.stat() for path in matched | held_out}
    if not held_out:
        return _corpus(data, root, files, _held_out(files, data), {})
    if matched <= held_out:
        raise UserError("data.validation_files: every file is held out, and none is left to train on")
    return _corpus(data, root, files, {path.relative_to(root).as_posix() for path in held_out}, {})


def _named(data: config.Data) -> dict[str, str | int]:
    return {"globs": " ".join(data.files), "validation globs": " ".join(data.validation_files)}


def _matches(data: config.Data, field: str) -> set[Path]:
    paths: set[Path] = set()
    for pattern in getattr(data, field):
        names = glob.glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207 (pathlib's takes no absolute pattern)
        found = {Path(name).resolve() for name in names if Path(name).is_file()}
        if not found:
            raise MissingCorpusError(
                f"data.{field}: {pattern!r} matches no file", {"source": data.source, **_named(data)}
            )
        paths |= found
    return paths


def _held_out(files: dict[str, os.stat_result], data: config.Data) -> set[str]:
    """Whole files in the order of their names' hashes, up to the fraction asked for; at least one."""
    sizes = {name: stat.st_size for name, stat in files.items() if stat.st_size > len(codecs.BOM_UTF8)}
    if len(sizes) < 2:
        raise UserError(
            f"data.validation_files: {len(sizes)} of {len(files)} files have text in them, too few to hold one out; "
            "name more, or files to hold out"
        )
    budget = data.validation_fraction * sum(sizes.values())
    held_out: set[str] = set()
    for name in sorted(sizes, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if sizes[name] <= budget:
            held_out.add(name)
            budget -= sizes[name]
    return held_out or {min(sizes, key=lambda name: (sizes[name], name))}


def _corpus(
    data: config.Data, root: Path, files: dict[str, os.stat_result], held_out: set[str], origin: dict[str, str]
) -> Corpus:
    listing = hashlib.sha256()
    for name in sorted(files):
        listing.update(f"{name}\0{files[name].st_size}\0{name in held_out}\n".encode())
    sizes = {name: files[name].st_size for name in sorted(files)}
    return Corpus(
        description={"source": data.source, "files": len(files), "listing": listing.hexdigest(), **origin},
        train=_parts(data, root, {name: size for name, size in sizes.items() if name not in held_out}),
        validation=_parts(data, root, {name: size for name, size in sizes.items() if name in held_out}),
        modified_ns=max(stat.st_mtime_ns for stat in files.values()),
        named=_named(data),
    )


def _parts(data: config.Data, root: Path, sizes: dict[str, int]) -> tuple[FilePart, ...]:
    """Consecutive files, whole."""
    capacity = bytes_per_part(sum(sizes.values()))
    groups: list[list[str]] = []
    filled = 0
    for name, size in sizes.items():
        if not groups or filled + size > capacity:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return tuple(
        FilePart(str(root), tuple(names), sum(sizes[name] for name in names), data.max_document_bytes)
        for names in groups
    )
