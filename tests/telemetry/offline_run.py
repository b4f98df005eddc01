"""Reads the log of an offline W&B run: records in the log format of LevelDB, behind a header of seven bytes."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

_FILE_HEADER = 7
_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def records(run_folder: Path) -> Iterator[Record]:
    """Of the only log in a run's folder."""
    (path,) = run_folder.glob("wandb/offline-run-*/*.wandb")
    whole = b""
    for kind, part in _fragments(path.read_bytes()):
        whole = part if kind in (_FULL, _FIRST) else whole + part
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(whole)
            yield record


def history(run_folder: Path) -> list[dict]:
    """What was logged, a dictionary for each row."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(run_folder)
        if record.HasField("history")
    ]


def _fragments(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = _FILE_HEADER
    while position + _HEADER.size <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER.size:
            position += left
            continue
        _, length, kind = _HEADER.unpack_from(data, position)
        if kind == 0:
            return
        position += _HEADER.size
        yield kind, data[position : position + length]
        position += length
