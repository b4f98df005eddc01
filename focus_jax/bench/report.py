"""Rows of a benchmark in a JSON file that is whole after every row."""

import json
from pathlib import Path
from typing import Any


class Report:
    """A list of rows; each is printed as it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._write()

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write()
        print("  ".join(f"{name}={_short(value)}" for name, value in row.items()), flush=True)

    def _write(self) -> None:
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_text("[\n" + ",\n".join(json.dumps(row) for row in self.rows) + "\n]\n")
        partial.replace(self.path)


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
