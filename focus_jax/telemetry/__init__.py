"""What a run tells while it trains: metrics.jsonl first, and what is made of its rows."""

from pathlib import Path
from typing import Protocol

from focus_jax.config import Config
from focus_jax.telemetry.console import Console
from focus_jax.telemetry.metrics import FILE_NAME, MetricsFile, Row, cut_back

__all__ = ["Telemetry"]

BEFORE_THE_FIRST_STEP = -1


class Sink(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class Telemetry:
    """Takes the rows of a run and hands each to metrics.jsonl, the console and, where it is on, W&B.

    `resumed_step` is the step of the checkpoint that the run continues from, None for a run from its beginning:
    metrics.jsonl is cut back to it first.
    """

    def __init__(self, config: Config, run_folder: Path, resumed_step: int | None = None):
        metrics = run_folder / FILE_NAME
        cut_back(metrics, BEFORE_THE_FIRST_STEP if resumed_step is None else resumed_step)
        self._console = Console(config.training.steps, resumed_step or 0, config.telemetry.progress)
        self._sinks: list[Sink] = [MetricsFile(metrics), self._console]

    def write(self, row: Row) -> None:
        """A row as focus_jax.telemetry.metrics lists them; it has reached every sink on return."""
        for sink in self._sinks:
            sink.write(row)

    def progress(self, step: int) -> None:
        """To be called once after every optimizer step, with the number of steps done."""
        self._console.progress(step)

    def checkpoint_done(self, step: int) -> None:
        """To be called when the evaluation rows of a checkpoint are written: shows them as a table."""
        self._console.checkpoint_done(step)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
