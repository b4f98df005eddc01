"""The results file of a study: one JSON object a line, appended as each run finishes."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from focus_jax.bench.origin import commit, machine
from focus_jax.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = dict[str, Any]


class Results:
    """Rows are known by the fields of their arm; an interrupted study goes on with those that are missing. Each says
    which commit and machine made it.

    identity, measured: fields of a row, those of its arm and those that the study's table reads.
    """

    def __init__(self, path: Path, identity: tuple[str, ...], measured: tuple[str, ...]):
        self.path = path
        self._identity, self._measured = identity, measured
        self.rows = list(self._read()) if path.exists() else []
        # Of the code that was loaded: the working tree may move on while a study runs.
        self._made_by = {"commit": commit(), "machine": machine()}

    def has(self, arm: Row) -> bool:
        return any(self._key(row) == self._key(arm) for row in self.rows)

    def missing[Arm: DataclassInstance](self, arms: Iterable[Arm]) -> Iterator[Arm]:
        """Those that have no row yet. That the file can be written is known before each: no run is for nothing."""
        for arm in arms:
            if not self.has(dataclasses.asdict(arm)):
                self._open().close()
                yield arm

    def append(self, row: Row) -> None:
        row = row | self._made_by
        with self._open() as file:
            file.write(json.dumps(row).encode() + b"\n")
        self.rows.append(row)

    def _open(self) -> IO[bytes]:
        """To append lines; an editor may have left the last one without its end."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("ab")
        if (before := self.path.read_bytes()) and not before.endswith(b"\n"):
            file.write(b"\n")
        return file

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self._identity)

    def _read(self) -> Iterator[Row]:
        for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
            place = f"{self.path}: line {number}"
            try:
                row = json.loads(line)
            except (json.JSONDecodeError, UnicodeDecodeError):
                raise UserError(f"{place} is no JSON row; remove it, and its run is done again") from None
            absent = [name for name in self._identity + self._measured if not isinstance(row, dict) or name not in row]
            if absent:
                raise UserError(f"{place} is no row of this study: it has no {', '.join(absent)}; name another file")
            yield row
