"""A whole run: data, models, loop, evaluation at every checkpoint, telemetry. What `train.py` calls."""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from focus_jax import config
from focus_jax.accounting.peaks import peak
from focus_jax.data.batches import train_batches
from focus_jax.data.store import TokenStore
from focus_jax.errors import CONTINUE_ME, DISK_FULL, CannotWrite, UserError
from focus_jax.evaluation.checkpoint import (
    CheckpointEvaluation,
    held_out_sample,
    previous_groups,
    store_measurements,
)
from focus_jax.evaluation.evaluator import Measurement
from focus_jax.evaluation.group_health import troubles
from focus_jax.evaluation.readings import NamedReading
from focus_jax.evaluation.report import write_report
from focus_jax.model import attention_implementations
from focus_jax.parallel import hosts
from focus_jax.parallel.batches import part_of_process
from focus_jax.parallel.mesh import check_batch, make_mesh
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry import SilentTelemetry, Telemetry
from focus_jax.training.bad_updates import BadUpdates, Diverged
from focus_jax.training.checkpoints import Checkpoints, Unusable, complete_steps
from focus_jax.training.learner import Learner, restore
from focus_jax.training.loop import train
from focus_jax.training.step import StepMetrics
from focus_jax.training.stop import StopSignals
from focus_jax.training.trace import StepTrace


def pretrain(run: config.Config, folder: RunFolder, store: TokenStore) -> int:
    """Trains the models of a run to its end, or continues it; returns the exit code.

    Raises UserError where another process trains in the folder or no checkpoint can be gone on from, Diverged, and
    CannotWrite where the disk is full.
    """
    with contextlib.ExitStack() as stack, _room_on_disk(folder), StopSignals() as signals:
        hosts.on_first(lambda: _claim(run, folder, stack))
        if not folder.config.exists():
            raise UserError(f"run: {folder.path} is not there on {socket.gethostname()}; all hosts have to share it")
        with contextlib.closing(Checkpoints(folder.checkpoints, run.checkpoint)) as checkpoints:
            pretraining = _Pretraining(run, folder, store, checkpoints, signals)
            step = pretraining.begin()
            if step == run.training.steps:
                print(f"{folder.path} is finished; to train another run, name another folder with --run")
                return 0
            step = pretraining.train()
    if step < run.training.steps:
        print(f"stopped after step {step}; run the same command again to continue")
        return CONTINUE_ME
    print(f"report: {folder.path / 'report.html'}")
    return 0


def _claim(run: config.Config, folder: RunFolder, stack: contextlib.ExitStack) -> None:
    stack.enter_context(folder.alone())
    folder.write_config(run)


class _Pretraining:
    """A run that is being trained, from its beginning or its newest usable checkpoint; the loop's Occasions."""

    def __init__(
        self,
        run: config.Config,
        folder: RunFolder,
        store: TokenStore,
        checkpoints: Checkpoints,
        signals: StopSignals,
    ):
        self._run = run
        self._folder = folder
        self._store = store
        self._checkpoints = checkpoints
        self._signals = signals
        self._vote = hosts.Vote()
        self._due_by_time = False
        self._mesh = make_mesh(run.mesh)
        check_batch(run.training, self._mesh)
        self._learners = [Learner(name, config.of_model(run, name), self._mesh) for name in run.models]
        self._implementations = attention_implementations(run)
        self._first_step = 0
        self._unusable: list[Unusable] = []

    def begin(self) -> int:
        """Initial states, or those of the newest usable checkpoint. Returns the number of steps done."""
        abstract = {learner.name: learner.abstract_state() for learner in self._learners}
        step, self._unusable = hosts.on_first(lambda: self._checkpoints.newest_usable(abstract))
        if step is None:
            self._refuse_to_begin_anew()
            for learner in self._learners:
                learner.initialise()
        else:
            progress = restore(self._checkpoints, step, self._learners)
            self._folder.check_store(progress["store"], self._store.identity)
        self._first_step = step or 0
        return self._first_step

    def train(self) -> int:
        """Returns the number of steps done, fewer than all where a signal asked for a stop."""
        profile = self._run.profile if hosts.is_first() else config.Profile()
        self._trace = StepTrace(profile, self._folder.profile, self._first_step)
        metrics_lost = bool(self._first_step) and not self._folder.metrics.exists()
        self._telemetry = hosts.first_else(
            lambda: Telemetry(self._run, self._folder.path, resumed_step=self._first_step or None), SilentTelemetry
        )
        try:
            if metrics_lost:
                self._event(self._first_step, "lost_metrics", f"{self._folder.metrics} was gone, with all rows before")
            hosts.on_first(lambda: self._folder.forget_evaluations_after(self._first_step))
            return self._train()
        except Diverged as error:
            self._checkpoints.wait()
            raise Diverged(f"{error}; {_last_good_checkpoint(self._folder)}") from None
        finally:
            self._telemetry.close()
            if hosts.is_first():
                write_report(self._folder.path)

    def _train(self) -> int:
        self._set_aside_unusable()
        self._tell_start()
        self._bad_updates = BadUpdates(self._run, self._store, self._event)
        sample = held_out_sample(self._run, self._store, self._run.training.sequence_length)
        self._evaluation = CheckpointEvaluation(self._run, self._store, sample, self._mesh)
        for learner in self._learners:
            learner.compile()
        part, parts = part_of_process(self._mesh, self._run.training.batch_size)
        batches = train_batches(
            self._store,
            sequence_length=self._run.training.sequence_length,
            batch_size=self._run.training.batch_size,
            seed=self._run.seed,
            first_step=self._first_step,
            part=part,
            parts=parts,
        )
        self._saved_at = time.monotonic()
        with contextlib.closing(self._trace):
            step = train(
                self._run,
                self._mesh,
                self._learners,
                batches,
                first_step=self._first_step,
                log=self._telemetry,
                occasions=self,
                trace=self._trace,
                peak=self._peak,
            )
        self._tell_committed(self._checkpoints.wait())
        return step

    def stop_requested(self) -> bool:
        minutes = self._run.checkpoint.every_minutes
        by_time = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        # Signals and clocks differ from process to process, and all have to do the same after the same step.
        stop, self._due_by_time = self._vote.any(self._signals.requested, by_time)
        return stop

    def checkpoint_is_due(self, step: int) -> bool:
        self._tell_committed(self._checkpoints.committed())
        return self._due_by_time or self._is_evaluated(step)

    def at_checkpoint(self, step: int) -> None:
        # Evaluated before it is saved: a run that is continued from a checkpoint has all rows up to it.
        if self._is_evaluated(step):
            self._evaluate(step)
        self._telemetry.checkpoint_done(step)
        self._tell_committed(self._checkpoints.wait())
        self._checkpoints.save(
            step,
            {learner.name: learner.state for learner in self._learners},
            {
                "seconds": {learner.name: learner.seconds for learner in self._learners},
                "store": self._store.identity,
            },
        )
        self._saved_at = time.monotonic()
        self._vote.forget()

    def bad_update(self, model: config.ModelName, step: int, metrics: StepMetrics) -> None:
        self._bad_updates.left_out(model, step, metrics)

    def _is_evaluated(self, step: int) -> bool:
        return step % self._run.checkpoint.every == 0 or step == self._run.training.steps

    def _evaluate(self, step: int) -> None:
        models = {learner.name: (learner.state.params, learner.state.carried) for learner in self._learners}
        measured = self._evaluation.measure(models)
        if hosts.is_first():
            self._tell_evaluation(step, measured)

    def _tell_evaluation(self, step: int, measured: Sequence[Measurement]) -> None:
        focus = next((m for m in measured if m.model == "focus"), None)
        sample = self._evaluation.sample
        previous_LST = None if focus is None else self._previous_groups(step, focus.reading)
        for row in self._evaluation.rows(measured, previous_LST):
            self._write(step, **row)
            if row["kind"] == "groups":
                for trouble in troubles(row):
                    self._event(step, **trouble._asdict())
        store_measurements(self._folder, step, measured, sample)

    def _previous_groups(self, step: int, reading: NamedReading) -> np.ndarray | None:
        try:
            return previous_groups(self._folder, step, reading, self._evaluation.sample)
        except UserError as error:
            self._event(step, "unusable_evaluation", f"{error}: which tokens changed group since is not known")
            return None

    def _refuse_to_begin_anew(self) -> None:
        """Only a checkpoint that was never completed may be all there is: that of a run killed during its first."""
        for checkpoint in self._unusable:
            if checkpoint.complete:
                raise UserError(
                    f"{self._named(checkpoint)}, and there is no other to go on from; bring the file back, or start "
                    "another run with --run"
                )

    def _set_aside_unusable(self) -> None:
        """Makes room for the checkpoints that are to come, and says what the run could not go on from."""
        first = self._first_step
        goes_on = f"the run goes on from checkpoint {first}" if first else "the run begins anew"
        for checkpoint in self._unusable:
            aside = self._checkpoints.set_aside(checkpoint.step)
            self._event(
                first, "unusable_checkpoint", f"{self._named(checkpoint)}; it is now {aside.name}, and {goes_on}"
            )

    def _tell_start(self) -> None:
        """Says, and records, on what and by which attention code the run goes on."""
        what = "resumed" if self._first_step else "started"
        device = jax.devices()[0].device_kind
        self._peak = peak(device, self._mesh.size, self._run.model.compute_dtype)
        chosen = ", ".join(f"{operation} {name}" for operation, name in self._implementations.items())
        self._event(
            self._first_step,
            what,
            f"{what} on {device}; attention: {chosen}; utilisation (mfu) is a share of {self._peak.source}",
            device=device,
            peak_flops_per_second=self._peak.flops_per_second,
            jax=jax.__version__,
            attention=self._implementations,
        )

    def _tell_committed(self, step: int | None) -> None:
        if step is not None:
            self._telemetry.checkpoint_saved(step, self._folder.checkpoints / str(step))

    def _event(self, step: int, name: str, message: str, **fields: Any) -> None:
        self._write(step, kind="event", name=name, message=message, **fields)

    def _write(self, step: int, *, kind: str, **fields: Any) -> None:
        tokens = step * self._run.training.batch_size * self._run.training.sequence_length
        self._telemetry.write({"kind": kind, "step": step, "tokens": tokens, **fields})

    def _named(self, checkpoint: Unusable) -> str:
        return f"{self._folder.checkpoints / str(checkpoint.step)}: {checkpoint.problem}"


@contextlib.contextmanager
def _room_on_disk(folder: RunFolder) -> Iterator[None]:
    """Says once that something could not be written, and from where the run will go on."""
    try:
        yield
    except (CannotWrite, OSError) as error:
        what = str(error)
        if isinstance(error, OSError):
            if error.errno not in DISK_FULL:
                raise
            what = f"{error.filename or folder.path}: {error.strerror}"
        raise CannotWrite(
            f"{what}; {_last_good_checkpoint(folder)}; make room and run the same command again to go on from there"
        ) from None


def _last_good_checkpoint(folder: RunFolder) -> str:
    steps = complete_steps(folder.checkpoints)
    return (
        f"the last good checkpoint is {folder.checkpoints / str(steps[-1])}" if steps else "no checkpoint was saved yet"
    )
