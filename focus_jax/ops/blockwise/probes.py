"""Dense rows at a few positions, with what they attend to.

Letters as in attention.py · G = H/J query heads of one key/value head · R = P·G rows of one key/value head · A steps of
N key/value heads.
"""

import functools
import operator
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import LN_2, exp2, matmul, scaled

STEP_LOGITS = 2**18
"""Up to so many, all heads are taken at once: one by one, those of a short sequence are all overhead."""


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    """One key/value head after the other, so that a long sequence never holds more than G times P×S numbers."""
    B, P = positions_BP.shape
    S, J, C = k_BSJC.shape[1:]
    G = q_BTHC.shape[2] // J
    visible_BSP = jnp.arange(S)[:, None] <= positions_BP[:, None]
    visible_BSR = jnp.repeat(visible_BSP, G, axis=2)
    q_BPHC = jnp.take_along_axis(q_BTHC, positions_BP[..., None, None], axis=1)
    q_JBRC = jnp.moveaxis(q_BPHC.reshape(B, P, J, G, C), 2, 0).reshape(J, B, P * G, C)
    # A key that no row sees may hold anything.
    read_BS11 = visible_BSP.any(axis=2)[..., None, None]
    k_JBSC, v_JBSC = (jnp.moveaxis(jnp.where(read_BS11, x_BSJC, 0), 2, 0) for x_BSJC in (k_BSJC, v_BSJC))

    def add_heads(sum_BSR: jax.Array, heads: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        o_NBRC, p_BSR = _attend(scale, *heads, visible_BSR)
        return sum_BSR + p_BSR, o_NBRC

    together = J if visible_BSR.size * J <= STEP_LOGITS else 1
    heads = jax.tree.map(lambda x_J_: x_J_.reshape(J // together, together, *x_J_.shape[1:]), (q_JBRC, k_JBSC, v_JBSC))
    sum_BSR, o_ANBRC = lax.scan(add_heads, jnp.zeros(visible_BSR.shape), heads)
    o_BPHC = jnp.moveaxis(o_ANBRC.reshape(J, B, P, G, C), 0, 2).reshape(q_BPHC.shape)
    attention_BSP = sum_BSR.reshape(B, S, P, G).sum(axis=3) / (J * G)
    return o_BPHC, attention_BSP.swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    scale: float, q_NBRC: jax.Array, k_NBSC: jax.Array, v_NBSC: jax.Array, visible_BSR: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """o_NBRC, typed like q; and what the rows attend to, summed over all heads, a constant for differentiation.

    Logits are held by key, then row: so the large gradients, of keys and values, come out as they lie, and the
    dimension that a product sums over is the last of its left and the first of its right factor.
    """
    return _forward(scale, q_NBRC, k_NBSC, v_NBSC, visible_BSR)[0]


def _forward(
    scale: float, q_NBRC: jax.Array, k_NBSC: jax.Array, v_NBSC: jax.Array, visible_BSR: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    s_NBSR = _logits(scaled(q_NBRC, scale), k_NBSC, visible_BSR)
    peak_NB1R = s_NBSR.max(axis=2, keepdims=True)
    p_NBSR = exp2(s_NBSR - peak_NB1R)
    total_NB1R = p_NBSR.sum(axis=2, keepdims=True)
    o_NBCR = matmul("nbcs,nbsr->nbcr", v_NBSC.swapaxes(2, 3), p_NBSR) / total_NB1R
    o_NBRC = o_NBCR.swapaxes(2, 3).astype(q_NBRC.dtype)
    # Added one by one: a reduction over the first dimension takes as long as the products.
    sum_BSR = functools.reduce(operator.add, p_NBSR / total_NB1R)
    lse_NB1R = peak_NB1R + jnp.log2(total_NB1R)
    return (o_NBRC, sum_BSR), (q_NBRC, k_NBSC, v_NBSC, visible_BSR, o_NBRC, lse_NB1R)


def _backward(scale: float, residuals: tuple, cotangents: tuple[jax.Array, jax.Array]) -> tuple:
    q_NBRC, k_NBSC, v_NBSC, visible_BSR, o_NBRC, lse_NB1R = residuals
    do_NBRC, _ = cotangents
    delta_NB1R = jnp.sum(do_NBRC.astype(jnp.float32) * o_NBRC, axis=3)[:, :, None]
    scaled_q_NBRC = scaled(q_NBRC, scale)
    p_NBSR = exp2(_logits(scaled_q_NBRC, k_NBSC, visible_BSR) - lse_NB1R)
    ds_NBSR = p_NBSR * (matmul("nbsc,nbcr->nbsr", v_NBSC, do_NBRC.swapaxes(2, 3)) - delta_NB1R)
    dq_NBCR = matmul("nbcs,nbsr->nbcr", k_NBSC.swapaxes(2, 3), ds_NBSR) * scale
    dk_NBSC = matmul("nbsr,nbrc->nbsc", ds_NBSR, scaled_q_NBRC) * LN_2
    dv_NBSC = matmul("nbsr,nbrc->nbsc", p_NBSR, do_NBRC)
    gradients = dq_NBCR.swapaxes(2, 3), dk_NBSC, dv_NBSC
    return *(gradient.astype(q_NBRC.dtype) for gradient in gradients), None


_attend.defvjp(_forward, _backward)


def _logits(q_NBRC: jax.Array, k_NBSC: jax.Array, visible_BSR: jax.Array) -> jax.Array:
    """s_NBSR, −∞ where a row does not see a key."""
    return jnp.where(visible_BSR, matmul("nbsc,nbcr->nbsr", k_NBSC, q_NBRC.swapaxes(2, 3)), -jnp.inf)
