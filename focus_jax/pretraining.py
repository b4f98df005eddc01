"""A whole run: data, models, loop, evaluation at every checkpoint, telemetry. What `train.py` calls."""

import shutil
from collections.abc import Sequence

import jax

from focus_jax import config, ops
from focus_jax.data.batches import train_batches
from focus_jax.data.store import TokenStore
from focus_jax.errors import UserError
from focus_jax.evaluation.checkpoint import CheckpointEvaluation, held_out_sample, previous_groups, store_measurements
from focus_jax.evaluation.report import write_report
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
    if checkpoints.latest_step() == run.training.steps:
        checkpoints.close()
        print(f"{folder.path} is finished; to train another run, name another folder with --run")
        return 0
    learners = [Learner(name, config.of_model(run, name)) for name in run.models]
    first_step = _begin(learners, checkpoints, folder, store)
    telemetry = Telemetry(run, folder.path, resumed_step=first_step or None)
    evaluation = CheckpointEvaluation(run, store, held_out_sample(run, store, run.training.sequence_length))
    telemetry.write(_start_event(run, first_step))
    for learner in learners:
        learner.compile()

    def at_checkpoint(step: int) -> None:
        # Evaluated before it is saved: a run that is continued from a checkpoint has all rows up to it.
        if step % run.checkpoint.every == 0 or step == run.training.steps:
            _evaluate(run, folder, evaluation, learners, telemetry, step)
        checkpoints.save(step, {learner.name: learner.state for learner in learners}, _progress(learners, store))

    try:
        with StopSignals() as signals:
            step = train(
                run,
                learners,
                train_batches(
                    store,
                    sequence_length=run.training.sequence_length,
                    batch_size=run.training.batch_size,
                    seed=run.seed,
                    first_step=first_step,
                ),
                first_step=first_step,
                log=telemetry,
                at_checkpoint=at_checkpoint,
                stop_requested=lambda: signals.requested,
            )
    except Diverged as error:
        good = checkpoints.latest_step()
        where = (
            "no checkpoint was saved yet"
            if good is None
            else f"the last good checkpoint is {folder.checkpoints / str(good)}"
        )
        raise Diverged(f"{error}; {where}") from None
    finally:
        checkpoints.close()
        telemetry.close()
        write_report(folder.path)
    if step < run.training.steps:
        print(f"stopped after step {step}; run the same command again to continue")
        return CONTINUE_ME
    print(f"report: {folder.path / 'report.html'}")
    return 0


def _begin(learners: Sequence[Learner], checkpoints: Checkpoints, folder: RunFolder, store: TokenStore) -> int:
    """Initial states, or those of the newest checkpoint. Returns the number of updates done."""
    step = checkpoints.latest_step()
    if step is None:
        for learner in learners:
            learner.initialise()
        step = 0
    else:
        abstract = {str(learner.name): on_default_device(learner.abstract_state()) for learner in learners}
        states, progress = checkpoints.restore(step, abstract)
        if progress["store"] != _identity(store):
            raise UserError(
                f"data.store: {folder.path} was trained on another token store ({progress['store']}); "
                f"this one is {_identity(store)}; bring the old one back, or start a new run"
            )
        for learner in learners:
            learner.state = states[learner.name]
            learner.seconds = progress["seconds"][learner.name]
    for later in [s for s in folder.evaluated_steps() if s > step]:
        shutil.rmtree(folder.evaluation(later))
    return step


def _evaluate(
    run: config.Config,
    folder: RunFolder,
    evaluation: CheckpointEvaluation,
    learners: Sequence[Learner],
    telemetry: Telemetry,
    step: int,
) -> None:
    measured = evaluation.measure(
        {learner.name: (learner.state.params, learner.state.potentials) for learner in learners}
    )
    focus = next((m for m in measured if m.model == "focus"), None)
    previous_LST = None if focus is None else previous_groups(folder, step, focus.reading, evaluation.sample)
    for row in evaluation.rows(measured, previous_LST):
        telemetry.write({"kind": row["kind"], "step": step, "tokens": _tokens(run, step), **row})
    store_measurements(folder, step, measured, evaluation.sample)
    telemetry.checkpoint_done(step)


def _progress(learners: Sequence[Learner], store: TokenStore) -> dict:
    return {"seconds": {learner.name: learner.seconds for learner in learners}, "store": _identity(store)}


def _identity(store: TokenStore) -> dict:
    return {"corpus": store.corpus_hash, "tokenizer": store.tokenizer_hash}


def _start_event(run: config.Config, step: int) -> dict:
    """Says, and records, on what and by which attention code the run goes on."""
    wanted = run.model.attention_implementation
    chosen = {operation: ops.resolve(operation, wanted) for operation in ("dense", "gated", "routed")}
    device = jax.devices()[0].device_kind
    return {
        "kind": "event",
        "step": step,
        "tokens": _tokens(run, step),
        "name": "resumed" if step else "started",
        "message": f"{'resumed' if step else 'started'} on {device}; attention: "
        + ", ".join(f"{operation} {implementation}" for operation, implementation in chosen.items()),
        "device": device,
        "jax": jax.__version__,
        "attention": chosen,
    }


def _tokens(run: config.Config, step: int) -> int:
    return step * run.training.batch_size * run.training.sequence_length
