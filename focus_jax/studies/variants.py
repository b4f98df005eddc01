"""Variants of a config, written as SECTION.FIELD=VALUE, separated by spaces."""

import dataclasses

from focus_jax.config import Config


def changed(run: Config, changes: str) -> Config:
    for change in changes.split():
        place, value = change.split("=")
        section, field = place.split(".")
        old = getattr(run, section)
        typed = type(getattr(old, field))(value)
        run = dataclasses.replace(run, **{section: dataclasses.replace(old, **{field: typed})})
    return run
