"""Writes the report of one run into its folder, or a comparison of several.

    python -m focus_jax.evaluation.report RUN [--output RUN/report.html]
    python -m focus_jax.evaluation.report RUN RUN … [--output comparison.html]

Several runs: Focus and dense models that differ in nothing but the attention are compared as twins, also where they
were trained apart; pairs that differ in their seed alone are put together with an interval over seeds.
"""

import argparse
import sys
from pathlib import Path

from focus_jax.errors import exit_code
from focus_jax.evaluation.report import write_comparison, write_report


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.evaluation.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--output", type=Path, help="file to write")
    options = parser.parse_args()
    if len(options.runs) == 1:
        print(write_report(options.runs[0], options.output))
    else:
        print(write_comparison(options.runs, options.output or Path("comparison.html")))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
