"""What keeps a bad update from the model: the loss is compared with its own recent past, on the device.

Everything is part of the train state, so a run that is continued judges every step as an uninterrupted one would.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Guard(NamedTuple):
    """Scalars: the loss of recent updates, and what was left out."""

    mean: jax.Array
    """Nats per token, exponentially weighted over the window."""
    variance: jax.Array
    seen: jax.Array
    """Updates that mean and variance were made from, int32."""
    skipped: jax.Array
    """Updates left out since the beginning of the run, int32."""
    skipped_in_a_row: jax.Array


def initial_guard() -> Guard:
    zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return Guard(zero, zero, none, none, none)


def deviations(guard: Guard, loss: jax.Array, window: int) -> jax.Array:
    """Standard deviations that a loss lies above the recent mean; 0 until a whole window of losses was seen."""
    above = (loss - guard.mean) / jnp.maximum(jnp.sqrt(guard.variance), 1e-12)
    return jnp.where(guard.seen < window, 0.0, above)


def applied(guard: Guard, loss: jax.Array, window: int) -> Guard:
    """After an update: the first `window` losses weigh the same, later ones fade with that time constant."""
    weight = 1.0 / jnp.minimum(guard.seen + 1, window)
    difference = loss - guard.mean
    return guard._replace(
        mean=guard.mean + weight * difference,
        variance=(1 - weight) * (guard.variance + weight * difference**2),
        seen=guard.seen + 1,
        skipped_in_a_row=jnp.zeros_like(guard.skipped_in_a_row),
    )


def skipped(guard: Guard) -> Guard:
    """After a step whose update was left out; its loss is no measure of what is usual."""
    return guard._replace(skipped=guard.skipped + 1, skipped_in_a_row=guard.skipped_in_a_row + 1)
