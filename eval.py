"""Evaluates a checkpoint of a run: python eval.py --run runs/NAME [--step N] [--top-k 1,2] [--length T].

Prints the table that training printed at that checkpoint. Exit codes: 0 done · 1 not causal · 2 bad input.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from focus_jax.config import Config, Mesh
from focus_jax.config_loading import check
from focus_jax.errors import exit_code, require_device
from focus_jax.run_folder import RunFolder
from focus_jax.step_memory import keep_step_memory


def main() -> int:
    options = _parse(sys.argv[1:])
    run = _with_options(RunFolder(options.run).read_config(), options)
    keep_step_memory()

    # From here on it takes seconds: JAX starts.
    require_device()
    from focus_jax.evaluation import command

    if options.causality:
        entries, causal = command.causality(options.run, run, options.step, options.length)
        print(json.dumps(entries, indent=2))
        return 0 if causal else 1
    rows = command.evaluate(options.run, run, options.step, options.length, options.against)
    print(command.table(rows))
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


def _with_options(run: Config, options: argparse.Namespace) -> Config:
    changes = {
        "top_k": options.top_k,
        "sequences": options.sequences,
        "allow_noncausal": options.allow_noncausal or None,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return check(dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, **given), mesh=options.mesh))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--step", type=int, help="checkpoint (default: the newest)")
    parser.add_argument("--top-k", type=_numbers, help="groups that a query reads in the hard evaluations, e.g. 1,2")
    parser.add_argument("--sequences", type=int, help="held-out sequences (default: as in training)")
    parser.add_argument("--length", type=_positive, help="tokens per sequence (default: as in training)")
    parser.add_argument("--against", type=Path, help="compare this run's Focus model with that run's dense one")
    parser.add_argument("--causality", action="store_true", help="change suffixes and report what changes before them")
    parser.add_argument(
        "--allow-noncausal", action="store_true", help="report figures of a routing that sees the future"
    )
    parser.add_argument("--mesh", type=_mesh, default="1,1,1", help="devices: DATA,FSDP,TENSOR (default: one)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file, one JSON object a line")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _mesh(text: str) -> Mesh:
    data, fsdp, tensor = map(int, text.split(","))
    return Mesh(data=data, fsdp=fsdp, tensor=tensor)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(exit_code(main))
