"""Attention to all earlier keys, or to those within a window. Letters as in kernels.py."""

from functools import partial

import jax

from focus_jax.ops.pallas import passes
from focus_jax.ops.pallas.band import Band
from focus_jax.ops.pallas.target import check_target


def dense_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *, query_offset: int, scale: float
) -> jax.Array:
    check_target()
    return band_attention(Band.of(q_BTHC, k_BSJC, query_offset, window=None), scale, q_BTHC, k_BSJC, v_BSJC)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def band_attention(band: Band, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> jax.Array:
    """Softmax over the pairs of a band."""
    return passes.forward(band, scale, q_BTHC, k_BSJC, v_BSJC)[0]


def _forward(band: Band, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> tuple:
    o_BTHC, lse_BHT = passes.forward(band, scale, q_BTHC, k_BSJC, v_BSJC)
    return o_BTHC, (q_BTHC, k_BSJC, v_BSJC, o_BTHC, lse_BHT)


def _backward(band: Band, scale: float, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    q_BTHC, k_BSJC, v_BSJC, o_BTHC, lse_BHT = residuals
    output = passes.output_gradient(do_BTHC, o_BTHC, lse_BHT)
    gradients = passes.backward(band, scale, q_BTHC, k_BSJC, v_BSJC, output)
    return gradients.dq, gradients.dk, gradients.dv


band_attention.defvjp(_forward, _backward)
