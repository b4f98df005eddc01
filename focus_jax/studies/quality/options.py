"""What every command of the quality study can be asked for."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from focus_jax.studies.quality.arms import ARMS
from focus_jax.studies.quality.presets import PRESETS


def parser(description: str | None, names: Iterable[str]) -> argparse.ArgumentParser:
    """names: the arms that are taken where none are named."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--preset", choices=PRESETS, default="small")
    made.add_argument("--runs", type=Path, required=True, help="folder of the run folders and the token store")
    made.add_argument("--results", type=Path, required=True, help="file of rows, appended to")
    made.add_argument("--names", nargs="+", choices=ARMS, default=list(names), help="arms")
    made.add_argument("--seeds", nargs="+", type=int, help="default: five, and one for the arms without a claim")
    made.add_argument("--changes", default="", help='a variant of all arms, "SECTION.FIELD=VALUE …"')
    return made
