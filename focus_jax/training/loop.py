"""The training loop: every model of the run steps on the same batches."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from focus_jax import config
from focus_jax.accounting import flops
from focus_jax.accounting.peaks import Peak
from focus_jax.data.batches import Batch
from focus_jax.parallel.batches import placed
from focus_jax.training.learner import Dispatched, Learner
from focus_jax.training.step import StepMetrics
from focus_jax.training.trace import StepTrace


class Log(Protocol):
    """What the loop needs of telemetry."""

    def write(self, row: dict) -> None: ...

    def progress(self, step: int) -> None: ...


class Occasions(Protocol):
    """What a run does beside stepping."""

    def stop_requested(self) -> bool: ...

    def checkpoint_is_due(self, step: int) -> bool:
        """Asked after every step."""
        ...

    def at_checkpoint(self, step: int) -> None:
        """Called with no step in flight: when a checkpoint is due and when the loop ends."""
        ...

    def bad_update(self, model: config.ModelName, step: int, metrics: StepMetrics) -> None:
        """An update was left out. Raises what is to end the run."""
        ...


def train(
    run: config.Config,
    mesh: Mesh,
    learners: Sequence[Learner],
    batches: Iterator[Batch],
    *,
    first_step: int,
    log: Log,
    occasions: Occasions,
    trace: StepTrace,
    peak: Peak,
) -> int:
    """Trains from `first_step` steps done to the end of the run, or until a stop is requested.

    A step is dispatched before the metrics of the one before are read, so the host never keeps the device waiting.

    Returns the number of steps done.
    """
    reader = _Reader(run, learners, first_step, log, occasions, peak)
    in_flight: _InFlight | None = None
    data_seconds = 0.0
    step = first_step
    while step < run.training.steps:
        step += 1
        if trace.is_edge(step):
            reader.read(in_flight)
            in_flight = None
            trace.at_edge()
        with jax.transfer_guard("disallow"), jax.profiler.StepTraceAnnotation("train", step_num=step):
            asked_at = time.perf_counter()
            batch = next(batches)
            data_seconds += time.perf_counter() - asked_at
            inputs_BT, targets_BT = placed(mesh, batch)
            for learner in learners:
                dispatched = learner.dispatch(step, inputs_BT, targets_BT)
                reader.read(in_flight)
                in_flight = _InFlight(dispatched, data_seconds)
        stopping = occasions.stop_requested()
        if stopping or occasions.checkpoint_is_due(step):
            reader.read(in_flight)
            in_flight = None
            occasions.at_checkpoint(step)
        if stopping:
            break
    return step


class _InFlight(NamedTuple):
    """A step whose metrics have not been read."""

    dispatched: Dispatched
    data_seconds: float
    """Time that this process has waited for data, up to this step."""


class _Logged(NamedTuple):
    """Where a model stood at its last row."""

    step: int
    seconds: float
    data_seconds: float


class _Reader:
    """Waits for dispatched steps, in order, and tells what came of them."""

    def __init__(
        self,
        run: config.Config,
        learners: Sequence[Learner],
        first_step: int,
        log: Log,
        occasions: Occasions,
        peak: Peak,
    ):
        self._peak = peak
        self._run = run
        self._log = log
        self._occasions = occasions
        self._last = learners[-1]
        self._tokens_per_step = run.training.batch_size * run.training.sequence_length
        self._ready_at = 0.0
        self._logged = {learner.name: _Logged(first_step, learner.seconds, 0.0) for learner in learners}

    def read(self, in_flight: _InFlight | None) -> None:
        if in_flight is None:
            return
        learner, step, metrics, dispatched_at = in_flight.dispatched
        jax.block_until_ready(metrics)
        now = time.perf_counter()
        # The device was idle where nothing had been dispatched: during evaluation, or when data came late.
        learner.seconds += now - max(self._ready_at, dispatched_at)
        self._ready_at = now
        values = jax.device_get(metrics)
        if not values.applied:
            self._occasions.bad_update(learner.name, step, values)
        if step % self._run.telemetry.log_every == 0 or step == self._run.training.steps:
            self._write(learner, step, values, in_flight.data_seconds)
        if learner is self._last:
            self._log.progress(step)

    def _write(self, learner: Learner, step: int, values: StepMetrics, data_seconds: float) -> None:
        logged = self._logged[learner.name]
        self._logged[learner.name] = _Logged(step, learner.seconds, data_seconds)
        steps = step - logged.step
        tokens_per_second = steps * self._tokens_per_step / (learner.seconds - logged.seconds)
        share = tokens_per_second / self._peak.flops_per_second
        self._log.write(
            {
                "kind": "train",
                "step": step,
                "tokens": step * self._tokens_per_step,
                "model": learner.name,
                "loss": float(values.loss),
                **({} if values.router_loss is None else {"router_loss": float(values.router_loss)}),
                "grad_norm": float(values.grad_norm),
                "lr": float(values.lr),
                "skipped": int(values.skipped),
                "seconds": learner.seconds,
                "tokens_per_second": tokens_per_second,
                "data_seconds": (data_seconds - logged.data_seconds) / steps,
                "kept_fraction": float(values.kept_fraction),
                "mfu": share * flops.dense_equivalent(learner.run),
                "mfu_executed": share * flops.executed(learner.run, float(values.kept_fraction)),
            }
        )
