"""One pass over the pairs of a pattern, with the tiles that suit its heads. Letters and units as in kernels.py."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focus_jax.ops.pallas import kernels, tuning
from focus_jax.ops.pallas.pattern import Pattern


class OutputGradient(NamedTuple):
    """What a backward pass knows of the output that it is a part of."""

    do_BTHC: jax.Array
    lse_BHT: jax.Array
    """Log-sum-exp of the output; +∞ in rows that keep no pair, so that 2^(s − lse) is 0 whatever s is."""
    delta_BHT: jax.Array
    """Σ_C do·o."""


class Gradients(NamedTuple):
    """Of the arguments of a pass, and Σ ds of each row and each key, where the pattern is gated."""

    dq: jax.Array
    dk: jax.Array
    dv: jax.Array
    row_sums: jax.Array | None
    key_sums: jax.Array | None


def output_gradient(do_BTHC: jax.Array, o_BTHC: jax.Array, lse_BHT: jax.Array) -> OutputGradient:
    delta_BHT = jnp.einsum("bthc,bthc->bht", do_BTHC, o_BTHC, preferred_element_type=jnp.float32)
    return OutputGradient(do_BTHC, jnp.where(lse_BHT == -jnp.inf, jnp.inf, lse_BHT), delta_BHT)


def forward(
    pattern: Pattern, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """o_BTHC and lse_BHT, as kernels.forward."""
    tile = tuning.tile_of("forward", pattern.name, q_BTHC.shape[-1], q_BTHC.dtype)
    return kernels.forward(pattern, tile, scale, q_BTHC, k_BSJC, v_BSJC)


def backward(
    pattern: Pattern,
    scale: float,
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    output: OutputGradient,
) -> Gradients:
    """Of a pass whose softmax is merged into a larger one, or is the whole of it."""
    tile_of = partial(tuning.tile_of, pattern=pattern.name, channels=q_BTHC.shape[-1], dtype=q_BTHC.dtype)
    arrays = scale, q_BTHC, k_BSJC, v_BSJC, *output
    dq, row_sums_BHT = kernels.backward_queries(pattern, tile_of("backward_queries"), *arrays)
    dk, dv, key_sums_BJS = kernels.backward_keys(pattern, tile_of("backward_keys"), *arrays)
    return Gradients(dq, dk, dv, row_sums_BHT, key_sums_BJS)
