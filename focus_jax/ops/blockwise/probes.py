"""Dense rows at a few positions, with what they attend to. Letters as in attention.py; G = H/J, R = P·G rows,
A steps of N heads."""

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import matmul

STEP_LOGITS = 2**18
"""Up to so many, all heads are taken at once: one by one, those of a short sequence are all overhead."""


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    """One key/value head after the other, so that a long sequence never holds more than G times P×S numbers.

    Logits are held by key, then row, so that the gradients of keys and values, the large ones, come out as they lie.
    """
    B, P = positions_BP.shape
    S, J, C = k_BSJC.shape[1:]
    G = q_BTHC.shape[2] // J
    visible_BSP = jnp.arange(S)[:, None] <= positions_BP[:, None]
    q_BPHC = jnp.take_along_axis(q_BTHC, positions_BP[..., None, None], axis=1)
    q_JBRC = jnp.moveaxis(q_BPHC.reshape(B, P, J, G, C), 2, 0).reshape(J, B, P * G, C)
    # A key that no row sees may hold anything.
    read_BS11 = visible_BSP.any(axis=2)[..., None, None]
    k_JBSC, v_JBSC = (jnp.moveaxis(jnp.where(read_BS11, x_BSJC, 0), 2, 0) for x_BSJC in (k_BSJC, v_BSJC))

    @jax.checkpoint
    def attend(q_BRC: jax.Array, k_BSC: jax.Array, v_BSC: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BSR = scale * matmul("bsc,brc->bsr", k_BSC, q_BRC)
        p_BSPG = jax.nn.softmax(logits_BSR.reshape(B, S, P, G), axis=1, where=visible_BSP[..., None])
        o_BRC = matmul("bsr,bsc->brc", p_BSPG.reshape(logits_BSR.shape).astype(v_BSC.dtype), v_BSC)
        return o_BRC.astype(q_BRC.dtype), lax.stop_gradient(p_BSPG.sum(axis=3))

    def add_heads(sum_BSP: jax.Array, heads: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        o_NBRC, p_NBSP = jax.vmap(attend)(*heads)
        return sum_BSP + p_NBSP.sum(axis=0), o_NBRC

    together = J if B * S * P * G * J <= STEP_LOGITS else 1
    heads = jax.tree.map(lambda x_J_: x_J_.reshape(J // together, together, *x_J_.shape[1:]), (q_JBRC, k_JBSC, v_JBSC))
    sum_BSP, o_ANBRC = lax.scan(add_heads, jnp.zeros((B, S, P)), heads)
    o_BPHC = jnp.moveaxis(o_ANBRC.reshape(J, B, P, G, C), 0, 2).reshape(q_BPHC.shape)
    return o_BPHC, sum_BSP.swapaxes(1, 2) / (J * G)
