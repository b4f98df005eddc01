"""Variants of a config, written as SECTION.FIELD=VALUE, separated by spaces."""

from focus_jax.config import Config
from focus_jax.config_loading import overridden


def changed(run: Config, changes: str) -> Config:
    """As the command line of train.py would change it; not checked yet."""
    return overridden(run, [f"--{change}" for change in changes.split()], prog="--changes") if changes else run
