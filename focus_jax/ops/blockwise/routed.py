"""Routed attention: a local pass in the tokens' own order and a distant pass in the order of a layout, merged.

Letters as in attention.py. Log-sum-exps are in units of log 2.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise import distant, unsorted
from focus_jax.ops.blockwise.dense import dense_attention
from focus_jax.ops.blockwise.numerics import FLOOR, exp2
from focus_jax.ops.layout import Layout


class Statics(NamedTuple):
    """What is known when the program is compiled."""

    window: int
    query_offset: int
    scale: float


def routed_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    *,
    num_groups: int,
    window: int,
    query_gate_BTM: jax.Array | None,
    key_gate_BS: jax.Array | None,
    query_offset: int,
    scale: float,
) -> jax.Array:
    last_position = query_offset + q_BTHC.shape[1] - 1
    if window >= last_position:
        return dense_attention(q_BTHC, k_BSJC, v_BSJC, query_offset=query_offset, scale=scale)
    statics = Statics(window, query_offset, scale)
    if 0 in (query_groups_BTM.shape[2], key_groups_BSN.shape[2]):
        return _attention(statics, q_BTHC, k_BSJC, v_BSJC, None, None, None)
    layout = distant.layout_of(
        query_groups_BTM, key_groups_BSN, num_groups=num_groups, window=window, query_offset=query_offset
    )
    return _attention(statics, q_BTHC, k_BSJC, v_BSJC, query_gate_BTM, key_gate_BS, layout)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    statics: Statics,
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_gate_BTM: jax.Array | None,
    key_gate_BS: jax.Array | None,
    layout: Layout | None,
) -> jax.Array:
    return _forward(statics, q_BTHC, k_BSJC, v_BSJC, query_gate_BTM, key_gate_BS, layout)[0]


def _forward(
    statics: Statics,
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_gate_BTM: jax.Array | None,
    key_gate_BS: jax.Array | None,
    layout: Layout | None,
) -> tuple:
    window, query_offset, scale = statics
    local = partial(unsorted.attend, farthest=window, query_offset=query_offset, scale=scale)
    o_BTHC, lse_BTH = lax.map(lambda row: local(*row), (q_BTHC, k_BSJC, v_BSJC))
    if layout is not None:
        gates = distant.gates_of(query_gate_BTM, key_gate_BS, layout)
        far = distant.attend(q_BTHC, k_BSJC, v_BSJC, layout, gates, window=window, scale=scale)
        o_BTHC, lse_BTH = merge(o_BTHC, lse_BTH, *far)
    o_BTHC = o_BTHC.astype(q_BTHC.dtype)
    return o_BTHC, (q_BTHC, k_BSJC, v_BSJC, query_gate_BTM, key_gate_BS, layout, o_BTHC, lse_BTH)


def _backward(statics: Statics, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    window, query_offset, scale = statics
    q_BTHC, k_BSJC, v_BSJC, query_gate_BTM, key_gate_BS, layout, o_BTHC, lse_BTH = residuals
    delta_BTH = jnp.sum(do_BTHC.astype(jnp.float32) * o_BTHC, axis=-1)
    merged = (q_BTHC, k_BSJC, v_BSJC, do_BTHC, jnp.maximum(lse_BTH, FLOOR), delta_BTH)
    local = partial(unsorted.attend_backward, farthest=window, query_offset=query_offset, scale=scale)
    dqkv = lax.map(lambda row: local(*row), merged)
    dquery_gate_BTM, dkey_gate_BS = None, None
    if layout is not None:
        gates = distant.gates_of(query_gate_BTM, key_gate_BS, layout)
        *far, dquery_gate_BTM, dkey_gate_BS = distant.attend_backward(
            *merged, layout, gates, window=window, scale=scale
        )
        dqkv = jax.tree.map(jnp.add, dqkv, tuple(far))
    dq_BTHC, dk_BSJC, dv_BSJC = (gradient.astype(q_BTHC.dtype) for gradient in dqkv)
    dquery_gate_BTM = None if query_gate_BTM is None else dquery_gate_BTM
    dkey_gate_BS = None if key_gate_BS is None else dkey_gate_BS
    return dq_BTHC, dk_BSJC, dv_BSJC, dquery_gate_BTM, dkey_gate_BS, None


_attention.defvjp(_forward, _backward)


def merge(
    o_BTHC: jax.Array, lse_BTH: jax.Array, far_o_BTMHC: jax.Array, far_lse_BTMH: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The softmax over all parts: their values, each by its share; parts without keys (lse −∞) contribute exactly 0."""
    peak_BTH = jnp.maximum(jnp.maximum(lse_BTH, far_lse_BTMH.max(axis=2)), FLOOR)
    share_BTH = exp2(lse_BTH - peak_BTH)
    far_share_BTMH = exp2(far_lse_BTMH - peak_BTH[:, :, None])
    total_BTH = share_BTH + far_share_BTMH.sum(axis=2)
    sum_BTHC = share_BTH[..., None] * o_BTHC + (far_share_BTMH[..., None] * far_o_BTMHC).sum(axis=2)
    some_BTH = total_BTH > 0
    return (
        sum_BTHC / jnp.where(some_BTH, total_BTH, 1.0)[..., None],
        jnp.where(some_BTH, peak_BTH + jnp.log2(total_BTH), -jnp.inf),
    )
