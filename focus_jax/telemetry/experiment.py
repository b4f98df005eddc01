"""Which runs belong together: what of a config decides what a model computes."""

import dataclasses
import hashlib
from collections.abc import Hashable

from focus_jax import config_loading
from focus_jax.config import Config, Focus
from focus_jax.run_folder import MAY_CHANGE

_FREE = (*MAY_CHANGE, "run", "models")


def computed(config: Config) -> Hashable:
    """Equal for configs whose models compute the same."""
    return _values(config, _FREE)


def any_seed(config: Config) -> Hashable:
    """Equal for runs that are repetitions of each other with other seeds."""
    return _values(config, (*_FREE, "seed"))


def differing_fields(one: Config, other: Config) -> set[str]:
    """Names of the fields, other than the seed, in which what is computed differs."""
    names = (name for name, _, _ in config_loading.differences(one, other))
    return {name for name in names if name.split(".")[0] not in (*_FREE, "seed")}


def tags(config: Config) -> list[str]:
    """Models, size and attention in a few words each."""
    words = [*config.models, f"{config.model.layers} layers of {config.model.width}"]
    if isinstance(config.attention, Focus):
        focus = config.attention
        words += [f"trained {focus.training}", f"K={focus.groups}", f"top_k={focus.top_k}", f"window={focus.window}"]
    return words


def group(config: Config) -> str:
    """A name for all runs that differ in their seed alone."""
    digest = hashlib.sha256(repr(any_seed(config)).encode()).hexdigest()
    return f"{', '.join(tags(config))} ({digest[:8]})"


def _values(config: Config, left_out: tuple[str, ...]) -> Hashable:
    return tuple(getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in left_out)
