"""Several runs put together: which Focus and dense models are twins, and what seeds say about the method."""

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from focus_jax.config import Config, dense_twin
from focus_jax.errors import UserError
from focus_jax.evaluation import stored
from focus_jax.evaluation.measures import Sample, estimate
from focus_jax.evaluation.report.outcome import Outcome
from focus_jax.evaluation.report.record import History, RunRecord
from focus_jax.run_folder import RunFolder
from focus_jax.telemetry.experiment import any_seed, computed, differing_fields
from focus_jax.telemetry.metrics import Row
from focus_jax.telemetry.readings import LoggedReading


@dataclass(frozen=True)
class Pair:
    """A Focus model and its dense twin: of one run, or of two that differ in nothing else."""

    focus: RunRecord
    dense: RunRecord

    @property
    def seed(self) -> int:
        return self.focus.config.seed

    @property
    def name(self) -> str:
        return self.focus.name if self.focus is self.dense else f"{self.focus.name} and {self.dense.name}"

    def comparisons(self) -> dict[LoggedReading, History]:
        """As RunRecord.comparisons; of twins trained apart from the stored losses of their held-out tokens.

        Raises UserError where those are of different text, or damaged.
        """
        if self.focus is self.dense:
            return self.focus.comparisons()
        dense = {reading: rows for reading, rows in self.dense.evaluations().items() if reading.model == "dense"}
        compared = {
            reading: [
                self._compare(reading, row, dense_reading, dense_row)
                for dense_reading, dense_rows in dense.items()
                for row, dense_row in _at_the_same_steps(rows, dense_rows)
                if row["loss"] is not None and dense_row["loss"] is not None
            ]
            for reading, rows in self.focus.evaluations().items()
            if reading.model == "focus"
        }
        return {reading: history for reading, history in compared.items() if history}

    def _compare(self, reading: LoggedReading, focus: Row, dense_reading: LoggedReading, dense: Row) -> Row:
        """A `compare` row; without an interval where single losses were not kept."""
        row = {"step": focus["step"], "tokens": focus["tokens"]}
        paths = (
            RunFolder(self.focus.folder).token_losses(focus["step"], reading.key),
            RunFolder(self.dense.folder).token_losses(dense["step"], dense_reading.key),
        )
        if not all(path.exists() for path in paths):
            return row | {"delta_nats": focus["loss"] - dense["loss"], "delta_ci95": None}
        ours, theirs = map(stored.load, paths)
        if ours["text_sha256"] != theirs["text_sha256"]:
            raise UserError(
                f"{self.focus.folder} and {self.dense.folder} were evaluated on different held-out text; "
                "train or evaluate both with the same evaluation.sequences and data"
            )
        targets_ST = np.where(ours["valid_ST"], 0, -1)
        sample = Sample(targets_ST, targets_ST, ours["documents_ST"])
        delta = estimate(ours["nats_ST"] - theirs["nats_ST"], sample)
        return row | {"delta_nats": delta.mean, "delta_ci95": delta.ci95}


@dataclass(frozen=True)
class Experiment:
    """Pairs that differ in their seed alone."""

    pairs: Sequence[Pair]

    @property
    def config(self) -> Config:
        return self.pairs[0].focus.config

    def last_comparisons(self) -> dict[LoggedReading, list[Row]]:
        """The newest comparison of every pair, for the readings that all pairs have, at the step that all reached."""
        by_pair = [pair.comparisons() for pair in self.pairs]
        shared = [reading for reading in by_pair[0] if all(reading in compared for compared in by_pair)]
        last: dict[LoggedReading, list[Row]] = {}
        for reading in shared:
            steps = set.intersection(*({row["step"] for row in compared[reading]} for compared in by_pair))
            if steps:
                last[reading] = [
                    next(row for row in compared[reading] if row["step"] == max(steps)) for compared in by_pair
                ]
        return last


def pairs_of(runs: Iterable[RunRecord]) -> list[Pair]:
    """Every Focus model with its dense twin: of its own run where that has one, else of the run that differs from it in
    the attention alone."""
    runs = list(runs)
    dense_runs = {computed(dense_twin(run.config)): run for run in runs if _has(run, "dense")}
    pairs = []
    for run in runs:
        if _has(run, "focus"):
            dense = run if _has(run, "dense") else dense_runs.get(computed(dense_twin(run.config)))
            if dense is not None:
                pairs.append(Pair(run, dense))
    return pairs


def experiments_of(pairs: Iterable[Pair]) -> list[Experiment]:
    """Raises UserError where two pairs have the same seed too: they are no further evidence."""
    by_config: defaultdict[Hashable, list[Pair]] = defaultdict(list)
    for pair in pairs:
        same = by_config[any_seed(pair.focus.config)]
        for other in same:
            if other.seed == pair.seed:
                raise UserError(
                    f"{other.name} and {pair.name} are the same models with the same seed {pair.seed}; name one of them"
                )
        same.append(pair)
    return [Experiment(sorted(group, key=lambda pair: pair.seed)) for group in by_config.values()]


def names_of(experiments: Sequence[Experiment]) -> list[str]:
    """What tells each experiment from the others: the fields in which their configs differ."""
    configs = [experiment.config for experiment in experiments]
    fields = {name for pair in itertools.combinations(configs, 2) for name in differing_fields(*pair)}
    return [", ".join(f"{name}={_field(config, name)}" for name in sorted(fields)) for config in configs]


def over_seeds(deltas: Sequence[float]) -> Outcome:
    """Mean over seeds with Student's t interval: what another seed would give."""
    mean = math.fsum(deltas) / len(deltas)
    if len(deltas) < 2:
        return Outcome(mean, None)
    spread = stats.t.ppf(0.975, len(deltas) - 1) * np.std(deltas, ddof=1) / math.sqrt(len(deltas))
    return Outcome(mean, (mean - spread, mean + spread))


def _at_the_same_steps(ours: History, theirs: History) -> Iterator[tuple[Row, Row]]:
    by_step = {row["step"]: row for row in theirs}
    yield from ((row, by_step[row["step"]]) for row in ours if row["step"] in by_step)


def _has(run: RunRecord, model: str) -> bool:
    return model in run.config.models


def _field(config: Config, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
