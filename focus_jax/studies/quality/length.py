"""How the study's models read sequences longer than those they were trained on (rotary positions), by position.

    python -m focus_jax.studies.quality.length --preset small --runs runs/quality --results results/quality_length.jsonl

Evaluates arms that the study has trained, at 1, 2, 4 and 8 times their length, on about as many held-out tokens each;
what the results file holds is not done again. Prints a line for each arm and length.
"""

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from focus_jax.config import Config
from focus_jax.errors import exit_code
from focus_jax.evaluation.command import evaluate
from focus_jax.run_folder import RunFolder
from focus_jax.step_memory import keep_step_memory
from focus_jax.studies.quality.arms import Arm, arms, config_of
from focus_jax.studies.quality.options import parser
from focus_jax.studies.results import Results, Row

FACTORS = (1, 2, 4, 8)
IDENTITY = (*(field.name for field in dataclasses.fields(Arm)), "length")
MEASURED = ("loss", "loss_by_position")


def row_of(arm: Arm, run: Config, length: int) -> Row:
    """Of a trained arm, read as it was trained."""
    tokens = run.evaluation.sequences * run.training.sequence_length
    fewer = dataclasses.replace(run.evaluation, sequences=max(1, tokens // length), batch_size=1)
    row = evaluate(Path(run.run), dataclasses.replace(run, evaluation=fewer), run.training.steps, length, None)[0]
    return {
        **dataclasses.asdict(arm),
        "length": length,
        **{field: row[field] for field in ("tokens", "sequences", "loss", "kept_fraction", "loss_by_position")},
    }


def table(rows: Sequence[Row]) -> str:
    """Markdown: nats per token of the positions from each heading to the next, means over seeds."""
    starts = sorted({start for row in rows for start, _ in row["loss_by_position"]})
    lines = [["arm", "length", "seeds", "loss", *(f"{start:,}" for start in starts)]]
    lines.append(["---"] * len(lines[0]))
    for name, changes, length in dict.fromkeys((row["name"], row["changes"], row["length"]) for row in rows):
        same = [row for row in rows if (row["name"], row["changes"], row["length"]) == (name, changes, length)]
        by_position = [dict(row["loss_by_position"]) for row in same]
        lines.append(
            [
                " ".join((name, changes)).strip(),
                f"{length:,}",
                str(len(same)),
                f"{statistics.mean(row['loss'] for row in same):.3f}",
                *(
                    f"{statistics.mean(losses[start] for losses in by_position):.3f}" if start in by_position[0] else ""
                    for start in starts
                ),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser(__doc__, ("dense", "local", "focus")).parse_args(arguments)
    results = Results(options.results, IDENTITY, MEASURED)
    for arm in arms(options.preset, options.names, options.seeds, options.changes):
        run = RunFolder(Path(config_of(arm, options.runs).run)).read_config()
        for length in (factor * run.training.sequence_length for factor in FACTORS):
            if not results.has({**dataclasses.asdict(arm), "length": length}):
                results.append(row_of(arm, run, length))
    print(table([row for row in results.rows if row["preset"] == options.preset]))
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
