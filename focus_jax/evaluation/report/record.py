"""What a run folder says, as the report asks for it. Reads config.json and metrics.jsonl alone."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from focus_jax.config import Config
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.metrics import Row, read_rows
from focus_jax.telemetry.readings import LoggedReading

History = list[Row]
"""Rows of one subject, one per step, in order."""


@dataclass(frozen=True)
class RunRecord:
    folder: Path
    config: Config
    rows: list[Row]

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Raises UserError where the folder is not that of a run or has logged nothing yet."""
        rows = read_rows(RunFolder(folder).metrics)
        return cls(folder, RunFolder(folder).read_config(), rows)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def step(self) -> int:
        return max((row["step"] for row in self.rows), default=0)

    @property
    def tokens(self) -> int:
        return max((row["tokens"] for row in self.rows), default=0)

    @property
    def finished(self) -> bool:
        return self.step >= self.config.training.steps

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]

    def training(self) -> dict[str, History]:
        """By model."""
        return _histories(self.of_kind("train"), lambda row: row["model"])

    def evaluations(self) -> dict[LoggedReading, History]:
        return _histories(self.of_kind("eval"), LoggedReading.of)

    def comparisons(self) -> dict[LoggedReading, History]:
        """By reading of Focus; the reading as trained comes first. Only where both losses were finite."""
        finite = (row for row in self.of_kind("compare") if row["delta_nats"] is not None)
        return _histories(finite, LoggedReading.of)

    def groups(self) -> dict[int, History]:
        """By layer."""
        return dict(sorted(_histories(self.of_kind("groups"), lambda row: row["layer"]).items()))

    def seconds_at(self, model: str, steps: Iterable[int]) -> np.ndarray:
        """Training seconds of a model after the given steps, between its training rows by interpolation."""
        history = self.training().get(model, [])
        known_steps = [0, *(row["step"] for row in history)]
        known_seconds = [0.0, *(row["seconds"] for row in history)]
        return np.interp(list(steps), known_steps, known_seconds)


def _histories[Key: Hashable](rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, History]:
    by_key: dict[Key, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        by_key[key(row)][row["step"]] = row
    return {subject: [by_step[step] for step in sorted(by_step)] for subject, by_step in by_key.items()}
