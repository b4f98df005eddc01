"""Gated attention (soft Focus): every causal pair, distant ones through a gate on the affinities of the two tokens.

Letters as in attention.py. Log-sum-exps are in units of log 2.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from focus_jax.ops import merged
from focus_jax.ops.blockwise import ranges
from focus_jax.ops.blockwise.numerics import FLOOR, map_rows
from focus_jax.ops.blockwise.pairs import tokens_of_blocks, unsorted_pairs
from focus_jax.ops.blockwise.rules import GatedByAffinity


class Statics(NamedTuple):
    """What is known when the program is compiled."""

    window: int
    slope: float | None
    """As in GatedByAffinity."""
    query_offset: int
    scale: float


def gated_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_affinity_BTK: jax.Array,
    key_affinity_BSK: jax.Array,
    *,
    window: int,
    gate: str,
    slope: float,
    query_offset: int,
    scale: float,
) -> jax.Array:
    S = min(k_BSJC.shape[1], query_offset + q_BTHC.shape[1])
    statics = Statics(window, None if gate == "log" else slope, query_offset, scale)
    return _attention(statics, q_BTHC, k_BSJC[:, :S], v_BSJC[:, :S], query_affinity_BTK, key_affinity_BSK[:, :S])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(statics: Statics, *arrays: jax.Array) -> jax.Array:
    return _forward(statics, *arrays)[0]


def _forward(statics: Statics, *arrays: jax.Array) -> tuple:
    o_BTHC, lse_BTH = map_rows(lambda row: _attend(statics, *row), arrays)
    o_BTHC, lse_BTH = merged.kept((o_BTHC.astype(arrays[0].dtype), lse_BTH))
    return o_BTHC, (*arrays, o_BTHC, lse_BTH)


def _backward(statics: Statics, residuals: tuple, do_BTHC: jax.Array) -> tuple:
    *arrays, o_BTHC, lse_BTH = residuals
    delta_BTH = jnp.sum(do_BTHC.astype(jnp.float32) * o_BTHC, axis=-1)
    rows = (*arrays, do_BTHC, jnp.maximum(lse_BTH, FLOOR), delta_BTH)
    gradients = map_rows(lambda row: _attend_backward(statics, *row), rows)
    return tuple(gradient.astype(array.dtype) for gradient, array in zip(gradients, arrays, strict=True))


_attention.defvjp(_forward, _backward)


def _rule(statics: Statics, query_affinity_TK: jax.Array, key_affinity_SK: jax.Array) -> GatedByAffinity:
    pairs = unsorted_pairs(len(query_affinity_TK), len(key_affinity_SK), query_offset=statics.query_offset)
    query_affinity_QXK, key_affinity_PK = pairs.query_blocks(query_affinity_TK), pairs.key_slots(key_affinity_SK)
    return GatedByAffinity(pairs, query_affinity_QXK, key_affinity_PK, window=statics.window, slope=statics.slope)


def _attend(
    statics: Statics,
    q_THC: jax.Array,
    k_SJC: jax.Array,
    v_SJC: jax.Array,
    query_affinity_TK: jax.Array,
    key_affinity_SK: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """o_THC in float32, and lse_TH."""
    rule = _rule(statics, query_affinity_TK, key_affinity_SK)
    k_JPC, v_JPC = (rule.pairs.key_slots(x_SJC).swapaxes(0, 1) for x_SJC in (k_SJC, v_SJC))
    o_QXHC, lse_QXH = ranges.attend(rule.pairs.query_rows(q_THC), k_JPC, v_JPC, rule, statics.scale)
    return tokens_of_blocks(o_QXHC, len(q_THC)), tokens_of_blocks(lse_QXH, len(q_THC))


def _attend_backward(
    statics: Statics,
    q_THC: jax.Array,
    k_SJC: jax.Array,
    v_SJC: jax.Array,
    query_affinity_TK: jax.Array,
    key_affinity_SK: jax.Array,
    do_THC: jax.Array,
    lse_TH: jax.Array,
    delta_TH: jax.Array,
) -> tuple[jax.Array, ...]:
    """Gradients of all arrays, in float32."""
    T, S = len(q_THC), len(k_SJC)
    rule = _rule(statics, query_affinity_TK, key_affinity_SK)
    k_JPC, v_JPC = (rule.pairs.key_slots(x_SJC).swapaxes(0, 1) for x_SJC in (k_SJC, v_SJC))
    q, do, lse, delta = map(rule.pairs.query_rows, (q_THC, do_THC, lse_TH, delta_TH))
    dq_QXHC, dk_JPC, dv_JPC, dqueries_QXK, dkeys_PK = ranges.attend_backward(
        q, k_JPC, v_JPC, do, lse, delta, rule, statics.scale
    )
    dk_SJC, dv_SJC = dk_JPC.swapaxes(0, 1)[:S], dv_JPC.swapaxes(0, 1)[:S]
    return tokens_of_blocks(dq_QXHC, T), dk_SJC, dv_SJC, tokens_of_blocks(dqueries_QXK, T), dkeys_PK[:S]
