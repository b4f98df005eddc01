"""A pass over the pairs of a pattern, with the tiles that suit its heads. Letters and units as in kernels.py."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focus_jax.ops.pallas import kernels, tuning
from focus_jax.ops.pallas.pattern import Pattern


class Gradients(NamedTuple):
    """Of the arguments of a pass, and Σ ds of each row and each key, where the pattern is gated."""

    dq_BTHC: jax.Array
    dk_BSJC: jax.Array
    dv_BSJC: jax.Array
    row_sums_BHT: jax.Array | None
    key_sums_BJS: jax.Array | None


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
    do_BTHC: jax.Array,
    lse_BHT: jax.Array,
    delta_BHT: jax.Array,
) -> Gradients:
    """Of a pass that is merged with others, or is all there is: lse and delta are those of the output."""
    tile_of = partial(tuning.tile_of, pattern=pattern.name, channels=q_BTHC.shape[-1], dtype=q_BTHC.dtype)
    # So that 2^(s − lse) is 0 in rows that keep no pair, whatever s is.
    lse_BHT = jnp.where(lse_BHT == -jnp.inf, jnp.inf, lse_BHT)
    arrays = scale, q_BTHC, k_BSJC, v_BSJC, do_BTHC, lse_BHT, delta_BHT
    dq_BTHC, row_sums_BHT = kernels.backward_queries(pattern, tile_of("backward_queries"), *arrays)
    dk_BSJC, dv_BSJC, key_sums_BJS = kernels.backward_keys(pattern, tile_of("backward_keys"), *arrays)
    return Gradients(dq_BTHC, dk_BSJC, dv_BSJC, row_sums_BHT, key_sums_BJS)
