"""Focus against dense attention at equal tokens, with the controls that a claim needs.

    python -m focus_jax.studies.quality --preset small --runs runs/quality --results results/quality.jsonl

Trains what the results file lacks, one run folder for each arm and seed, and prints the table of what it holds; --table
only prints. An interrupted study is continued by the same command: finished rows are not done again, and a run that was
begun goes on from its newest checkpoint. Several processes can share the work by --names or --seeds.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from focus_jax.errors import UserError, exit_code
from focus_jax.step_memory import keep_step_memory
from focus_jax.studies.quality.arms import ARMS, IDENTITY, arms, attention_of
from focus_jax.studies.quality.figure import FORMATS, draw
from focus_jax.studies.quality.options import parser
from focus_jax.studies.quality.presets import PRESETS
from focus_jax.studies.quality.table import MEASURED, table
from focus_jax.studies.quality.trial import row_of, train_arm
from focus_jax.studies.results import Results


def main(arguments: Sequence[str] | None = None) -> int:
    command = parser(__doc__, ARMS)
    command.add_argument("--table", action="store_true", help="print the table and run nothing")
    command.add_argument("--figure", type=Path, help="draw the curves to this file")
    options = command.parse_args(arguments)
    if options.figure and options.figure.suffix not in FORMATS:
        raise UserError(f"--figure {options.figure}: its ending is none of {', '.join(FORMATS)}")
    results = Results(options.results, IDENTITY, MEASURED)
    planned = [] if options.table else arms(options.preset, options.names, options.seeds, options.changes)
    window = attention_of(PRESETS[options.preset](options.runs)).window
    for arm in results.missing(planned):
        if stopped := train_arm(arm, options.runs):
            return stopped
        results.append(row_of(arm, options.runs, window))
    rows = [row for row in results.rows if row["preset"] == options.preset]
    print(table(rows))
    if options.figure:
        draw(rows, options.figure)
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
