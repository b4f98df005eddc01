"""Trains the models of a config, or continues the run that is there: python train.py --config configs/NAME.py.

Any field but the kind of attention can be overridden: --optimizer.peak-lr 3e-4. `--help` after the config lists them.
Exit codes: 0 done · 1 loss or gradient not finite · 2 bad input · 75 stopped by a signal, run again to continue.
"""

import argparse
import sys
from pathlib import Path

from focus_jax.config import Config
from focus_jax.config_loading import load, to_json
from focus_jax.errors import exit_code
from focus_jax.run_folder import RunFolder


def main() -> int:
    run = _parse(sys.argv[1:])
    folder = RunFolder(Path(run.run))
    folder.check(run)
    print(to_json(run))

    # From here on it takes seconds: text is tokenized, JAX starts.
    from focus_jax.data.store import open_store

    store = open_store(run.data, run.model.vocab_size)
    from focus_jax.pretraining import pretrain

    return pretrain(run, folder, store)


def _parse(arguments: list[str]) -> Config:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, required="--help" not in arguments and "-h" not in arguments)
    known, overrides = parser.parse_known_args(arguments)
    if known.config is None:
        parser.print_help()
        sys.exit(0)
    return load(known.config, overrides)


if __name__ == "__main__":
    sys.exit(exit_code(main))
