"""The table of a quality study: a line for every arm and way of reading it, over its seeds.

Differences are taken seed by seed, between runs with the same initial values and data, and their intervals are over
seeds: what another seed would give.
"""

import statistics
from collections.abc import Iterator, Sequence

from focus_jax.evaluation.report.outcome import Outcome
from focus_jax.evaluation.report.pairs import over_seeds
from focus_jax.studies.results import Row
from focus_jax.telemetry.table import interval, signed

MEASURED = ("readings", "seconds_per_step")
HEADINGS = (
    "arm",
    "seeds",
    "loss",
    "ppl",
    "beyond window",
    "kept",
    "s/step",
    "− dense",
    "95 %",
    "recovered",
    "95 %",
)


def table(rows: Sequence[Row]) -> str:
    """Markdown. `recovered` is (local − arm) / (local − dense) beyond the window; seconds of a step are those of the
    least disturbed run."""
    lines = [HEADINGS, *(tuple("---" for _ in HEADINGS),), *_lines(rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _lines(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    for name, changes in dict.fromkeys((row["name"], row["changes"]) for row in rows):
        same = [row for row in rows if (row["name"], row["changes"]) == (name, changes)]
        for reading in same[0]["readings"]:
            yield _line(rows, same, reading["name"])


def _line(rows: Sequence[Row], same: Sequence[Row], reading: str) -> Sequence[str]:
    of_seeds = {row["seed"]: _reading(row, reading) for row in same}
    losses = [read["loss"] for read in of_seeds.values()]
    changes = same[0]["changes"]
    dense, local = (_by_seed(rows, name, changes) for name in ("dense", "local"))
    differences = [read["loss"] - dense[seed]["loss"] for seed, read in of_seeds.items() if seed in dense]
    label = " ".join((same[0]["name"], changes)).strip()
    return (
        label if reading == "dense" else f"{label}: {reading}",
        str(len(same)),
        f"{statistics.mean(losses):.4f}",
        f"{statistics.mean(read['ppl'] for read in of_seeds.values()):.2f}",
        f"{statistics.mean(read['loss_beyond_window'] for read in of_seeds.values()):.4f}",
        f"{statistics.mean(read['kept_fraction'] for read in of_seeds.values()):.0%}",
        f"{min(row['seconds_per_step'] for row in same):.3f}",
        *_with_interval(over_seeds(differences) if differences and same[0]["name"] != "dense" else None, signed),
        *_with_interval(recovered(of_seeds, dense, local), lambda share: f"{share:.2f}".replace("-", "−")),
    )


def recovered(arm: dict[int, Row], dense: dict[int, Row], local: dict[int, Row]) -> Outcome | None:
    """Of what dense attention gains over the window alone, beyond the window; None where it gains nothing on average,
    for then there is nothing to recover."""
    seeds = sorted(arm.keys() & dense.keys() & local.keys())
    gains = [local[seed]["loss_beyond_window"] - dense[seed]["loss_beyond_window"] for seed in seeds]
    if not seeds or statistics.mean(gains) <= 0:
        return None
    return over_seeds(
        [
            (local[seed]["loss_beyond_window"] - arm[seed]["loss_beyond_window"]) / statistics.mean(gains)
            for seed in seeds
        ]
    )


def _with_interval(outcome: Outcome | None, shown) -> tuple[str, str]:
    if outcome is None:
        return "", ""
    return shown(outcome.delta_nats), "" if outcome.interval is None else interval(outcome.interval)


def _by_seed(rows: Sequence[Row], name: str, changes: str) -> dict[int, Row]:
    """As trained."""
    return {row["seed"]: row["readings"][0] for row in rows if (row["name"], row["changes"]) == (name, changes)}


def _reading(row: Row, name: str) -> Row:
    return next(reading for reading in row["readings"] if reading["name"] == name)
