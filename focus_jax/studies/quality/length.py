"""How the study's models read sequences longer than those they were trained on (rotary positions), by position.

    python -m focus_jax.studies.quality.length --preset small --runs runs/quality --results results/quality_length.jsonl

Evaluates arms that the study has trained, at 1, 2, 4 and 8 times their length, on about as many held-out tokens each;
what the results file holds is not done again. Prints a line for each arm and length.
"""

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from focus_jax.config import Config
from focus_jax.errors import exit_code
from focus_jax.evaluation.command import evaluate
from focus_jax.huge_pages import use_huge_pages
from focus_jax.run_folder import RunFolder
from focus_jax.studies.quality.arms import ARMS, Arm, arms, config_of
from focus_jax.studies.quality.presets import PRESETS
from focus_jax.studies.results import Results, Row

FACTORS = (1, 2, 4, 8)
IDENTITY = (*(field.name for field in dataclasses.fields(Arm)), "length")


def row_of(arm: Arm, run: Config, length: int) -> Row:
    """Of a trained arm, read as it was trained."""
    tokens = run.evaluation.sequences * run.training.sequence_length
    fewer = dataclasses.replace(run.evaluation, sequences=max(1, tokens // length), batch_size=1)
    row = evaluate(Path(run.run), dataclasses.replace(run, evaluation=fewer), None, length, None)[0]
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
    for name, length in dict.fromkeys((row["name"], row["length"]) for row in rows):
        same = [row for row in rows if (row["name"], row["length"]) == (name, length)]
        by_position = [dict(row["loss_by_position"]) for row in same]
        lines.append(
            [
                name,
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run folders and the token store")
    parser.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--names", nargs="+", choices=ARMS, default=["dense", "local", "focus"], help="arms")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: all of the study")
    options = parser.parse_args(arguments)
    results = Results(options.results, IDENTITY)
    for arm in arms(options.preset, options.names, options.seeds, ""):
        run = RunFolder(Path(config_of(arm, options.runs).run)).read_config()
        for length in (factor * run.training.sequence_length for factor in FACTORS):
            if not results.has({**dataclasses.asdict(arm), "length": length}):
                results.append(row_of(arm, run, length))
    print(table(results.rows))
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(exit_code(main))
