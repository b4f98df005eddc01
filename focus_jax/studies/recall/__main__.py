"""Associative recall beyond the window: dense, local and frozen controls beside every way of learning to route.

    python -m focus_jax.studies.recall --results PATH [--seeds 5] [--names gate distill] [--changes attention.probes=7]

Runs what the results file lacks and prints the table of what it holds; --table only prints. An interrupted study is
continued by the same command.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from focus_jax.bench.attention import count
from focus_jax.errors import exit_code
from focus_jax.step_memory import keep_step_memory
from focus_jax.studies.recall.arms import IDENTITY, WITH_ROUTER, WITHOUT_ROUTER, arms
from focus_jax.studies.recall.table import MEASURED, table
from focus_jax.studies.recall.trial import run_arm
from focus_jax.studies.results import Results

NAMES = (*WITHOUT_ROUTER, *WITH_ROUTER)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    parser.add_argument("--forms", nargs="+", choices=("kind", "apart"), default=["kind", "apart"])
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES), help="arms")
    parser.add_argument("--groups", nargs="+", type=int, default=[4, 8])
    parser.add_argument("--top-k", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seeds", type=count, default=5)
    parser.add_argument("--changes", default="", help='a variant of the config, "SECTION.FIELD=VALUE …"')
    parser.add_argument("--table", action="store_true", help="print the table and run nothing")
    options = parser.parse_args(arguments)
    results = Results(options.results, IDENTITY, MEASURED)
    planned = (
        []
        if options.table
        else arms(options.forms, options.names, options.groups, options.top_k, options.seeds, options.changes)
    )
    for arm in results.missing(planned):
        row = run_arm(arm)
        results.append(row)
        print(f"{arm}: accuracy {row['accuracy']:.3f}, {row['seconds']:.0f} s", flush=True)
    print(table(results.rows))
    return 0


if __name__ == "__main__":
    keep_step_memory()
    sys.exit(exit_code(main))
