"""Runs one step of a run again and says what is in it: `train.py --replay STEP`. Writes nothing into the run folder.

Letters: B batch, T tokens.
"""

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from focus_jax import config
from focus_jax.data.batches import Batch, Place, places, train_batches
from focus_jax.data.store import TokenStore
from focus_jax.data.tokenizer import Tokenizer
from focus_jax.errors import UserError
from focus_jax.parallel.batches import part_of_process, placed
from focus_jax.parallel.mesh import check_batch, make_mesh
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.metrics import Row, read_rows
from focus_jax.training.bad_updates import describe
from focus_jax.training.checkpoints import Checkpoints
from focus_jax.training.learner import Inspection, Learner, restore
from focus_jax.training.step import StepMetrics

SEQUENCES_SHOWN = ARRAYS_SHOWN = 5
TOKENS_SHOWN = 24


def replay(run: config.Config, folder: RunFolder, store: TokenStore, step: int) -> None:
    """Goes from the newest usable checkpoint before `step` through that step, and prints what it finds there.

    Raises UserError where the run has no such step.
    """
    if not 1 <= step <= run.training.steps:
        raise UserError(f"--replay: there is no step {step}; the run has steps 1 to {run.training.steps}")
    mesh = make_mesh(run.mesh)
    check_batch(run.training, mesh)
    learners = [Learner(name, config.of_model(run, name), mesh) for name in run.models]
    first_step = _restore_before(step, folder, learners, store)
    part, parts = part_of_process(mesh, run.training.batch_size)
    batches = train_batches(store, **_reading(run), first_step=first_step, part=part, parts=parts)
    for learner in learners:
        learner.compile()
    for number in range(first_step + 1, step):
        _step(learners, number, next(batches))
    rows = next(batches)
    inspections = [learner.inspect(step, *placed(mesh, rows)) for learner in learners]
    metrics = _step(learners, step, rows)
    batch = next(train_batches(store, **_reading(run), first_step=step - 1))
    recorded = [row for row in read_rows(folder.metrics) if row["step"] == step] if folder.metrics.exists() else []
    where = places(store, **_reading(run), number=step - 1)
    for learner, inspection, values in zip(learners, inspections, metrics, strict=True):
        print("\n".join(_findings(learner.name, inspection, values, recorded, batch, where, store.tokenizer())))


def _restore_before(step: int, folder: RunFolder, learners: Sequence[Learner], store: TokenStore) -> int:
    """Returns the number of steps done."""
    earlier = None
    if folder.is_begun():
        checkpoints = Checkpoints(folder.checkpoints)
        abstract = {learner.name: learner.abstract_state() for learner in learners}
        earlier, unusable = checkpoints.newest_usable(abstract, before=step)
        for checkpoint in unusable:
            print(f"{folder.checkpoints / str(checkpoint.step)}: {checkpoint.problem}; an earlier one is used")
        if earlier is not None:
            folder.check_store(restore(checkpoints, earlier, learners)["store"], store.identity)
        checkpoints.close()
    if earlier is None:
        for learner in learners:
            learner.initialise()
    start = "the beginning" if earlier is None else f"checkpoint {earlier}"
    print(f"step {step} again, from {start}")
    return earlier or 0


def _reading(run: config.Config) -> dict:
    training = run.training
    return {"sequence_length": training.sequence_length, "batch_size": training.batch_size, "seed": run.seed}


def _step(learners: Sequence[Learner], number: int, batch: Batch) -> list[StepMetrics]:
    arrays = placed(learners[0].mesh, batch)
    return [jax.device_get(learner.dispatch(number, *arrays).metrics) for learner in learners]


def _findings(
    model: config.ModelName,
    inspection: Inspection,
    metrics: StepMetrics,
    recorded: Sequence[Row],
    batch: Batch,
    where: Sequence[Place],
    tokenizer: Tokenizer,
) -> Iterator[str]:
    yield f"\n{model}: " + ("the update is applied" if metrics.applied else describe(model, metrics))
    yield (
        f"  loss {metrics.loss:.6g}, {metrics.deviations:+.1f} standard deviations from its recent mean; gradient norm "
        f"{metrics.grad_norm:.6g}; learning rate {metrics.lr:.4g}; {metrics.skipped} updates skipped so far"
    )
    yield from (_agreement(row, metrics) for row in recorded if row.get("model") == model and row.get("grad_norm"))
    nats_BT, gradient_norms = jax.device_get((inspection.nats_BT, inspection.gradient_norms))
    yield "  sequences by mean loss, and where it is largest:"
    means_B = np.where(np.isfinite(nats_BT).all(axis=1), nats_BT.mean(axis=1), np.inf)
    for row in np.argsort(-means_B)[:SEQUENCES_SHOWN]:
        worst = int(np.argmax(np.where(np.isfinite(nats_BT[row]), nats_BT[row], np.inf)))
        text = tokenizer.decode(batch.inputs_BT[row, max(0, worst + 1 - TOKENS_SHOWN) : worst + 1].tolist())
        yield (
            f"    {row}: window {where[row].window} of {where[row].store}: {nats_BT[row].mean():.4f}; "
            f"{nats_BT[row, worst]:.2f} after {text!r}"
        )
    yield "  gradients by norm:"
    by_size = sorted(gradient_norms.items(), key=lambda item: -item[1] if np.isfinite(item[1]) else -np.inf)
    yield from (f"    {name}: {norm:.6g}" for name, norm in by_size[:ARRAYS_SHOWN])


def _agreement(row: Row, metrics: StepMetrics) -> str:
    same = (row["loss"], row["grad_norm"]) == (float(metrics.loss), float(metrics.grad_norm))
    if same:
        return "  the same loss and gradient norm as recorded, to the last bit"
    return f"  recorded were loss {row['loss']} and gradient norm {row['grad_norm']}"
