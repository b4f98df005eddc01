"""What a checkpoint consists of: manifest.json in its folder, written when everything else is.

Orbax renames a finished checkpoint into its place at once, but reads altered bytes without noticing. A checkpoint with
this file, whose files all have the content listed, is whole; one without it was never completed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "manifest.json"


def write(checkpoint: Path, arrays: Mapping[str, str]) -> None:
    """Lists every file of a checkpoint with its size and SHA-256. `arrays`: shape and type by name."""
    files = {
        path.relative_to(checkpoint).as_posix(): _content(path)
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
    unfinished = checkpoint / f"{FILE}.unfinished"
    with unfinished.open("w") as file:
        file.write(_text({"arrays": dict(arrays), "files": files}))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(checkpoint / FILE)


def is_complete(checkpoint: Path) -> bool:
    return (checkpoint / FILE).exists()


def problem(checkpoint: Path, arrays: Mapping[str, str], item: str = "") -> str | None:
    """Why a checkpoint (or one item of it) cannot be used for a model that has these arrays, in words that begin with
    the file; None if it can. Other arrays of the checkpoint do not matter. Reads every file."""
    try:
        text = (checkpoint / FILE).read_text()
        listed = json.loads(text)
        files, stored = listed["files"], listed["arrays"]
        if text != _text(listed):
            raise ValueError
    except FileNotFoundError:
        return f"{FILE} is missing, so it was not completed"
    except (ValueError, TypeError, KeyError):
        return f"{FILE} is damaged"
    for name, expected in arrays.items():
        if stored.get(name) != expected:
            return f"{name} is {stored.get(name, 'missing')} and the config's model has {expected}: another model's"
    for name, expected in files.items():
        if name.startswith(item) and (difference := _difference(checkpoint / name, expected)):
            return f"{name} {difference}"
    return None


def _difference(path: Path, expected: list[Any]) -> str | None:
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != expected[0]:
        return f"has {path.stat().st_size:,} bytes instead of {expected[0]:,}"
    return None if _content(path) == expected else "has other bytes than were written"


def _content(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return [path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()]


def _text(listed: Any) -> str:
    return json.dumps(listed, indent=1)
