"""The distant pass: tokens gathered into the slots of a layout, attended to there, and gathered back.

B, T, S, H, J, C, M, N as in attention.py · P slots of one side.
"""

import jax

from focus_jax.ops.layout import Layout, build_layout, rows_to_slots, slots_to_tokens
from focus_jax.ops.merged import Gates, Statics
from focus_jax.ops.pallas import passes, tuning
from focus_jax.ops.pallas.groups import Groups
from focus_jax.ops.pallas.kernels import LOG2_E


def layout_for(
    q_BTHC: jax.Array,
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    with_gradient: bool,
    statics: Statics,
) -> Layout:
    kernels = tuning.KERNELS if with_gradient else tuning.FORWARD_ONLY
    query_block, key_block = tuning.layout_blocks(kernels, q_BTHC.shape[-1], q_BTHC.dtype)
    return build_layout(
        query_groups_BTM,
        key_groups_BSN,
        num_groups=statics.num_groups,
        window=statics.window,
        query_offset=statics.query_offset,
        query_block=query_block,
        key_block=key_block,
    )


def attend(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, layout: Layout, gates: Gates | None, statics: Statics
) -> tuple[jax.Array, jax.Array]:
    """o_BPHC and lse_BPH in the slots of queries: zeros and −∞ where one keeps no pair."""
    pattern = _pattern(layout, gates, statics)
    o_BPHC, lse_BHP = passes.forward(pattern, statics.scale, *_in_slots(q_BTHC, k_BSJC, v_BSJC, layout))
    if gates is not None:
        lse_BHP += gates.query_BP[:, None] * LOG2_E
    return o_BPHC, lse_BHP.swapaxes(1, 2)


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
    query, key = layout.query, layout.key
    do_BPHC = rows_to_slots(do_BTHC, query)
    lse_BHP, delta_BHP = (rows_to_slots(rows_BTH, query).swapaxes(1, 2) for rows_BTH in (lse_BTH, delta_BTH))
    if gates is not None:
        lse_BHP -= gates.query_BP[:, None] * LOG2_E
    pattern = _pattern(layout, gates, statics)
    qkv = _in_slots(q_BTHC, k_BSJC, v_BSJC, layout)
    part = passes.backward(pattern, statics.scale, *qkv, do_BPHC, lse_BHP, delta_BHP)
    dgates = None
    if part.row_sums_BHT is not None and part.key_sums_BJS is not None:
        dgates = Gates(part.row_sums_BHT.sum(axis=1), part.key_sums_BJS.sum(axis=1))
    dq_BTHC = slots_to_tokens(part.dq_BTHC, query)
    return dq_BTHC, slots_to_tokens(part.dk_BSJC, key), slots_to_tokens(part.dv_BSJC, key), dgates


def _pattern(layout: Layout, gates: Gates | None, statics: Statics) -> Groups:
    return Groups(layout, statics.window, None if gates is None else gates.key_BP * LOG2_E)


def _in_slots(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, layout: Layout
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """In empty slots zeros, which add nothing to any sum."""
    return rows_to_slots(q_BTHC, layout.query), rows_to_slots(k_BSJC, layout.key), rows_to_slots(v_BSJC, layout.key)
