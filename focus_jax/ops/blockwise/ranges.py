"""One pass of attention: every block of queries meets one contiguous range of key blocks. For one batch row.

H, J, C as in attention.py · G = H/J query heads of one key/value head · Q query blocks of X rows · R = G·X rows of one
key/value head in a query block · P key slots · Y key slots of one step. Matrix products are arranged so that the inner
dimension is the second of the left and the first of the right factor: on a CPU other orders are up to four times slower.
"""

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import FLOOR, LN_2, LOG2_E, add_at, exp2, fold_heads, matmul, unfold_heads
from focus_jax.ops.blockwise.pairs import Pairs, Row


def attend(
    q_QXHC: jax.Array, k_JPC: jax.Array, v_JPC: jax.Array, key_gate_P: jax.Array | None, pairs: Pairs, scale: float
) -> tuple[jax.Array, jax.Array]:
    """The pass's own softmax: o_QXHC in float32, and lse_QXH in units of log 2, −∞ where it keeps nothing."""
    J, _, C = k_JPC.shape
    k_JCP = k_JPC.swapaxes(1, 2)

    def attend_block(block: tuple[jax.Array, Row]) -> tuple[jax.Array, jax.Array]:
        q_XHC, row = block
        q_JRC = _scaled(fold_heads(q_XHC, J), scale)
        R = q_JRC.shape[1]

        def step(start: jax.Array, size: int, near_edge: bool, carry: tuple) -> tuple:
            peak_JR1, total_JR1, o_JRC = carry
            k_JCY = lax.dynamic_slice_in_dim(k_JCP, start, size, axis=2)
            v_JYC = lax.dynamic_slice_in_dim(v_JPC, start, size, axis=1)
            s_JRY = _logits(q_JRC, k_JCY, key_gate_P, pairs, row, start, near_edge)
            new_peak_JR1 = jnp.maximum(peak_JR1, s_JRY.max(axis=2, keepdims=True))
            p_JRY = exp2(s_JRY - new_peak_JR1)
            fade_JR1 = exp2(peak_JR1 - new_peak_JR1)
            total_JR1 = total_JR1 * fade_JR1 + p_JRY.sum(axis=2, keepdims=True)
            return new_peak_JR1, total_JR1, o_JRC * fade_JR1 + matmul("jry,jyc->jrc", p_JRY, v_JYC)

        nothing = (jnp.full((J, R, 1), FLOOR), jnp.zeros((J, R, 1)), jnp.zeros((J, R, C)))
        peak_JR1, total_JR1, o_JRC = pairs.fold(step, row, J * R * pairs.key_block, nothing)
        o_JRC /= jnp.where(total_JR1 > 0, total_JR1, 1.0)
        lse_JR1 = jnp.where(total_JR1 > 0, peak_JR1 + jnp.log2(total_JR1), -jnp.inf)
        return unfold_heads(o_JRC, len(q_XHC)), unfold_heads(lse_JR1, len(q_XHC))[..., 0]

    return lax.map(attend_block, (q_QXHC, pairs.rows_Q))


def attend_backward(
    q_QXHC: jax.Array,
    k_JPC: jax.Array,
    v_JPC: jax.Array,
    key_gate_P: jax.Array | None,
    do_QXHC: jax.Array,
    lse_QXH: jax.Array,
    delta_QXH: jax.Array,
    pairs: Pairs,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, tuple[jax.Array, jax.Array] | None]:
    """Gradients of a pass that is part of a merged softmax, in float32.

    Args:
      lse_QXH, delta_QXH: of the merged output: its log-sum-exp in units of log 2, less whatever is added to all logits
        of a row, and do · o.

    Returns:
      dq_QXHC, dk_JPC, dv_JPC, and with a key gate Σ ds by row (the gradient of what is added to all its logits) and by
      key: dgate_QXH, dgate_P.
    """
    J, P, C = k_JPC.shape
    k_JCP, v_JCP = k_JPC.swapaxes(1, 2), v_JPC.swapaxes(1, 2)

    def differentiate_block(sums: tuple, block: tuple) -> tuple[tuple, tuple]:
        q_XHC, do_XHC, lse_XH, delta_XH, row = block
        q_JRC, do_JRC = _scaled(fold_heads(q_XHC, J), scale), fold_heads(do_XHC, J)
        q_JCR, do_JCR = q_JRC.swapaxes(1, 2), do_JRC.swapaxes(1, 2)
        lse_JR1, delta_JR1 = fold_heads(lse_XH[..., None], J), fold_heads(delta_XH[..., None], J)

        def step(start: jax.Array, size: int, near_edge: bool, carry: tuple) -> tuple:
            dq_JRC, dgate_JR1, dk_JCP, dv_JCP, dgate_P = carry
            k_JCY = lax.dynamic_slice_in_dim(k_JCP, start, size, axis=2)
            k_JYC = lax.dynamic_slice_in_dim(k_JPC, start, size, axis=1)
            v_JCY = lax.dynamic_slice_in_dim(v_JCP, start, size, axis=2)
            p_JRY = exp2(_logits(q_JRC, k_JCY, key_gate_P, pairs, row, start, near_edge) - lse_JR1)
            ds_JRY = p_JRY * (matmul("jrc,jcy->jry", do_JRC, v_JCY) - delta_JR1)
            dq_JRC += matmul("jry,jyc->jrc", ds_JRY, k_JYC)
            dk_JCP = add_at(dk_JCP, matmul("jcr,jry->jcy", q_JCR, ds_JRY), start, axis=2)
            dv_JCP = add_at(dv_JCP, matmul("jcr,jry->jcy", do_JCR, p_JRY), start, axis=2)
            if key_gate_P is not None:
                dgate_JR1 += ds_JRY.sum(axis=2, keepdims=True)
                dgate_P = add_at(dgate_P, ds_JRY.sum(axis=(0, 1)), start, axis=0)
            return dq_JRC, dgate_JR1, dk_JCP, dv_JCP, dgate_P

        nothing = (jnp.zeros(q_JRC.shape), jnp.zeros(lse_JR1.shape), *sums)
        dq_JRC, dgate_JR1, *sums = pairs.fold(step, row, J * q_JRC.shape[1] * pairs.key_block, nothing)
        return tuple(sums), (unfold_heads(dq_JRC, len(q_XHC)), unfold_heads(dgate_JR1, len(q_XHC))[..., 0])

    nothing = (jnp.zeros((J, C, P)), jnp.zeros((J, C, P)), jnp.zeros(P))
    blocks = (q_QXHC, do_QXHC, lse_QXH, delta_QXH, pairs.rows_Q)
    (dk_JCP, dv_JCP, dgate_P), (dq_QXHC, dgate_QXH) = lax.scan(differentiate_block, nothing, blocks)
    gates = None if key_gate_P is None else (dgate_QXH, dgate_P)
    return dq_QXHC * scale, dk_JCP.swapaxes(1, 2) * LN_2, dv_JCP.swapaxes(1, 2), gates


def _scaled(q_JRC: jax.Array, scale: float) -> jax.Array:
    """So that q · k is the logit in units of log 2."""
    return (q_JRC.astype(jnp.float32) * (scale * LOG2_E)).astype(q_JRC.dtype)


def _logits(
    q_JRC: jax.Array,
    k_JCY: jax.Array,
    key_gate_P: jax.Array | None,
    pairs: Pairs,
    row: Row,
    start: jax.Array,
    near_edge: bool,
) -> jax.Array:
    """In units of log 2, −∞ where the pair does not count."""
    s_JRY = matmul("jrc,jcy->jry", q_JRC, k_JCY)
    size = k_JCY.shape[2]
    if key_gate_P is not None:
        s_JRY += lax.dynamic_slice_in_dim(key_gate_P, start, size) * LOG2_E
    keep_XY = pairs.test(row, start, size, near_edge)
    if keep_XY is None:
        return s_JRY
    s_JGXY = s_JRY.reshape(len(s_JRY), -1, *keep_XY.shape)
    return jnp.where(keep_XY, s_JGXY, -jnp.inf).reshape(s_JRY.shape)
