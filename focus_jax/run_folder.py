"""The folder of a run: what lies where, and the rule for continuing one."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from focus_jax import config_loading
from focus_jax.config import Config
from focus_jax.errors import UserError

# Everything else decides what is computed, so a run that is continued must keep it.
MAY_CHANGE = ("telemetry", "evaluation", "checkpoint", "mesh")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    def evaluation(self, step: int) -> Path:
        """Losses of every held-out token and groups of every token at that checkpoint."""
        return self.evaluations / str(step)

    def token_losses(self, step: int, reading: str) -> Path:
        """File of one model and reading, by the key of its LoggedReading."""
        return self.evaluation(step) / f"{reading}.npz"

    def evaluated_steps(self) -> Iterator[int]:
        """Steps with an evaluation, ascending."""
        if self.evaluations.is_dir():
            yield from sorted(int(p.name) for p in self.evaluations.iterdir() if p.name.isdigit())

    def is_begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.checkpoints.is_dir() and any(p.name.isdigit() for p in self.checkpoints.iterdir())

    def check(self, run: Config) -> None:
        """Raises UserError where the run is begun and `run` would compute something else than it."""
        if not self.is_begun():
            return
        for name, stored, given in config_loading.differences(self.read_config(), run):
            if name.split(".")[0] not in MAY_CHANGE:
                raise UserError(
                    f"{name}: {given!r}, but the run in {self.path} was started with {stored!r}; "
                    "keep it to continue that run, or start another one with --run"
                )

    def write_config(self, run: Config) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.config.with_suffix(".partial")
        partial.write_text(config_loading.to_json(run))
        partial.replace(self.config)

    def read_config(self) -> Config:
        return config_loading.read_json(self.config)
