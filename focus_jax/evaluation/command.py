"""What `eval.py` does: evaluates a checkpoint again, compares two runs, checks causality."""

import math
from pathlib import Path

import jax

from focus_jax import config
from focus_jax.config_loading import differences
from focus_jax.errors import UserError
from focus_jax.evaluation.causality import causality_report
from focus_jax.evaluation.checkpoint import CheckpointEvaluation, held_out_sample, previous_groups
from focus_jax.evaluation.readings import readings_of
from focus_jax.evaluation.trained import TrainedRun, load_trained
from focus_jax.parallel.mesh import batch_shards, first_devices
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.table import LEGEND, comparison_table

_CAUSALITY_SEQUENCES = 4


def evaluate(path: Path, run: config.Config, step: int | None, length: int | None, against: Path | None) -> list[dict]:
    """The rows of kind eval, compare and groups that training writes at this checkpoint; with `against`, Focus is this
    run's and dense is the other's, on this run's held-out sequences."""
    if against is not None:
        return _compare_runs(path, run, step, length, against)
    mesh = first_devices(run.mesh)
    trained = load_trained(RunFolder(path), run, step, mesh)
    sample = held_out_sample(run, trained.store, length or run.training.sequence_length)
    evaluation = CheckpointEvaluation(run, trained.store, sample, mesh)
    previous_LST = previous_groups(RunFolder(path), trained.step, readings_of(run)[0], sample)
    rows = evaluation.rows(evaluation.measure(trained.models), previous_LST)
    return [{**row, "step": trained.step, "tokens": trained.tokens} for row in rows]


def causality(path: Path, run: config.Config, step: int | None, length: int | None) -> tuple[list[dict], bool]:
    """One entry per model and reading, and whether all are causal."""
    if (length or run.training.sequence_length) < 2:
        raise UserError("--length: one token has no suffix to change; name at least 2")
    mesh = first_devices(run.mesh)
    trained = load_trained(RunFolder(path), run, step, mesh)
    sample = held_out_sample(run, trained.store, length or run.training.sequence_length)
    sequences = math.ceil(_CAUSALITY_SEQUENCES / batch_shards(mesh)) * batch_shards(mesh)
    with jax.set_mesh(mesh):
        return causality_report(run, trained.models, sample.inputs_ST[:sequences])


def table(rows: list[dict]) -> str:
    return f"step {rows[0]['step']:,}, {rows[0]['tokens']:,} tokens\n{comparison_table(rows)}\n{LEGEND}"


def _compare_runs(path: Path, run: config.Config, step: int | None, length: int | None, against: Path) -> list[dict]:
    mesh = first_devices(run.mesh)
    focus = load_trained(RunFolder(path), run, step, mesh, only="focus")
    dense = load_trained(RunFolder(against), RunFolder(against).read_config(), step, mesh, only="dense")
    _check_comparable(focus, dense, against)
    sample = held_out_sample(focus.run, focus.store, length or focus.run.training.sequence_length)
    evaluation = CheckpointEvaluation(focus.run, focus.store, sample, mesh)
    twin = CheckpointEvaluation(dense.run, focus.store, sample, mesh)
    measured = [*twin.measure(dense.models), *evaluation.measure(focus.models)]
    return [{**row, "step": focus.step, "tokens": focus.tokens} for row in evaluation.rows(measured, None)]


_MAY_DIFFER = (
    "model.attention_implementation",
    "training.microbatches",
    "training.remat",
    "training.scan_layers",
    "training.loss_chunks",
    "optimizer.router_lr_multiplier",
)
"""Between twins: what changes no result, and what a dense model does not have."""


def _check_comparable(focus: TrainedRun, dense: TrainedRun, against: Path) -> None:
    if focus.store.tokenizer_hash != dense.store.tokenizer_hash:
        raise UserError(f"{against}: its tokenizer is another one, so losses per token do not compare")
    if focus.tokens != dense.tokens:
        raise UserError(
            f"{against}: its checkpoint has seen {dense.tokens:,} tokens, this run's {focus.tokens:,}; "
            "name a --step at which both have seen the same"
        )
    different = [
        name
        for name, *_ in differences(focus.run, dense.run)
        if name.startswith(("model.", "training.", "optimizer.", "seed")) and name not in _MAY_DIFFER
    ]
    if different:
        raise UserError(f"{against}: is no twin of this run; they differ in {', '.join(different)}")
