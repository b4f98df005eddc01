"""Copies of a config with other values."""

import dataclasses

from focus_jax.config import Config


def changed(run: Config, /, **sections: dict) -> Config:
    """changed(run, attention={"window": 3}, seed=1): a copy with other values in some fields."""
    return dataclasses.replace(
        run,
        **{
            name: dataclasses.replace(getattr(run, name), **value) if isinstance(value, dict) else value
            for name, value in sections.items()
        },
    )
