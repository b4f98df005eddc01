"""metrics.jsonl, the source of truth of a run: one JSON object a line.

Every row has `kind`, `step` (optimizer steps done) and `tokens` (training tokens seen by each model). The other fields
of each kind:

`train`    model, loss, router_loss (nats of a probe row, summed over layers; where routers learn from probes),
           grad_norm (of everything but the routers), lr, skipped (updates left out so far), seconds (of this model's
           steps so far, evaluation excluded), tokens_per_second, data_seconds (that the loop waited for each batch,
           mean since the row before), kept_fraction (pairs computed / dense pairs, mean over layers), mfu (model FLOP
           utilisation: what the dense twin would compute for these tokens, as a share of the peak that the start event
           states), mfu_executed (the same of what is computed); one row per model.
`eval`     model, routing ("none" | "soft" | "hard"), top_k, gate, causal, loss (nats per token), ppl, bits_per_byte,
           stderr, kept_fraction (pairs executed / dense pairs), loss_within_window, loss_beyond_window,
           loss_by_position ([first position, loss] bins), sequences, valid_tokens; one row per model and reading.
`compare`  routing, top_k, gate, causal, delta_nats (focus − dense on the same sequences), delta_ci95 ([low, high], or
           null with too few documents), delta_within_window, delta_beyond_window; one row per reading of Focus.
`groups`   layer, load (share of each group), dominance (mean largest share of a sequence), entropy, confidence,
           switch_rate (null at the first checkpoint); one row per Focus layer.
`tokens`   layer, group, top (list of [token, share] pairs), class (the group's most frequent class of tokens), purity
           (its share of the group), purity_by_chance (of a random grouping of the same sizes).
`event`    what happened to the run itself: name, message and fields of its own. Names: started, resumed,
           unusable_checkpoint, unusable_evaluation, lost_metrics; not_finite, loss_spike (model, loss, grad_norm,
           deviations, skipped, and sequences: store and window of each sequence of the batch); starved_group,
           dominant_group (layer, shares).
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from focus_jax.errors import UserError

Row = dict[str, Any]

_FIELDS = {
    "train": {"model", "loss", "grad_norm", "lr", "seconds", "tokens_per_second"},
    "eval": {"model", "routing", "loss", "ppl"},
    "compare": {"routing", "delta_nats", "delta_ci95"},
    "groups": {"layer", "load", "dominance", "entropy"},
    "tokens": {"layer", "group", "top"},
    "event": {"name", "message"},
}
"""Without which a row cannot be used."""


class MetricsFile:
    """Appends rows to metrics.jsonl; a row is on its way to the disk when `write` returns.

    Values that are not finite are written as null, since JSON has no other name for them.
    """

    def __init__(self, path: Path):
        self._file = path.open("ab")

    def write(self, row: Row) -> None:
        line = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Waits until all rows are on the disk, so that they survive what a checkpoint survives."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl, also of a run that is still being written.

    Raises UserError where the file is missing or damaged other than by a torn last line.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: {path.parent} is not the folder of a run, or has logged nothing yet")
    return [row for _, row in _complete_lines(path)]


def cut_back(path: Path, step: int) -> None:
    """Drops the rows after `step`, and a last line torn by a kill; the bytes of all other rows stay as they are.

    Atomic: a kill leaves the old file or the new one. Does nothing where there is no file. Raises UserError where the
    file is damaged other than by a torn last line.
    """
    if not path.exists():
        return
    kept = b"".join(line + b"\n" for line, row in _complete_lines(path) if row["step"] <= step)
    if kept == path.read_bytes():
        return
    partial = path.with_suffix(".jsonl.partial")
    with partial.open("wb") as file:
        file.write(kept)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _complete_lines(path: Path) -> list[tuple[bytes, Row]]:
    lines = path.read_bytes().split(b"\n")
    last = len(lines) if lines[-1] else len(lines) - 1
    complete = []
    for number, line in enumerate(lines[:last], start=1):
        row = _parsed(line)
        if row is not None:
            complete.append((line, row))
        elif number < last:
            raise UserError(f"{path}, line {number}: not a row of metrics; the file is damaged: remove that line")
    return complete


def _parsed(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if _is_row(row) else None


def _is_row(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or row["kind"] not in _FIELDS:
        return False
    counted = all(isinstance(row.get(count), int | float) for count in ("step", "tokens"))
    return counted and _FIELDS[row["kind"]] <= row.keys()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
