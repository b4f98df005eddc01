"""What trained models read beyond the window, and how much of it their groups keep.

    python -m focus_jax.studies.quality.distant --preset small --runs runs/quality --results results/distant.jsonl

Some positions of each held-out sequence read densely, as probe rows do. Of the attention that they give to distant
keys, mean over heads, the table says which part lies on the keys that their groups keep, on as many of the nearest
distant keys, and on as many of those read most. Groups that know nothing keep the same part of it as of the pairs. A
model without groups is asked about as many keys as even groups would keep. What the results file holds is not done
again.

Letters: B batch, S keys, P rows.
"""

import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from focus_jax import routing
from focus_jax.config import Config, Focus
from focus_jax.errors import UserError, exit_code
from focus_jax.evaluation.checkpoint import held_out_sample
from focus_jax.evaluation.trained import TrainedRun, load_trained
from focus_jax.model import Decoder, as_trained
from focus_jax.ops import probe_attention
from focus_jax.parallel.mesh import first_devices
from focus_jax.run_folder import RunFolder
from focus_jax.step_memory import keep_step_memory
from focus_jax.studies.quality.arms import IDENTITY, Arm, arms, attention_of, config_of
from focus_jax.studies.quality.options import parser
from focus_jax.studies.quality.presets import PRESETS
from focus_jax.studies.results import Results, Row
from focus_jax.studies.variants import changed
from focus_jax.training.state import graph_of, merge

ROWS = 64
"""Of each sequence; the first eighth of it has too few distant keys to choose among."""


class Distant(NamedTuple):
    """Of one layer, sums over rows."""

    read: jax.Array
    """Attention to distant keys."""
    kept: jax.Array | None
    """Of it to those that are kept, None without groups."""
    nearest: jax.Array
    most_read: jax.Array
    pairs_kept: jax.Array
    """Part of the distant keys that is kept."""


def row_of(arm: Arm, folder: Path) -> Row:
    """Of a trained arm; every list has an entry for each layer."""
    run = RunFolder(Path(config_of(arm, folder).run)).read_config()
    attention = attention_of(changed(PRESETS[arm.preset](folder), arm.changes))
    trained = load_trained(RunFolder(Path(run.run)), run, run.training.steps, first_devices(run.mesh))
    layers = _layers(run, trained, attention)
    rows = ROWS * run.evaluation.sequences

    def part_of_read(name: str) -> list[float | None]:
        sums = [getattr(layer, name) for layer in layers]
        return [None if part is None else float(part / layer.read) for part, layer in zip(sums, layers, strict=True)]

    return {
        **dataclasses.asdict(arm),
        "read": [float(layer.read) / rows for layer in layers],
        "pairs_kept": [float(layer.pairs_kept) / rows for layer in layers],
        **{name: part_of_read(name) for name in ("kept", "nearest", "most_read")},
    }


def _layers(run: Config, trained: TrainedRun, attention: Focus) -> list[Distant]:
    tokens = run.training.sequence_length
    first = max(tokens // 8, attention.window + 1)
    if first >= tokens:
        raise UserError(f"attention.window: nothing of {tokens} tokens lies beyond {attention.window}; name fewer")
    position_P = jnp.linspace(first, tokens - 1, ROWS).astype(jnp.int32)
    [(params, carried)] = trained.models.values()

    @jax.jit
    def look(inputs_BT: jax.Array) -> list[Distant]:
        model = merge(graph_of(run), params, carried)
        rows_BP = jnp.broadcast_to(position_P, (len(inputs_BT), ROWS))
        return [
            distant(attention_BPS, keeps_BPS, rows_BP, attention)
            for attention_BPS, keeps_BPS in _dense_rows(run, model, inputs_BT, rows_BP)
        ]

    inputs_ST = held_out_sample(run, trained.store, tokens).inputs_ST
    parts = [look(inputs_1T) for inputs_1T in np.split(inputs_ST, len(inputs_ST))]
    return jax.tree.map(lambda *sums: sum(sums), *parts)


def _dense_rows(
    run: Config, model: Decoder, inputs_BT: jax.Array, rows_BP: jax.Array
) -> Iterator[tuple[jax.Array, jax.Array | None]]:
    """Of every layer what the rows attend to, and which keys share a group with them; None without groups."""
    reading = as_trained(run.attention, run.training.steps)
    residual_BTD, by = model.embed(inputs_BT)
    for block in model.blocks:
        qkv = block.attention.qkv(block.attention_norm(residual_BTD), by)
        _, attention_BPS = probe_attention(*qkv, rows_BP, implementation=run.model.attention_implementation)
        residual_BTD, routed = block(residual_BTD, by, reading, None)
        keeps_BPS = None
        if routed is not None and reading is not None and reading.top_k > 0:
            kind = attention_of(run).membership
            membership = routing.memberships(routed.log_affinity_BTK, top_k=reading.top_k, kind=kind)
            asked_BPM = jnp.take_along_axis(membership.query_groups_BTM, rows_BP[..., None], axis=1)
            keeps_BPS = jnp.any(
                asked_BPM[:, :, None, :, None] == membership.key_groups_BSN[:, None, :, None, :], (3, 4)
            )
        yield attention_BPS, keeps_BPS


def distant(attention_BPS: jax.Array, keeps_BPS: jax.Array | None, rows_BP: jax.Array, attention: Focus) -> Distant:
    beyond_BPS = rows_BP[..., None] - jnp.arange(attention_BPS.shape[-1]) - attention.window
    distant_BPS = beyond_BPS > 0
    read_BPS = jnp.where(distant_BPS, attention_BPS, 0.0)
    distant_BP = jnp.sum(distant_BPS, axis=-1)
    if keeps_BPS is None:
        kept_BP = distant_BP * attention.top_k // attention.groups
        kept = None
    else:
        kept_BP = jnp.sum(distant_BPS & keeps_BPS, axis=-1)
        kept = jnp.sum(jnp.where(keeps_BPS, read_BPS, 0.0))
    rank_S = jnp.arange(attention_BPS.shape[-1])
    return Distant(
        read=jnp.sum(read_BPS),
        kept=kept,
        nearest=jnp.sum(jnp.where(beyond_BPS <= kept_BP[..., None], read_BPS, 0.0)),
        most_read=jnp.sum(jnp.where(rank_S < kept_BP[..., None], -jnp.sort(-read_BPS, axis=-1), 0.0)),
        pairs_kept=jnp.sum(kept_BP / distant_BP),
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown: means over seeds."""
    lines = [["arm", "layer", "seeds", "read beyond the window", "pairs kept", "of it kept", "nearest", "most read"]]
    lines.append(["---"] * len(lines[0]))
    for name, changes in dict.fromkeys((row["name"], row["changes"]) for row in rows):
        same = [row for row in rows if (row["name"], row["changes"]) == (name, changes)]
        for layer in range(len(same[0]["read"])):
            read, kept, nearest, most_read, pairs = (
                "" if same[0][part][layer] is None else f"{statistics.mean(row[part][layer] for row in same):.0%}"
                for part in Distant._fields
            )
            label = " ".join((name, changes)).strip()
            lines.append([label, str(layer), str(len(same)), read, pairs, kept, nearest, most_read])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__, ("dense", "frozen", "focus")).parse_args(arguments)
    results = Results(options.results, IDENTITY, Distant._fields)
    for arm in arms(options.preset, options.names, options.seeds, options.changes):
        if not results.has(dataclasses.asdict(arm)):
            results.append(row_of(arm, options.runs))
    print(table([row for row in results.rows if row["preset"] == options.preset]))
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
