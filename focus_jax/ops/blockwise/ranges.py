"""One pass of attention: every block of queries meets one contiguous range of key blocks. For one batch row.

H, J, C as in attention.py · G = H/J query heads of one key/value head · Q query blocks of X rows · R = G·X rows of one
key/value head in a query block · P key slots · Y key slots of one step. Logits are in units of log 2.

Matrix products are arranged so that the dimension summed over is the last of the left and the first of the right
factor: on a CPU other orders are up to four times slower.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import FLOOR, LN_2, add_at, exp2, fold_heads, matmul, scaled, unfold_heads
from focus_jax.ops.blockwise.rules import Rule, Tile


def attend(
    q_QXHC: jax.Array, k_JPC: jax.Array, v_JPC: jax.Array, rule: Rule, scale: float
) -> tuple[jax.Array, jax.Array]:
    """The pass's own softmax: o_QXHC in float32, and lse_QXH, −∞ where it keeps nothing."""
    J, _, C = k_JPC.shape
    k_JCP = k_JPC.swapaxes(1, 2)

    def attend_block(block: tuple) -> tuple[jax.Array, jax.Array]:
        q_XHC, row, queries = block
        q_JRC = scaled(fold_heads(q_XHC, J), scale)
        R = q_JRC.shape[1]

        def step(start: jax.Array, size: int, near_edge: bool, carry: tuple) -> tuple:
            peak_JR1, total_JR1, o_JRC = carry
            k_JCY = lax.dynamic_slice_in_dim(k_JCP, start, size, axis=2)
            v_JYC = lax.dynamic_slice_in_dim(v_JPC, start, size, axis=1)
            s_JRY = rule.logits(matmul("jrc,jcy->jry", q_JRC, k_JCY), Tile(row, queries, start, size, near_edge))
            new_peak_JR1 = jnp.maximum(peak_JR1, s_JRY.max(axis=2, keepdims=True))
            p_JRY = exp2(s_JRY - new_peak_JR1)
            fade_JR1 = exp2(peak_JR1 - new_peak_JR1)
            total_JR1 = total_JR1 * fade_JR1 + p_JRY.sum(axis=2, keepdims=True)
            return new_peak_JR1, total_JR1, o_JRC * fade_JR1 + matmul("jry,jyc->jrc", p_JRY, v_JYC)

        nothing = (jnp.full((J, R, 1), FLOOR), jnp.zeros((J, R, 1)), jnp.zeros((J, R, C)))
        peak_JR1, total_JR1, o_JRC = rule.pairs.fold(step, row, J * R, nothing)
        o_JRC /= jnp.where(total_JR1 > 0, total_JR1, 1.0)
        lse_JR1 = jnp.where(total_JR1 > 0, peak_JR1 + jnp.log2(total_JR1), -jnp.inf)
        return unfold_heads(o_JRC, len(q_XHC)), unfold_heads(lse_JR1, len(q_XHC))[..., 0]

    return lax.map(attend_block, (q_QXHC, rule.pairs.rows_Q, rule.queries_Q))


def attend_backward(
    q_QXHC: jax.Array,
    k_JPC: jax.Array,
    v_JPC: jax.Array,
    do_QXHC: jax.Array,
    lse_QXH: jax.Array,
    delta_QXH: jax.Array,
    rule: Rule,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, Any, Any]:
    """Gradients of a pass that is part of a merged softmax, in float32.

    Args:
      lse_QXH, delta_QXH: of the merged output: its log-sum-exp, less whatever is added to all logits of a row, and
        do · o.

    Returns:
      dq_QXHC, dk_JPC, dv_JPC, and the rule's gradients, of the queries by block and of the keys.
    """
    J, P, C = k_JPC.shape
    k_JCP, v_JCP = k_JPC.swapaxes(1, 2), v_JPC.swapaxes(1, 2)

    def differentiate_block(sums: tuple, block: tuple) -> tuple[tuple, tuple]:
        q_XHC, do_XHC, lse_XH, delta_XH, row, queries = block
        q_JRC, do_JRC = scaled(fold_heads(q_XHC, J), scale), fold_heads(do_XHC, J)
        q_JCR, do_JCR = q_JRC.swapaxes(1, 2), do_JRC.swapaxes(1, 2)
        lse_JR1, delta_JR1 = fold_heads(lse_XH[..., None], J), fold_heads(delta_XH[..., None], J)

        def step(start: jax.Array, size: int, near_edge: bool, carry: tuple) -> tuple:
            dq_JRC, dqueries, dk_JCP, dv_JCP, dkeys = carry
            k_JCY = lax.dynamic_slice_in_dim(k_JCP, start, size, axis=2)
            k_JYC = lax.dynamic_slice_in_dim(k_JPC, start, size, axis=1)
            v_JCY = lax.dynamic_slice_in_dim(v_JCP, start, size, axis=2)
            s_JRY = matmul("jrc,jcy->jry", q_JRC, k_JCY)
            centred_dp_JRY = matmul("jrc,jcy->jry", do_JRC, v_JCY) - delta_JR1
            tile = Tile(row, queries, start, size, near_edge)
            p_JRY, ds_JRY, dqueries, dkeys = rule.backward(s_JRY, centred_dp_JRY, lse_JR1, tile, dqueries, dkeys)
            dq_JRC += matmul("jry,jyc->jrc", ds_JRY, k_JYC)
            dk_JCP = add_at(dk_JCP, matmul("jcr,jry->jcy", q_JCR, ds_JRY), start, axis=2)
            dv_JCP = add_at(dv_JCP, matmul("jcr,jry->jcy", do_JCR, p_JRY), start, axis=2)
            return dq_JRC, dqueries, dk_JCP, dv_JCP, dkeys

        nothing = (jnp.zeros(q_JRC.shape), jax.tree.map(jnp.zeros_like, queries), *sums)
        dq_JRC, dqueries, *sums = rule.pairs.fold(step, row, J * q_JRC.shape[1], nothing)
        return tuple(sums), (unfold_heads(dq_JRC, len(q_XHC)), dqueries)

    nothing = (jnp.zeros((J, C, P)), jnp.zeros((J, C, P)), jax.tree.map(jnp.zeros_like, rule.keys))
    blocks = (q_QXHC, do_QXHC, lse_QXH, delta_QXH, rule.pairs.rows_Q, rule.queries_Q)
    (dk_JCP, dv_JCP, dkeys), (dq_QXHC, dqueries_Q) = lax.scan(differentiate_block, nothing, blocks)
    return dq_QXHC * scale, dk_JCP.swapaxes(1, 2) * LN_2, dv_JCP.swapaxes(1, 2), dqueries_Q, dkeys
