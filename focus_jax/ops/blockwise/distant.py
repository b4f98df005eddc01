"""Distant pairs of routed attention: both sides sorted by group, then one pass over the blocks that meet.

Letters as in attention.py · P slots of one side, Q query blocks of X slots.
"""

import jax
import jax.numpy as jnp

from focus_jax.ops.blockwise import ranges
from focus_jax.ops.blockwise.numerics import FLOOR, map_rows
from focus_jax.ops.blockwise.pairs import sorted_pairs
from focus_jax.ops.blockwise.rules import GatedByToken, Kept, Rule
from focus_jax.ops.layout import Layout, build_layout, rows_to_slots, slots_to_tokens
from focus_jax.ops.merged import Gates, Statics

LARGEST_QUERY_BLOCK = 256
LARGEST_KEY_BLOCK = 128
"""Fewer pairs beyond the causal edge than with 256 keys, at the same speed for each, as a step takes several blocks."""
SMALLEST_BLOCK = 32


def layout_for(
    q_BTHC: jax.Array,
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    with_gradient: bool,
    statics: Statics,
) -> Layout:
    """With blocks so small that balanced groups fill several of them."""
    return build_layout(
        query_groups_BTM,
        key_groups_BSN,
        num_groups=statics.num_groups,
        window=statics.window,
        query_offset=statics.query_offset,
        query_block=_block(query_groups_BTM, statics.num_groups, LARGEST_QUERY_BLOCK),
        key_block=_block(key_groups_BSN, statics.num_groups, LARGEST_KEY_BLOCK),
    )


def _block(groups_BTM: jax.Array, num_groups: int, largest: int) -> int:
    entries_per_group = groups_BTM.shape[1] * groups_BTM.shape[2] // num_groups
    block = largest
    while block > SMALLEST_BLOCK and block * 2 > entries_per_group:
        block //= 2
    return block


def attend(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    layout: Layout,
    gates: Gates | None,
    statics: Statics,
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the distant keys that each entry of a query reads: o_BPHC (float32), lse_BPH in units of log 2."""

    def attend_row(row: tuple) -> tuple[jax.Array, jax.Array]:
        q_THC, k_PJC, v_PJC, layout, gates = row
        k_JPC, v_JPC = k_PJC.swapaxes(0, 1), v_PJC.swapaxes(0, 1)
        rule = _rule(layout, gates, statics.window, q_THC.shape[1])
        o_QXHC, lse_QXH = ranges.attend(q_THC, k_JPC, v_JPC, rule, statics.scale)
        return _slots(o_QXHC), _slots(lse_QXH)

    k_BPJC, v_BPJC = (rows_to_slots(x_BSJC, layout.key) for x_BSJC in (k_BSJC, v_BSJC))
    return map_rows(attend_row, (q_BTHC, k_BPJC, v_BPJC, layout, gates))


def attend_backward(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    do_BTHC: jax.Array,
    lse_BTH: jax.Array,
    delta_BTH: jax.Array,
    layout: Layout,
    gates: Gates | None,
    statics: Statics,
) -> tuple[jax.Array, jax.Array, jax.Array, Gates | None]:
    """In float32; arguments as ranges.attend_backward."""

    def differentiate_row(row: tuple) -> tuple:
        q_THC, k_PJC, v_PJC, do_THC, lse_TH, delta_TH, layout, gates = row
        k_JPC, v_JPC = k_PJC.swapaxes(0, 1), v_PJC.swapaxes(0, 1)
        rule = _rule(layout, gates, statics.window, q_THC.shape[1])
        dq_QXHC, dk_JPC, dv_JPC, dquery_gate_QX, dkey_gate_P = ranges.attend_backward(
            q_THC, k_JPC, v_JPC, do_THC, lse_TH, delta_TH, rule, statics.scale
        )
        dgates = None if gates is None else Gates(_slots(dquery_gate_QX), dkey_gate_P)
        return _slots(dq_QXHC), dk_JPC.swapaxes(0, 1), dv_JPC.swapaxes(0, 1), dgates

    k_BPJC, v_BPJC = (rows_to_slots(x_BSJC, layout.key) for x_BSJC in (k_BSJC, v_BSJC))
    rows = (q_BTHC, k_BPJC, v_BPJC, do_BTHC, jnp.maximum(lse_BTH, FLOOR), delta_BTH, layout, gates)
    dq_BPHC, dk_BPJC, dv_BPJC, dgates = map_rows(differentiate_row, rows)
    dq_BTHC = slots_to_tokens(dq_BPHC, layout.query)
    return dq_BTHC, slots_to_tokens(dk_BPJC, layout.key), slots_to_tokens(dv_BPJC, layout.key), dgates


def _rule(layout: Layout, gates: Gates | None, window: int, heads: int) -> Rule:
    """Of one batch row."""
    pairs = sorted_pairs(layout, window, heads)
    return Kept(pairs) if gates is None else GatedByToken(pairs, _blocks(gates.query_BP, layout), gates.key_BP)


def _blocks(rows_P_: jax.Array, layout: Layout) -> jax.Array:
    return rows_P_.reshape(-1, layout.query.block, *rows_P_.shape[1:])


def _slots(rows_QX_: jax.Array) -> jax.Array:
    return rows_QX_.reshape(-1, *rows_QX_.shape[2:])
