"""What runs will need on so many GPUs: python -m focus_jax.plan --config configs/NAME.py --devices 8 [--json PATH].

Compiles the real train step, attention kernels included, for H200s on a machine without one (requirements-h200.txt).
Prints memory per device, collectives, FLOPs, and the time that a given utilisation implies. Without those packages it
says so and goes by shapes. Fields of the config can be overridden, as for train.py; several configs make a table.
Exit codes: 0 planned, whether or not it fits · 2 bad input.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from focus_jax import h200
from focus_jax.config_loading import load
from focus_jax.errors import UserError, exit_code
from focus_jax.plan.plan import make_plan
from focus_jax.plan.text import as_json, as_table, as_text


def main(arguments: Sequence[str] | None = None) -> int:
    options, overrides = _parse(arguments)
    runs = [(path, load(path, overrides)) for path in options.config]
    # The GPUs that are compiled for are not those of this machine.
    jax.config.update("jax_platforms", "cpu")
    compiled = not options.shapes_only and h200.can_compile()
    if not compiled and not options.shapes_only:
        print("The packages of requirements-h200.txt are not installed, so nothing is compiled: by shapes alone.")
    plans = []
    for path, run in runs:
        plans.append(make_plan(path, run, options.devices, compiled=compiled))
        print(as_text(plans[-1], options.utilisation), flush=True)
    if len(plans) > 1:
        print(as_table(plans, options.utilisation))
    if options.json:
        found = [as_json(plan, options.utilisation) for plan in plans]
        options.json.write_text(json.dumps(found if len(found) > 1 else found[0], indent=2) + "\n")
    return 0


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m focus_jax.plan",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--config", type=Path, nargs="+", required=True, help="config files")
    parser.add_argument("--devices", type=int, default=8, help="GPUs of one host (8)")
    parser.add_argument("--target", choices=("h200",), default="h200")
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of the peak that times are for (0.4)")
    parser.add_argument("--shapes-only", action="store_true", help="compile nothing")
    parser.add_argument("--json", type=Path, help="file for the plan; a list where there are several configs")
    options, overrides = parser.parse_known_args(arguments)
    if options.devices < 1:
        raise UserError(f"--devices: needs at least 1, is {options.devices}")
    if not 0 < options.utilisation <= 1:
        raise UserError(f"--utilisation: needs more than 0 and at most 1, is {options.utilisation}")
    return options, overrides


if __name__ == "__main__":
    sys.exit(exit_code(main))
