"""The folder of a run: what lies where, and the rule for continuing one."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from focus_jax import config_loading
from focus_jax.config import Config
from focus_jax.errors import UserError

# Everything else decides what is computed, so a run that is continued must keep it. The guard decides too, but a run
# that it stopped must be able to go on; every update that it leaves out is an event of the run.
MAY_CHANGE = ("run", "telemetry", "evaluation", "checkpoint", "guard", "mesh", "profile")


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

    @property
    def profile(self) -> Path:
        return self.path / "profile"

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

    def forget_evaluations_after(self, step: int) -> None:
        for later in [s for s in self.evaluated_steps() if s > step]:
            shutil.rmtree(self.evaluation(later))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from training in this folder; the system releases it however this one ends.

        Raises UserError where another one does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{self.path}: another process is training in this folder; wait for it, or name another with --run"
                ) from None
            yield

    def is_begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return self.checkpoints.is_dir() and any(p.name.isdigit() for p in self.checkpoints.iterdir())

    def check(self, run: Config) -> None:
        """Raises UserError where the run is begun and `run` would compute something else than it."""
        if not self.is_begun():
            return
        try:
            begun_with = self.read_config()
        except UserError as error:
            raise UserError(f"{error}; bring it back to continue that run, or start another with --run") from None
        for name, stored, given in config_loading.differences(begun_with, run):
            if name.split(".")[0] not in MAY_CHANGE:
                raise UserError(
                    f"{name}: {given!r}, but the run in {self.path} was started with {stored!r}; "
                    "keep it to continue that run, or start another one with --run"
                )

    def check_store(self, trained_on: dict[str, str], identity: dict[str, str]) -> None:
        """Raises UserError where the run was trained on another token store (TokenStore.identity)."""
        if trained_on != identity:
            then, now = (", ".join(f"{k} {v[:12]}" for k, v in store.items()) for store in (trained_on, identity))
            raise UserError(
                f"data.store: {self.path} was trained on another token store ({then}) than this one ({now}); bring the "
                "old one back, or start a new run"
            )

    def write_config(self, run: Config) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.config.with_suffix(".partial")
        partial.write_text(config_loading.to_json(run), encoding="utf-8")
        partial.replace(self.config)

    def read_config(self) -> Config:
        return config_loading.read_json(self.config)
