"""Trains the models of a config, or continues the run that is there: python train.py --config configs/NAME.py.

Any field but the kind of attention can be overridden: --optimizer.peak-lr 3e-4. `--help` after the config lists them.
--replay STEP runs one step of the run again, from the newest checkpoint before it, and prints what is in its batch.
--shardings N prints how the parameters would lie on N devices, which need not be there.
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
from focus_jax.errors import exit_code, require_device
from focus_jax.parallel.joining import join, leave
from focus_jax.run_folder import RunFolder
from focus_jax.step_memory import keep_step_memory


def main() -> int:
    run, options = _parse(sys.argv[1:])
    if options.shardings is not None:
        from focus_jax.sharding_table import sharding_table

        print(sharding_table(run, options.shardings))
        return 0
    folder = RunFolder(Path(run.run))
    folder.check(run)
    keep_step_memory()
    join(run.mesh.join_seconds)
    print(to_json(run))

    # From here on it takes seconds: text is tokenized, JAX starts.
    require_device()
    from focus_jax.data.store import open_store
    from focus_jax.data.windows import check_lengths
    from focus_jax.parallel.hosts import first_else

    reading = partial(open_store, run.data, run.model.vocab_size)
    store = first_else(reading, reading)
    print(store.summary())
    check_lengths(store, sequence_length=run.training.sequence_length, sequences=run.evaluation.sequences)
    if options.replay is not None:
        from focus_jax.replay import replay

        replay(run, folder, store, options.replay)
        return 0
    from focus_jax.pretraining import pretrain

    return pretrain(run, folder, store)


def _parse(arguments: list[str]) -> tuple[Config, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, add_help=False, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--config", type=Path, required="--help" not in arguments and "-h" not in arguments)
    parser.add_argument("--replay", type=int, metavar="STEP", help="run this step again and print what is in it")
    parser.add_argument("--shardings", type=int, metavar="N", help="print how parameters lie on N devices")
    known, overrides = parser.parse_known_args(arguments)
    if known.config is None:
        parser.print_help()
        sys.exit(0)
    return load(known.config, overrides), known


if __name__ == "__main__":
    sys.exit(leave(exit_code(main)))
