"""Which runs belong together: what of a config decides what a model computes."""

import dataclasses
import hashlib

from focus_jax import config_loading
from focus_jax.config import Checkpoint, Config, Evaluation, Focus, Telemetry


def computed(config: Config) -> Config:
    """The config with one value for all that does not change what a model computes."""
    return dataclasses.replace(
        config,
        run="",
        models=("focus", "dense"),
        evaluation=Evaluation(),
        checkpoint=Checkpoint(every=1),
        telemetry=Telemetry(),
    )


def any_seed(config: Config) -> Config:
    """The same for all runs that are repetitions of each other."""
    return dataclasses.replace(computed(config), seed=0)


def tags(config: Config) -> list[str]:
    """Models, size and attention in a few words each."""
    words = [*config.models, f"{config.model.layers} layers of {config.model.width}"]
    if isinstance(config.attention, Focus):
        focus = config.attention
        words += [f"K={focus.groups}", f"top_k={focus.top_k}", f"window={focus.window}"]
    return words


def group(config: Config) -> str:
    """A name for all runs that differ in their seed alone."""
    digest = hashlib.sha256(config_loading.to_json(any_seed(config)).encode()).hexdigest()
    return f"{', '.join(tags(config))} ({digest[:8]})"
