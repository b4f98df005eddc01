"""A whole run: data, models, loop, evaluation at every checkpoint, telemetry. What `train.py` calls."""

import shutil
from typing import Any

import jax

from focus_jax import config
from focus_jax.data.batches import train_batches
from focus_jax.data.store import TokenStore
from focus_jax.errors import UserError
from focus_jax.evaluation.checkpoint import (
    CheckpointEvaluation,
    held_out_sample,
    previous_groups,
    store_measurements,
)
from focus_jax.evaluation.report import write_report
from focus_jax.model import attention_implementations
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import Telemetry
from focus_jax.training.checkpoints import Checkpoints, on_default_device
from focus_jax.training.learner import Learner
from focus_jax.training.loop import Diverged, train
from focus_jax.training.stop import CONTINUE_ME, StopSignals


def pretrain(run: config.Config, folder: RunFolder, store: TokenStore) -> int:
    """Trains the models of a run to its end, or continues it; returns the exit code."""
    folder.write_config(run)
    checkpoints = Checkpoints(folder.checkpoints, run.checkpoint)
    try:
        if checkpoints.latest_step() == run.training.steps:
            print(f"{folder.path} is finished; to train another run, name another folder with --run")
            return 0
        step = _Pretraining(run, folder, store, checkpoints).train()
    finally:
        checkpoints.close()
    if step < run.training.steps:
        print(f"stopped after step {step}; run the same command again to continue")
        return CONTINUE_ME
    print(f"report: {folder.path / 'report.html'}")
    return 0


class _Pretraining:
    """A run that is being trained, from its beginning or its newest checkpoint."""

    def __init__(self, run: config.Config, folder: RunFolder, store: TokenStore, checkpoints: Checkpoints):
        self._run = run
        self._folder = folder
        self._store = store
        self._checkpoints = checkpoints
        self._implementations = attention_implementations(run)
        self._learners = [Learner(name, config.of_model(run, name)) for name in run.models]
        self._first_step = self._begin()
        sample = held_out_sample(run, store, run.training.sequence_length)
        self._evaluation = CheckpointEvaluation(run, store, sample)
        self._telemetry = Telemetry(run, folder.path, resumed_step=self._first_step or None)

    def train(self) -> int:
        """Returns the number of updates done, fewer than all where a signal asked for a stop. Raises Diverged."""
        self._tell_start()
        for learner in self._learners:
            learner.compile()
        batches = train_batches(
            self._store,
            sequence_length=self._run.training.sequence_length,
            batch_size=self._run.training.batch_size,
            seed=self._run.seed,
            first_step=self._first_step,
        )
        try:
            with StopSignals() as signals:
                return train(
                    self._run,
                    self._learners,
                    batches,
                    first_step=self._first_step,
                    log=self._telemetry,
                    at_checkpoint=self._at_checkpoint,
                    stop_requested=lambda: signals.requested,
                )
        except Diverged as error:
            raise Diverged(f"{error}; {self._last_good_checkpoint()}") from None
        finally:
            self._telemetry.close()
            write_report(self._folder.path)

    def _begin(self) -> int:
        """Initial states, or those of the newest checkpoint. Returns the number of updates done."""
        step = self._checkpoints.latest_step()
        if step is None:
            for learner in self._learners:
                learner.initialise()
            step = 0
        else:
            self._restore(step)
        for later in [s for s in self._folder.evaluated_steps() if s > step]:
            shutil.rmtree(self._folder.evaluation(later))
        return step

    def _restore(self, step: int) -> None:
        abstract = {str(learner.name): on_default_device(learner.abstract_state()) for learner in self._learners}
        states, progress = self._checkpoints.restore(step, abstract)
        if progress["store"] != self._store_identity():
            raise UserError(
                f"data.store: {self._folder.path} was trained on another token store ({progress['store']}); "
                f"this one is {self._store_identity()}; bring the old one back, or start a new run"
            )
        for learner in self._learners:
            learner.state = states[learner.name]
            learner.seconds = progress["seconds"][learner.name]

    def _at_checkpoint(self, step: int) -> None:
        # Evaluated before it is saved: a run that is continued from a checkpoint has all rows up to it.
        if step % self._run.checkpoint.every == 0 or step == self._run.training.steps:
            self._evaluate(step)
        self._checkpoints.save(
            step,
            {learner.name: learner.state for learner in self._learners},
            {
                "seconds": {learner.name: learner.seconds for learner in self._learners},
                "store": self._store_identity(),
            },
        )

    def _evaluate(self, step: int) -> None:
        models = {learner.name: (learner.state.params, learner.state.potentials) for learner in self._learners}
        measured = self._evaluation.measure(models)
        focus = next((m for m in measured if m.model == "focus"), None)
        sample = self._evaluation.sample
        previous_LST = None if focus is None else previous_groups(self._folder, step, focus.reading, sample)
        for row in self._evaluation.rows(measured, previous_LST):
            self._write(step, **row)
        store_measurements(self._folder, step, measured, sample)
        self._telemetry.checkpoint_done(step)

    def _tell_start(self) -> None:
        """Says, and records, on what and by which attention code the run goes on."""
        what = "resumed" if self._first_step else "started"
        device = jax.devices()[0].device_kind
        chosen = ", ".join(f"{operation} {name}" for operation, name in self._implementations.items())
        self._write(
            self._first_step,
            kind="event",
            name=what,
            message=f"{what} on {device}; attention: {chosen}",
            device=device,
            jax=jax.__version__,
            attention=self._implementations,
        )

    def _write(self, step: int, *, kind: str, **fields: Any) -> None:
        tokens = step * self._run.training.batch_size * self._run.training.sequence_length
        self._telemetry.write({"kind": kind, "step": step, "tokens": tokens, **fields})

    def _store_identity(self) -> dict[str, str]:
        return {"corpus": self._store.corpus_hash, "tokenizer": self._store.tokenizer_hash}

    def _last_good_checkpoint(self) -> str:
        step = self._checkpoints.latest_step()
        if step is None:
            return "no checkpoint was saved yet"
        return f"the last good checkpoint is {self._folder.checkpoints / str(step)}"
