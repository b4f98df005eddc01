"""Attention as passes over disjoint sets of pairs, merged: what is the same in every implementation.

A local pass in the tokens' own order, which is all of dense attention, and a distant pass in the order of a layout.
Partial results are merged inside one custom_vjp: its backward passes get the log-sum-exp of the merged output and
delta = Σ_C do·o, each yields its part of the gradients from ds = p·(dp − delta), and the parts add up.

Letters as in attention.py · P slots of one side. Log-sum-exps are in units of log 2, −∞ where no pair is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from focus_jax.ops.layout import Layout, Side, entries_to_slots, slots_to_entries, slots_to_tokens

NO_END = 2**30
"""Window of dense attention: every earlier key is local."""
KEPT_OF_ATTENTION = "attention"
"""Name of what a backward pass needs of the forward pass beside the arguments, for the policies of jax.checkpoint: with
it attention is not computed again."""


class Statics(NamedTuple):
    """What is known when the program is compiled."""

    query_offset: int
    scale: float
    window: int = NO_END
    """Largest distance of a local pair."""
    num_groups: int = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gates:
    """Gates (or their gradients) in the slots of their entries, zero where a slot is empty."""

    query_BP: jax.Array
    key_BP: jax.Array


@dataclass(frozen=True)
class Passes:
    """What an implementation provides; statics come last. Gradients are those of q, k and v."""

    local: Callable[..., tuple[jax.Array, jax.Array]]
    """(q, k, v) to o_BTHC and lse_BTH."""
    local_backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
    """(q, k, v, do_BTHC, lse_BTH, delta_BTH) to gradients."""
    layout: Callable[..., Layout]
    """(q, query_groups_BTM, key_groups_BSN, with_gradient) to blocks of the sizes that the distant passes want."""
    distant: Callable[..., tuple[jax.Array, jax.Array]]
    """(q, k, v, layout, gates) to o_BPHC and lse_BPH in the slots of queries."""
    distant_backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array, Gates | None]]
    """(q, k, v, do_BTHC, lse_BTH, delta_BTH, layout, gates) to gradients, and to those of gates where there are any."""


def kept(results: Any) -> Any:
    """The same arrays under the name KEPT_OF_ATTENTION."""
    return jax.tree.map(lambda array: checkpoint_name(array, KEPT_OF_ATTENTION), results)


def dense_attention(
    passes: Passes, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *, query_offset: int, scale: float
) -> jax.Array:
    return _attention(passes, Statics(query_offset, scale), q_BTHC, k_BSJC, v_BSJC, None, None, None)


def routed_attention(
    passes: Passes,
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
    if window >= query_offset + q_BTHC.shape[1] - 1:
        return dense_attention(passes, q_BTHC, k_BSJC, v_BSJC, query_offset=query_offset, scale=scale)
    statics = Statics(query_offset, scale, window, num_groups)
    if 0 in (query_groups_BTM.shape[2], key_groups_BSN.shape[2]):
        return _attention(passes, statics, q_BTHC, k_BSJC, v_BSJC, None, None, None)
    groups = query_groups_BTM, key_groups_BSN
    return _attention(passes, statics, q_BTHC, k_BSJC, v_BSJC, groups, query_gate_BTM, key_gate_BS)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(passes: Passes, statics: Statics, q_BTHC, k_BSJC, v_BSJC, groups, *gates) -> jax.Array:
    layout = None if groups is None else passes.layout(q_BTHC, *groups, False, statics)
    return _merged(passes, statics, q_BTHC, k_BSJC, v_BSJC, layout, gates)[0]


def _forward(passes: Passes, statics: Statics, q_BTHC, k_BSJC, v_BSJC, groups, *gates) -> tuple:
    layout = None if groups is None else passes.layout(q_BTHC, *groups, True, statics)
    o_BTHC, lse_BTH = _merged(passes, statics, q_BTHC, k_BSJC, v_BSJC, layout, gates)
    o_BTHC, lse_BTH, layout = kept((o_BTHC, lse_BTH, layout))
    return o_BTHC, (q_BTHC, k_BSJC, v_BSJC, layout, gates, o_BTHC, lse_BTH)


def _backward(passes: Passes, statics: Statics, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    q_BTHC, k_BSJC, v_BSJC, layout, (query_gate_BTM, key_gate_BS), o_BTHC, lse_BTH = residuals
    delta_BTH = jnp.sum(do_BTHC.astype(jnp.float32) * o_BTHC, axis=-1)
    merged = q_BTHC, k_BSJC, v_BSJC, do_BTHC, lse_BTH, delta_BTH
    gradients = passes.local_backward(*merged, statics)
    dquery_gate_BTM, dkey_gate_BS = None, None
    if layout is not None:
        gates = _gates_in_slots(query_gate_BTM, key_gate_BS, layout)
        *far, dgates = passes.distant_backward(*merged, layout, gates, statics)
        gradients = jax.tree.map(jnp.add, tuple(gradients), tuple(far))
        if dgates is not None and query_gate_BTM is not None:
            dquery_gate_BTM = slots_to_entries(dgates.query_BP, layout.query)
        if dgates is not None and key_gate_BS is not None:
            dkey_gate_BS = slots_to_entries(dgates.key_BP, layout.key)[..., 0]
    dq_BTHC, dk_BSJC, dv_BSJC = (gradient.astype(q_BTHC.dtype) for gradient in gradients)
    return dq_BTHC, dk_BSJC, dv_BSJC, None, dquery_gate_BTM, dkey_gate_BS


_attention.defvjp(_forward, _backward)


def _merged(
    passes: Passes,
    statics: Statics,
    q_BTHC,
    k_BSJC,
    v_BSJC,
    layout: Layout | None,
    gates: tuple[jax.Array | None, jax.Array | None],
) -> tuple[jax.Array, jax.Array]:
    """o_BTHC in the type of q and lse_BTH, over all kept pairs."""
    o_BTHC, lse_BTH = passes.local(q_BTHC, k_BSJC, v_BSJC, statics)
    if layout is not None:
        slots = _gates_in_slots(gates[0], gates[1], layout)
        far = passes.distant(q_BTHC, k_BSJC, v_BSJC, layout, slots, statics)
        o_BTHC, lse_BTH = merge(o_BTHC, lse_BTH, *far, layout.query)
    return o_BTHC.astype(q_BTHC.dtype), lse_BTH


def _gates_in_slots(query_gate_BTM: jax.Array | None, key_gate_BS: jax.Array | None, layout: Layout) -> Gates | None:
    if query_gate_BTM is None and key_gate_BS is None:
        return None
    query_BP, key_BP = jnp.zeros(layout.query.entry_BP.shape), jnp.zeros(layout.key.entry_BP.shape)
    if query_gate_BTM is not None:
        query_BP = entries_to_slots(query_gate_BTM, layout.query)
    if key_gate_BS is not None:
        key_BP = entries_to_slots(key_gate_BS[..., None], layout.key)
    return Gates(query_BP, key_BP)


def merge(
    o_BTHC: jax.Array, lse_BTH: jax.Array, far_o_BPHC: jax.Array, far_lse_BPH: jax.Array, query: Side
) -> tuple[jax.Array, jax.Array]:
    """The softmax over all parts: their values, each by its share; parts without keys contribute exactly 0."""
    far_lse_BTMH = slots_to_entries(far_lse_BPH, query, fill_value=-jnp.inf)
    peak_BTH = jnp.maximum(lse_BTH, far_lse_BTMH.max(axis=2))
    peak_BTH = jnp.where(peak_BTH == -jnp.inf, 0.0, peak_BTH)
    share_BTH = jnp.exp2(lse_BTH - peak_BTH)
    far_share_BTMH = jnp.exp2(far_lse_BTMH - peak_BTH[:, :, None])
    total_BTH = share_BTH + far_share_BTMH.sum(axis=2)
    whole_BTH = jnp.where(total_BTH > 0, total_BTH, 1.0)
    far_BTHC = slots_to_tokens(far_o_BPHC, query, (far_share_BTMH / whole_BTH[:, :, None])[..., None])
    return (share_BTH / whole_BTH)[..., None] * o_BTHC + far_BTHC, peak_BTH + jnp.log2(total_BTH)
