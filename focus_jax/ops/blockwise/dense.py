"""Dense causal attention, forward and backward. Letters as in attention.py."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise import unsorted


def dense_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *, query_offset: int, scale: float
) -> jax.Array:
    S = min(k_BSJC.shape[1], query_offset + q_BTHC.shape[1])
    return _attention(query_offset, scale, q_BTHC, k_BSJC[:, :S], v_BSJC[:, :S])


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(query_offset: int, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> jax.Array:
    return _forward(query_offset, scale, q_BTHC, k_BSJC, v_BSJC)[0]


def _forward(query_offset: int, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> tuple:
    def forward_row(arrays: tuple) -> tuple[jax.Array, jax.Array]:
        o_THC, lse_TH = unsorted.attend(*arrays, farthest=None, query_offset=query_offset, scale=scale)
        return o_THC.astype(q_BTHC.dtype), lse_TH

    o_BTHC, lse_BTH = lax.map(forward_row, (q_BTHC, k_BSJC, v_BSJC))
    return o_BTHC, (q_BTHC, k_BSJC, v_BSJC, o_BTHC, lse_BTH)


def _backward(query_offset: int, scale: float, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    def backward_row(arrays: tuple) -> tuple[jax.Array, jax.Array, jax.Array]:
        q_THC, k_SJC, v_SJC, o_THC, lse_TH, do_THC = arrays
        delta_TH = jnp.sum(do_THC.astype(jnp.float32) * o_THC, axis=-1)
        gradients = unsorted.attend_backward(
            q_THC, k_SJC, v_SJC, do_THC, lse_TH, delta_TH, farthest=None, query_offset=query_offset, scale=scale
        )
        return jax.tree.map(lambda gradient: gradient.astype(q_THC.dtype), gradients)

    return lax.map(backward_row, (*residuals, do_BTHC))


_attention.defvjp(_forward, _backward)
