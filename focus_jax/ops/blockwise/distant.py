"""Distant pairs of routed attention: both sides sorted by group, then one pass over the blocks that meet.

Letters as in attention.py · P slots of one side, Q query blocks of X slots.
"""

import jax
import jax.numpy as jnp

from focus_jax.ops.blockwise import ranges
from focus_jax.ops.blockwise.numerics import FLOOR, map_rows
from focus_jax.ops.blockwise.pairs import sorted_pairs
from focus_jax.ops.blockwise.rules import GatedByToken, Kept, Rule
from focus_jax.ops.layout import Layout, build_layout, rows_to_slots, slots_to_entries
from focus_jax.ops.merged import Gates, Statics

LARGEST_BLOCK = 256
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
        query_block=_block(query_groups_BTM, statics.num_groups),
        key_block=_block(key_groups_BSN, statics.num_groups),
    )


def _block(groups_BTM: jax.Array, num_groups: int) -> int:
    entries_per_group = groups_BTM.shape[1] * groups_BTM.shape[2] // num_groups
    block = LARGEST_BLOCK
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
    """Softmax over the distant keys that each entry of a query reads: o_BTMHC (float32), lse_BTMH in units of log 2."""

    def attend_row(row: tuple) -> tuple[jax.Array, jax.Array]:
        q_PHC, k_PJC, v_PJC, layout, gates = row
        k_JPC, v_JPC = k_PJC.swapaxes(0, 1), v_PJC.swapaxes(0, 1)
        o_QXHC, lse_QXH = ranges.attend(
            _blocks(q_PHC, layout), k_JPC, v_JPC, _rule(layout, gates, statics.window, q_BTHC.shape[2]), statics.scale
        )
        return _slots(o_QXHC), _slots(lse_QXH)

    o_BPHC, lse_BPH = map_rows(attend_row, (*_sorted(q_BTHC, k_BSJC, v_BSJC, layout), layout, gates))
    has_slot_BTM1 = (layout.query.slot_BE < lse_BPH.shape[1]).reshape(*q_BTHC.shape[:2], -1, 1)
    lse_BTMH = jnp.where(has_slot_BTM1, slots_to_entries(lse_BPH, layout.query), -jnp.inf)
    return slots_to_entries(o_BPHC, layout.query), lse_BTMH


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
        q_PHC, k_PJC, v_PJC, do_PHC, lse_PH, delta_PH, layout, gates = row
        dq_QXHC, dk_JPC, dv_JPC, dquery_gate_QX, dkey_gate_P = ranges.attend_backward(
            _blocks(q_PHC, layout),
            k_PJC.swapaxes(0, 1),
            v_PJC.swapaxes(0, 1),
            _blocks(do_PHC, layout),
            _blocks(lse_PH, layout),
            _blocks(delta_PH, layout),
            _rule(layout, gates, statics.window, q_BTHC.shape[2]),
            statics.scale,
        )
        dgates = None if gates is None else Gates(_slots(dquery_gate_QX), dkey_gate_P)
        return _slots(dq_QXHC), dk_JPC.swapaxes(0, 1), dv_JPC.swapaxes(0, 1), dgates

    rows_BT_ = do_BTHC, jnp.maximum(lse_BTH, FLOOR), delta_BTH
    rows = (rows_to_slots(row_BT_, layout.query) for row_BT_ in rows_BT_)
    dq_BPHC, dk_BPJC, dv_BPJC, dgates = map_rows(
        differentiate_row, (*_sorted(q_BTHC, k_BSJC, v_BSJC, layout), *rows, layout, gates)
    )
    dq_BTHC = slots_to_entries(dq_BPHC, layout.query).sum(axis=2)
    dk_BSJC, dv_BSJC = (slots_to_entries(x_BPJC, layout.key).sum(axis=2) for x_BPJC in (dk_BPJC, dv_BPJC))
    return dq_BTHC, dk_BSJC, dv_BSJC, dgates


def _rule(layout: Layout, gates: Gates | None, window: int, heads: int) -> Rule:
    """Of one batch row."""
    pairs = sorted_pairs(layout, window, heads)
    return Kept(pairs) if gates is None else GatedByToken(pairs, _blocks(gates.query_BP, layout), gates.key_BP)


def _sorted(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, layout: Layout) -> tuple:
    return rows_to_slots(q_BTHC, layout.query), rows_to_slots(k_BSJC, layout.key), rows_to_slots(v_BSJC, layout.key)


def _blocks(rows_P_: jax.Array, layout: Layout) -> jax.Array:
    return rows_P_.reshape(-1, layout.query.block, *rows_P_.shape[1:])


def _slots(rows_QX_: jax.Array) -> jax.Array:
    return rows_QX_.reshape(-1, *rows_QX_.shape[2:])
