"""Dense rows at a few positions, with what they attend to. Letters as in attention.py; G = H/J, R = P·G rows."""

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import matmul


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    """One key/value head after the other, so that a sequence never holds more than G times P×S numbers. Keys lie along
    the last dimension, for the sake of the products (ranges.py)."""
    B, P = positions_BP.shape
    S, J, C = k_BSJC.shape[1:]
    G = q_BTHC.shape[2] // J
    visible_BPS = jnp.arange(S) <= positions_BP[..., None]
    q_BPHC = jnp.take_along_axis(q_BTHC, positions_BP[..., None, None], axis=1)
    q_JBRC = jnp.moveaxis(q_BPHC.reshape(B, P, J, G, C), 2, 0).reshape(J, B, P * G, C)
    # A key that no row sees may hold anything.
    read_BS11 = visible_BPS.any(axis=1)[..., None, None]
    k_JBCS, v_JBCS = (jnp.where(read_BS11, x_BSJC, 0).transpose(2, 0, 3, 1) for x_BSJC in (k_BSJC, v_BSJC))

    @jax.checkpoint
    def attend(q_BRC: jax.Array, k_BCS: jax.Array, v_BCS: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits_BRS = scale * matmul("brc,bcs->brs", q_BRC, k_BCS)
        p_BPGS = jax.nn.softmax(logits_BRS.reshape(B, P, G, S), axis=-1, where=visible_BPS[:, :, None])
        o_BRC = matmul("brs,bcs->brc", p_BPGS.reshape(logits_BRS.shape).astype(v_BCS.dtype), v_BCS)
        return o_BRC.astype(q_BRC.dtype), lax.stop_gradient(p_BPGS.sum(axis=2))

    def add_head(sum_BPS: jax.Array, head: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        o_BRC, p_BPS = attend(*head)
        return sum_BPS + p_BPS, o_BRC

    sum_BPS, o_JBRC = lax.scan(add_head, jnp.zeros((B, P, S)), (q_JBRC, k_JBCS, v_JBCS))
    return jnp.moveaxis(o_JBRC.reshape(J, B, P, G, C), 0, 2).reshape(q_BPHC.shape), sum_BPS / (J * G)
