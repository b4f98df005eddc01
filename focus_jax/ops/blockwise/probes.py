"""Dense rows at a few positions, with what they attend to. Letters as in attention.py; G = H/J."""

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import matmul


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    """One key/value head after the other, so that a sequence never holds more than G times P×S numbers."""
    B, P = positions_BP.shape
    H, (S, J, C) = q_BTHC.shape[2], k_BSJC.shape[1:]
    visible_BPS = jnp.arange(S) <= positions_BP[..., None]
    q_BPHC = jnp.take_along_axis(q_BTHC, positions_BP[..., None, None], axis=1)
    q_JBPGC = jnp.moveaxis(q_BPHC.reshape(B, P, J, H // J, C), 2, 0)
    # A key that no row sees may hold anything.
    read_BS11 = visible_BPS.any(axis=1)[..., None, None]
    k_JBSC, v_JBSC = (jnp.moveaxis(jnp.where(read_BS11, x_BSJC, 0), 2, 0) for x_BSJC in (k_BSJC, v_BSJC))

    @jax.checkpoint
    def attend(q_BPGC: jax.Array, k_BSC: jax.Array, v_BSC: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BPGS = scale * matmul("bpgc,bsc->bpgs", q_BPGC, k_BSC)
        p_BPGS = jax.nn.softmax(logits_BPGS, axis=-1, where=visible_BPS[:, :, None])
        o_BPGC = matmul("bpgs,bsc->bpgc", p_BPGS.astype(v_BSC.dtype), v_BSC)
        return o_BPGC.astype(q_BPGC.dtype), lax.stop_gradient(p_BPGS.sum(axis=2))

    def add_head(sum_BPS: jax.Array, head: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        o_BPGC, p_BPS = attend(*head)
        return sum_BPS + p_BPS, o_BPGC

    sum_BPS, o_JBPGC = lax.scan(add_head, jnp.zeros((B, P, S)), (q_JBPGC, k_JBSC, v_JBSC))
    return jnp.moveaxis(o_JBPGC, 0, 2).reshape(q_BPHC.shape), sum_BPS / H
