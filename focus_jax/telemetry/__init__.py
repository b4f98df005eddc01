"""What a run tells while it trains: metrics.jsonl first, and what is made of its rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from focus_jax.config import Config
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.console import Console
from focus_jax.telemetry.metrics import MetricsFile, Row, cut_back

if TYPE_CHECKING:
    from focus_jax.telemetry.weights_and_biases import WeightsAndBiases

__all__ = ["SilentTelemetry", "Telemetry"]

BEFORE_THE_FIRST_STEP = -1


class Sink(Protocol):
    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class Telemetry:
    """Takes the rows of a run and hands each to metrics.jsonl, the console and, where it is on, W&B.

    `resumed_step` is the step of the checkpoint that the run continues from, None for a run from its beginning:
    metrics.jsonl is cut back to it first.

    Raises UserError where metrics.jsonl is damaged, or W&B is wanted online and there is no key for it.
    """

    def __init__(self, config: Config, run_folder: Path, resumed_step: int | None = None):
        path = RunFolder(run_folder).metrics
        cut_back(path, BEFORE_THE_FIRST_STEP if resumed_step is None else resumed_step)
        self._metrics = MetricsFile(path)
        self._console = Console(config.training.steps, resumed_step or 0, config.telemetry.progress)
        self._wandb = _weights_and_biases(config, run_folder)
        self._sinks: list[Sink] = [self._metrics, self._console, *([self._wandb] if self._wandb else [])]

    def write(self, row: Row) -> None:
        """A row as focus_jax.telemetry.metrics lists them; it is in metrics.jsonl on return."""
        for sink in self._sinks:
            sink.write(row)

    def progress(self, step: int) -> None:
        """To be called once after every optimizer step, with the number of steps done."""
        self._console.progress(step)

    def checkpoint_done(self, step: int) -> None:
        """To be called when the evaluation rows of a checkpoint are written: shows them as a table."""
        self._metrics.sync()
        self._console.checkpoint_done(step)

    def checkpoint_saved(self, step: int, folder: Path) -> None:
        """To be called when a checkpoint is committed: uploads it where that is wanted."""
        if self._wandb is not None:
            self._wandb.checkpoint_saved(step, folder)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


class SilentTelemetry:
    """That of a process whose rows another one writes."""

    def write(self, row: Row) -> None: ...

    def progress(self, step: int) -> None: ...

    def checkpoint_done(self, step: int) -> None: ...

    def checkpoint_saved(self, step: int, folder: Path) -> None: ...

    def close(self) -> None: ...


def _weights_and_biases(config: Config, run_folder: Path) -> "WeightsAndBiases | None":
    if config.telemetry.wandb == "off":
        return None
    # W&B takes a second to import, and need not be there where it is off.
    from focus_jax.telemetry.weights_and_biases import WeightsAndBiases

    return WeightsAndBiases(config, run_folder)
