"""Routed attention: a local pass in the tokens' own order and a distant pass in the order of a layout, merged.

B, T, S, H, J, C, M, N as in attention.py. Log-sum-exps are in units of log 2.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focus_jax.ops.pallas import passes, tuning
from focus_jax.ops.pallas.band import Band
from focus_jax.ops.pallas.dense import band_attention
from focus_jax.ops.pallas.distant import Distant
from focus_jax.ops.pallas.target import check_target


class Routing(NamedTuple):
    """What is known when the program is compiled."""

    num_groups: int
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
    check_target()
    has_distant_pairs = window < query_offset + q_BTHC.shape[1] - 1
    if not has_distant_pairs or 0 in (query_groups_BTM.shape[2], key_groups_BSN.shape[2]):
        return band_attention(Band.of(q_BTHC, k_BSJC, query_offset, window), scale, q_BTHC, k_BSJC, v_BSJC)
    routing = Routing(num_groups, window, query_offset, scale)
    return _attention(routing, q_BTHC, k_BSJC, v_BSJC, query_groups_BTM, key_groups_BSN, query_gate_BTM, key_gate_BS)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(routing: Routing, q_BTHC, k_BSJC, v_BSJC, *groups_and_gates) -> jax.Array:
    distant = _distant(routing, tuning.FORWARD_ONLY, q_BTHC, groups_and_gates)
    return _merged(routing, distant, q_BTHC, k_BSJC, v_BSJC)[0]


def _forward(routing: Routing, q_BTHC, k_BSJC, v_BSJC, *groups_and_gates) -> tuple:
    distant = _distant(routing, tuning.KERNELS, q_BTHC, groups_and_gates)
    o_BTHC, lse_BHT = _merged(routing, distant, q_BTHC, k_BSJC, v_BSJC)
    return o_BTHC, (q_BTHC, k_BSJC, v_BSJC, distant, groups_and_gates[2:], o_BTHC, lse_BHT)


def _backward(routing: Routing, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    q_BTHC, k_BSJC, v_BSJC, distant, (query_gate_BTM, key_gate_BS), o_BTHC, lse_BHT = residuals
    output = passes.output_gradient(do_BTHC, o_BTHC, lse_BHT)
    near = passes.backward(_band(routing, q_BTHC, k_BSJC), routing.scale, q_BTHC, k_BSJC, v_BSJC, output)
    far = distant.backward(q_BTHC, k_BSJC, v_BSJC, output)
    dq, dk, dv = ((a + b).astype(a.dtype) for a, b in ((near.dq, far.dq), (near.dk, far.dk), (near.dv, far.dv)))
    dquery_gate = None if query_gate_BTM is None else far.row_sums
    dkey_gate = None if key_gate_BS is None else far.key_sums
    return dq, dk, dv, None, None, dquery_gate, dkey_gate


_attention.defvjp(_forward, _backward)


def _band(routing: Routing, q_BTHC: jax.Array, k_BSJC: jax.Array) -> Band:
    return Band.of(q_BTHC, k_BSJC, routing.query_offset, routing.window)


def _distant(routing: Routing, kernels: Sequence[tuning.Kernel], q_BTHC: jax.Array, groups_and_gates: tuple) -> Distant:
    return Distant.of(q_BTHC, *groups_and_gates, **routing._asdict(), kernels=kernels)


def _merged(routing: Routing, distant: Distant, *qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
    """o_BTHC and lse_BHT over all kept pairs."""
    o_BTHC, lse_BHT = passes.forward(_band(routing, *qkv[:2]), routing.scale, *qkv)
    far_o_BTMHC, far_lse_BTMH = distant.forward(*qkv)
    lse_BTH = lse_BHT.swapaxes(1, 2)
    peak_BTH = jnp.maximum(lse_BTH, far_lse_BTMH.max(axis=2))
    peak_BTH = jnp.where(peak_BTH == -jnp.inf, 0.0, peak_BTH)
    share_BTH = jnp.exp2(lse_BTH - peak_BTH)
    far_share_BTMH = jnp.exp2(far_lse_BTMH - peak_BTH[:, :, None])
    total_BTH = share_BTH + far_share_BTMH.sum(axis=2)
    sum_BTHC = share_BTH[..., None] * o_BTHC + (far_share_BTMH[..., None] * far_o_BTMHC).sum(axis=2)
    merged_BTHC = sum_BTHC / jnp.where(total_BTH > 0, total_BTH, 1.0)[..., None]
    return merged_BTHC.astype(o_BTHC.dtype), (peak_BTH + jnp.log2(total_BTH)).swapaxes(1, 2)
