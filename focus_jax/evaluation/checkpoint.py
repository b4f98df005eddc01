"""Evaluates the models of a run at one checkpoint: every model and reading on the same held-out sequences."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from focus_jax import config
from focus_jax.data.batches import evaluation_batches
from focus_jax.data.store import TokenStore
from focus_jax.evaluation import stored
from focus_jax.evaluation.evaluator import Evaluator, Measurement
from focus_jax.evaluation.measures import Sample
from focus_jax.evaluation.readings import NamedReading, readings_of
from focus_jax.evaluation.rows import compare_row, eval_row, groups_rows, tokens_rows
from focus_jax.model import focus_layers
from focus_jax.run_folder import RunFolder

Models = Mapping[config.ModelName, tuple[Any, Any]]
"""Parameters and carried state of each model."""


class CheckpointEvaluation:
    """Built once for a run; `rows` evaluates one state of its models."""

    def __init__(self, run: config.Config, store: TokenStore, sample: Sample, mesh: Mesh):
        self._run = run
        self.sample = sample
        self._bytes_per_token = store.validation.bytes / store.validation.tokens
        self._tokenizer = store.tokenizer()
        self._window = run.attention.window if isinstance(run.attention, config.Focus) else None
        self._evaluators = {
            name: Evaluator(name, config.of_model(run, name), self.sample, run.evaluation.batch_size, mesh)
            for name in run.models
        }

    def measure(self, models: Models) -> list[Measurement]:
        """Dense first, so that it heads the table."""
        return [
            self._evaluators[name].measure(*models[name], reading)
            for name in sorted(models)
            for reading in readings_of(config.of_model(self._run, name))
        ]

    def rows(self, measured: Sequence[Measurement], previous_LST: np.ndarray | None) -> list[dict]:
        """eval rows, compare rows where both twins are there, then groups and tokens rows of Focus as trained."""
        rows = [eval_row(m, self.sample, self._bytes_per_token, self._window) for m in measured]
        dense = next((m for m in measured if m.model == "dense"), None)
        focus = [m for m in measured if m.model == "focus"]
        if dense is not None:
            rows += [compare_row(m, dense, self.sample, self._window) for m in focus]
        if focus and focus[0].groups is not None:
            layers = focus_layers(self._run)
            rows += groups_rows(focus[0].groups, layers, previous_LST)
            rows += tokens_rows(focus[0].groups, layers, self.sample, self._tokenizer.decode)
        return rows


def held_out_sample(run: config.Config, store: TokenStore, sequence_length: int) -> Sample:
    batches = evaluation_batches(
        store,
        sequence_length=sequence_length,
        sequences=run.evaluation.sequences,
        batch_size=run.evaluation.batch_size,
        seed=run.seed,
    )
    inputs, targets, documents = (
        np.concatenate(parts)[: run.evaluation.sequences] for parts in zip(*batches, strict=True)
    )
    return Sample(inputs, targets, documents)


def store_measurements(folder: RunFolder, step: int, measured: Iterable[Measurement], sample: Sample) -> None:
    """Losses of every held-out token and best groups, so that runs can be paired and groups be followed later."""
    folder.evaluation(step).mkdir(parents=True, exist_ok=True)
    for m in measured:
        arrays = {"nats_ST": m.nats_ST, "valid_ST": sample.valid_ST, "documents_ST": sample.documents_ST}
        if m.groups is not None:
            arrays["best_group_LST"] = m.groups.best_LST
        path = folder.token_losses(step, m.reading.logged(m.model).key)
        stored.save(path, text_sha256=np.array(_text_hash(sample)), **arrays)


def previous_groups(folder: RunFolder, step: int, reading: NamedReading, sample: Sample) -> np.ndarray | None:
    """Best groups (L, S, T) of Focus at the newest evaluation of the same text before `step`, None if there is none.

    Raises UserError where its file is damaged.
    """
    for earlier in reversed([s for s in folder.evaluated_steps() if s < step]):
        path = folder.token_losses(earlier, reading.logged("focus").key)
        if path.exists():
            arrays = stored.load(path)
            if arrays["text_sha256"] == _text_hash(sample):
                return arrays["best_group_LST"]
    return None


def _text_hash(sample: Sample) -> str:
    return hashlib.sha256(sample.inputs_ST.tobytes() + sample.targets_ST.tobytes()).hexdigest()
