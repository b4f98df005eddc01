"""Rows of a benchmark in a JSON file that is whole after every row."""

import json
from pathlib import Path
from typing import Any

from focus_jax.errors import UserError


class Report:
    """A list of rows; each is printed as it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.is_dir() or not path.parent.is_dir():
            raise UserError(f"--json {path}: name a file in a folder that is there")
        # That it can be written is known before anything is measured; rows of before stay until there are new ones.
        self._partial().touch()
        self._partial().unlink()

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write()
        print("  ".join(f"{name}={_short(value)}" for name, value in row.items()), flush=True)

    def _write(self) -> None:
        self._partial().write_text("[\n" + ",\n".join(json.dumps(row) for row in self.rows) + "\n]\n")
        self._partial().replace(self.path)

    def _partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
