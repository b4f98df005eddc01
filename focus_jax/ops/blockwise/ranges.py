"""One pass of attention: every block of queries meets one contiguous range of key blocks. For one batch row.

H, J, C as in attention.py · G = H/J query heads of one key/value head · Q query blocks of X rows, Z of them taken
together · R = G·X rows of one key/value head in a query block · P key slots · Y key slots of one step. Logits are in
units of log 2.

Matrix products are arranged so that the dimension summed over is the last of the left and the first of the right
factor: on a CPU other orders are up to four times slower.
"""

from typing import Any

import jax
import jax.numpy as jnp

from focus_jax.ops.blockwise.numerics import (
    FLOOR,
    LN_2,
    add_slices,
    exp2,
    fold_heads,
    matmul,
    rows_at,
    scaled,
    slices,
    unfold_heads,
    with_rows,
)
from focus_jax.ops.blockwise.pairs import Columns
from focus_jax.ops.blockwise.rules import Rule, Tile


def attend(
    q_THC: jax.Array, k_JPC: jax.Array, v_JPC: jax.Array, rule: Rule, scale: float
) -> tuple[jax.Array, jax.Array]:
    """The pass's own softmax: o_QXHC in float32, and lse_QXH, −∞ where it keeps nothing. q as Pairs.query_rows."""
    J, _, C = k_JPC.shape
    (Q, X), H = rule.pairs.ranges_Q.position_ZX.shape, q_THC.shape[1]
    k_JCP = k_JPC.swapaxes(1, 2)

    def attend_blocks(index_Z: jax.Array, is_new_Z: jax.Array, results: tuple) -> tuple:
        ranges, queries = rule.pairs.ranges_Q.chosen(index_Z, is_new_Z), rows_at(rule.queries_Q, index_Z)
        q_ZJRC = scaled(fold_heads(rule.pairs.rows_at(q_THC, index_Z), J), scale)
        ZJR1 = (*q_ZJRC.shape[:3], 1)

        def step(columns: Columns, carry: tuple) -> tuple:
            peak_ZJR1, total_ZJR1, o_ZJRC = carry
            k_ZJCY = slices(k_JCP, columns.start_Z, columns.size, axis=2)
            v_ZJYC = slices(v_JPC, columns.start_Z, columns.size, axis=1)
            s_ZJRY = rule.logits(matmul("zjrc,zjcy->zjry", q_ZJRC, k_ZJCY), Tile(ranges, queries, columns))
            new_peak_ZJR1 = jnp.maximum(peak_ZJR1, s_ZJRY.max(axis=3, keepdims=True))
            p_ZJRY = exp2(s_ZJRY - new_peak_ZJR1)
            fade_ZJR1 = exp2(peak_ZJR1 - new_peak_ZJR1)
            total_ZJR1 = total_ZJR1 * fade_ZJR1 + p_ZJRY.sum(axis=3, keepdims=True)
            return new_peak_ZJR1, total_ZJR1, o_ZJRC * fade_ZJR1 + matmul("zjry,zjyc->zjrc", p_ZJRY, v_ZJYC)

        nothing = (jnp.full(ZJR1, FLOOR), jnp.zeros(ZJR1), jnp.zeros(q_ZJRC.shape))
        peak_ZJR1, total_ZJR1, o_ZJRC = rule.pairs.fold_steps(step, ranges, q_ZJRC.size // C, nothing)
        o_ZJRC /= jnp.where(total_ZJR1 > 0, total_ZJR1, 1.0)
        lse_ZJR1 = jnp.where(total_ZJR1 > 0, peak_ZJR1 + jnp.log2(total_ZJR1), -jnp.inf)
        return with_rows(results, (unfold_heads(o_ZJRC, X), unfold_heads(lse_ZJR1, X)[..., 0]), index_Z)

    nothing = (jnp.zeros((Q, X, H, C)), jnp.full((Q, X, H), -jnp.inf))
    return rule.pairs.fold_blocks(attend_blocks, nothing)


def attend_backward(
    q_THC: jax.Array,
    k_JPC: jax.Array,
    v_JPC: jax.Array,
    do_THC: jax.Array,
    lse_TH: jax.Array,
    delta_TH: jax.Array,
    rule: Rule,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array, Any, Any]:
    """Gradients of a pass that is part of a merged softmax, in float32.

    Args:
      q_THC, do_THC, lse_TH, delta_TH: as Pairs.query_rows; lse and delta are those of the merged output: its
        log-sum-exp, finite, and do · o.

    Returns:
      dq_QXHC, dk_JPC, dv_JPC, and the rule's gradients, of the queries by block and of the keys.
    """
    J, P, C = k_JPC.shape
    (Q, X), H = rule.pairs.ranges_Q.position_ZX.shape, q_THC.shape[1]
    k_JCP, v_JCP = k_JPC.swapaxes(1, 2), v_JPC.swapaxes(1, 2)

    def differentiate_blocks(index_Z: jax.Array, is_new_Z: jax.Array, gradients: tuple) -> tuple:
        of_queries, of_keys = gradients
        ranges, queries = rule.pairs.ranges_Q.chosen(index_Z, is_new_Z), rows_at(rule.queries_Q, index_Z)
        rows_T_ = q_THC, do_THC, lse_TH, delta_TH
        q_ZXHC, do_ZXHC, lse_ZXH, delta_ZXH = (rule.pairs.rows_at(rows, index_Z) for rows in rows_T_)
        q_ZJRC, do_ZJRC = scaled(fold_heads(q_ZXHC, J), scale), fold_heads(do_ZXHC, J)
        q_ZJCR, do_ZJCR = q_ZJRC.swapaxes(2, 3), do_ZJRC.swapaxes(2, 3)
        lse_ZJR1, delta_ZJR1 = fold_heads(lse_ZXH[..., None], J), fold_heads(delta_ZXH[..., None], J)

        def step(columns: Columns, carry: tuple) -> tuple:
            (dq_ZJRC, dqueries), (dk_JCP, dv_JCP, dkeys) = carry
            k_ZJCY = slices(k_JCP, columns.start_Z, columns.size, axis=2)
            k_ZJYC = slices(k_JPC, columns.start_Z, columns.size, axis=1)
            v_ZJCY = slices(v_JCP, columns.start_Z, columns.size, axis=2)
            s_ZJRY = matmul("zjrc,zjcy->zjry", q_ZJRC, k_ZJCY)
            centred_dp_ZJRY = matmul("zjrc,zjcy->zjry", do_ZJRC, v_ZJCY) - delta_ZJR1
            tile = Tile(ranges, queries, columns)
            p_ZJRY, ds_ZJRY, dqueries, dkeys = rule.backward(s_ZJRY, centred_dp_ZJRY, lse_ZJR1, tile, dqueries, dkeys)
            dq_ZJRC += matmul("zjry,zjyc->zjrc", ds_ZJRY, k_ZJYC)
            dk_JCP = add_slices(dk_JCP, matmul("zjcr,zjry->zjcy", q_ZJCR, ds_ZJRY), columns.start_Z, axis=2)
            dv_JCP = add_slices(dv_JCP, matmul("zjcr,zjry->zjcy", do_ZJCR, p_ZJRY), columns.start_Z, axis=2)
            return (dq_ZJRC, dqueries), (dk_JCP, dv_JCP, dkeys)

        nothing = (jnp.zeros(q_ZJRC.shape), jax.tree.map(jnp.zeros_like, queries))
        (dq_ZJRC, dqueries), of_keys = rule.pairs.fold_steps(step, ranges, q_ZJRC.size // C, (nothing, of_keys))
        return with_rows(of_queries, (unfold_heads(dq_ZJRC, X), dqueries), index_Z), of_keys

    of_queries = (jnp.zeros((Q, X, H, C)), jax.tree.map(jnp.zeros_like, rule.queries_Q))
    of_keys = (jnp.zeros((J, C, P)), jnp.zeros((J, C, P)), jax.tree.map(jnp.zeros_like, rule.keys))
    of_queries, of_keys = rule.pairs.fold_blocks(differentiate_blocks, (of_queries, of_keys))
    (dq_QXHC, dqueries_Q), (dk_JCP, dv_JCP, dkeys) = of_queries, of_keys
    return dq_QXHC * scale, dk_JCP.swapaxes(1, 2) * LN_2, dv_JCP.swapaxes(1, 2), dqueries_Q, dkeys
