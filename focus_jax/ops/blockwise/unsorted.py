"""Attention to all keys, or to those within a window, in the tokens' own order. For one batch row.

T, S, H, J, C as in attention.py · P key slots · Q query blocks of X rows.
"""

import jax

from focus_jax.ops.blockwise import ranges, window
from focus_jax.ops.blockwise.numerics import pad_to
from focus_jax.ops.blockwise.pairs import Pairs, blocks_of, unsorted_pairs

BLOCK = 256
SMALLEST_BLOCK = 16


def attend(
    q_THC: jax.Array, k_SJC: jax.Array, v_SJC: jax.Array, *, farthest: int | None, query_offset: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the keys at distance 0 … farthest (None: all before): o_THC in float32, lse_TH in units of log 2."""
    if farthest is not None and farthest <= window.WIDEST:
        return window.attend(q_THC, k_SJC, v_SJC, farthest=farthest, query_offset=query_offset, scale=scale)
    T = len(q_THC)
    pairs = _pairs(T, len(k_SJC), farthest, query_offset)
    o_QXHC, lse_QXH = ranges.attend(
        _blocks(q_THC, pairs), _slots(k_SJC, pairs), _slots(v_SJC, pairs), None, pairs, scale
    )
    return _tokens(o_QXHC, T), _tokens(lse_QXH, T)


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
    pairs = _pairs(T, S, farthest, query_offset)
    dq_QXHC, dk_JPC, dv_JPC, _ = ranges.attend_backward(
        _blocks(q_THC, pairs),
        _slots(k_SJC, pairs),
        _slots(v_SJC, pairs),
        None,
        _blocks(do_THC, pairs),
        _blocks(lse_TH, pairs),
        _blocks(delta_TH, pairs),
        pairs,
        scale,
    )
    return _tokens(dq_QXHC, T), dk_JPC.swapaxes(0, 1)[:S], dv_JPC.swapaxes(0, 1)[:S]


def _pairs(T: int, S: int, farthest: int | None, query_offset: int) -> Pairs:
    return unsorted_pairs(
        T, S, query_offset=query_offset, nearest=0, farthest=farthest, query_block=_block(T), key_block=_block(S)
    )


def _block(length: int) -> int:
    return min(BLOCK, blocks_of(length, SMALLEST_BLOCK) * SMALLEST_BLOCK)


def _blocks(rows_T_: jax.Array, pairs: Pairs) -> jax.Array:
    Q, X = pairs.rows_Q.position_X.shape
    return pad_to(rows_T_, Q * X).reshape(Q, X, *rows_T_.shape[1:])


def _tokens(rows_QX_: jax.Array, T: int) -> jax.Array:
    return rows_QX_.reshape(-1, *rows_QX_.shape[2:])[:T]


def _slots(x_SJC: jax.Array, pairs: Pairs) -> jax.Array:
    return pad_to(x_SJC, pairs.key_position_P.size).swapaxes(0, 1)
