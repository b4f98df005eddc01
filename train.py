"""Trains the models of a config, or continues the run that is there: python train.py --config configs/NAME.py.

Any field but the kind of attention can be overridden: --optimizer.peak-lr 3e-4. `--help` after the config lists them.
--replay STEP runs one step of the run again, from the newest checkpoint before it, and prints what is in its batch.
Where the environment names several processes (srun, or JAX_COORDINATOR_ADDRESS) they train one run together.
Exit codes: 0 done · 1 an update was not finite, or the loss a spike · 2 bad input · 69 other processes did not come ·
74 the disk is full · 75 stopped by a signal. After 69, 74 and 75 the same command continues the run.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from focus_jax.config import Config
from focus_jax.config_loading import load, to_json
from focus_jax.errors import exit_code
from focus_jax.parallel import hosts
from focus_jax.run_folder import RunFolder


def main() -> int:
    run, step_to_replay = _parse(sys.argv[1:])
    folder = RunFolder(Path(run.run))
    folder.check(run)
    hosts.join(run.mesh.join_seconds)
    print(to_json(run))

    # From here on it takes seconds: text is tokenized, JAX starts.
    from focus_jax.data.store import open_store
    from focus_jax.data.windows import check_lengths

    reading = partial(open_store, run.data, run.model.vocab_size)
    store = hosts.first_else(reading, reading)
    print(store.summary())
    check_lengths(store, sequence_length=run.training.sequence_length, sequences=run.evaluation.sequences)
    if step_to_replay is not None:
        from focus_jax.replay import replay

        replay(run, folder, store, step_to_replay)
        return 0
    from focus_jax.pretraining import pretrain

    return pretrain(run, folder, store)


def _parse(arguments: list[str]) -> tuple[Config, int | None]:
    parser = argparse.ArgumentParser(
        description=__doc__, add_help=False, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", type=Path, required="--help" not in arguments and "-h" not in arguments)
    parser.add_argument("--replay", type=int, metavar="STEP", help="run this step again and print what is in it")
    known, overrides = parser.parse_known_args(arguments)
    if known.config is None:
        parser.print_help()
        sys.exit(0)
    return load(known.config, overrides), known.replay


if __name__ == "__main__":
    sys.exit(hosts.leave(exit_code(main)))
