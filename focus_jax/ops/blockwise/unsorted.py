"""Attention to all keys, or to those within a window, in the tokens' own order. For one batch row.

T, S, H, J, C as in attention.py · P key slots · Q query blocks of X rows.
"""

import jax

from focus_jax.ops.blockwise import ranges, window
from focus_jax.ops.blockwise.pairs import tokens_of_blocks, unsorted_pairs
from focus_jax.ops.blockwise.rules import Kept


def attend(
    q_THC: jax.Array, k_SJC: jax.Array, v_SJC: jax.Array, *, farthest: int | None, query_offset: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys at distance 0 … farthest (None: all before): o_THC in float32, lse_TH in units of log 2."""
    if farthest is not None and farthest <= window.WIDEST:
        return window.attend(q_THC, k_SJC, v_SJC, farthest=farthest, query_offset=query_offset, scale=scale)
    T = len(q_THC)
    pairs = unsorted_pairs(T, len(k_SJC), query_offset=query_offset, farthest=farthest)
    k_JPC, v_JPC = (pairs.key_slots(x_SJC).swapaxes(0, 1) for x_SJC in (k_SJC, v_SJC))
    o_QXHC, lse_QXH = ranges.attend(pairs.query_rows(q_THC), k_JPC, v_JPC, Kept(pairs), scale)
    return tokens_of_blocks(o_QXHC, T), tokens_of_blocks(lse_QXH, T)


def attend_backward(
    q_THC: jax.Array,
    k_SJC: jax.Array,
    v_SJC: jax.Array,
    do_THC: jax.Array,
    lse_TH: jax.Array,
    delta_TH: jax.Array,
    *,
    farthest: int | None,
    query_offset: int,
    scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """dq_THC, dk_SJC, dv_SJC in float32, as ranges.attend_backward."""
    if farthest is not None and farthest <= window.WIDEST:
        return window.attend_backward(
            q_THC, k_SJC, v_SJC, do_THC, lse_TH, delta_TH, farthest=farthest, query_offset=query_offset, scale=scale
        )
    T, S = len(q_THC), len(k_SJC)
    pairs = unsorted_pairs(T, S, query_offset=query_offset, farthest=farthest)
    k_JPC, v_JPC = (pairs.key_slots(x_SJC).swapaxes(0, 1) for x_SJC in (k_SJC, v_SJC))
    q, do, lse, delta = map(pairs.query_rows, (q_THC, do_THC, lse_TH, delta_TH))
    dq_QXHC, dk_JPC, dv_JPC, *_ = ranges.attend_backward(q, k_JPC, v_JPC, do, lse, delta, Kept(pairs), scale)
    return tokens_of_blocks(dq_QXHC, T), dk_JPC.swapaxes(0, 1)[:S], dv_JPC.swapaxes(0, 1)[:S]
