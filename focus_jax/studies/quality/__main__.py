"""Focus against dense attention at equal tokens, with the controls that a claim needs.

    python -m focus_jax.studies.quality --preset small --runs runs/quality --results results/quality.jsonl

Trains what the results file lacks, one run folder for each arm and seed, and prints the table of what it holds; --table
only prints. An interrupted study is continued by the same command: finished rows are not done again, and a run that was
begun goes on from its newest checkpoint. Several processes can share the work by --names or --seeds.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from focus_jax.errors import exit_code
from focus_jax.huge_pages import use_huge_pages
from focus_jax.studies.quality.arms import ARMS, IDENTITY, arms, attention_of
from focus_jax.studies.quality.figure import draw
from focus_jax.studies.quality.presets import PRESETS
from focus_jax.studies.quality.table import table
from focus_jax.studies.quality.trial import row_of, train_arm
from focus_jax.studies.results import Results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the run folders and the token store")
    parser.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--names", nargs="+", choices=ARMS, default=list(ARMS), help="arms")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: five, and one for the arms without a claim")
    parser.add_argument("--changes", default="", help='a variant of all arms, "SECTION.FIELD=VALUE …"')
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    parser.add_argument("--figure", type=Path, help="draw the curves to this file")
    options = parser.parse_args(arguments)
    results = Results(options.results, IDENTITY)
    planned = [] if options.table else arms(options.preset, options.names, options.seeds, options.changes)
    window = attention_of(PRESETS[options.preset](options.runs)).window
    for arm in planned:
        if results.has(dataclasses.asdict(arm)):
            continue
        if stopped := train_arm(arm, options.runs):
            return stopped
        results.append(row_of(arm, options.runs, window))
    rows = [row for row in results.rows if row["preset"] == options.preset]
    print(table(rows))
    if options.figure:
        draw(rows, options.figure)
    return 0


if __name__ == "__main__":
    use_huge_pages()
    sys.exit(exit_code(main))
