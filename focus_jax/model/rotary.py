"""Rotary positions (RoFormer, arXiv 2104.09864), halves of a head rotated against each other as in Llama."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rotation(NamedTuple):
    cos_TC: jax.Array
    sin_TC: jax.Array


def rotation(tokens: int, channels: int, theta: float) -> Rotation:
    """Angles of positions 0…T−1 in float32 (bfloat16 would blur far positions); C is half a head's channels."""
    frequency_C = theta ** (-jnp.arange(0, channels, 2, dtype=jnp.float32) / channels)
    angle_TC = jnp.arange(tokens, dtype=jnp.float32)[:, None] * frequency_C
    # Computed once: without it a compiler that fuses takes sines and cosines again for every channel of every head.
    return Rotation(*jax.lax.optimization_barrier((jnp.cos(angle_TC), jnp.sin(angle_TC))))


def rotate(x_BTHC: jax.Array, by: Rotation) -> jax.Array:
    """Rotates in float32 and returns the dtype that came in."""
    first_BTHC, second_BTHC = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
    cos_THC, sin_THC = by.cos_TC[:, None], by.sin_TC[:, None]
    rotated_BTHC = jnp.concatenate(
        [first_BTHC * cos_THC - second_BTHC * sin_THC, second_BTHC * cos_THC + first_BTHC * sin_THC], axis=-1
    )
    return rotated_BTHC.astype(x_BTHC.dtype)
