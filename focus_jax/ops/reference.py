"""The definition of the functions: one T×S mask in float32, gradients by differentiation. For tests.

Letters as in attention.py; G = H/J query heads share a key/value head.
"""

import jax
import jax.numpy as jnp

LARGEST_EXPONENT = 88.0
"""Just below the logarithm of the largest float32."""


def dense_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *, query_offset: int, scale: float
) -> jax.Array:
    keep_1TS = (pair_distance(q_BTHC, k_BSJC, query_offset) >= 0)[None]
    return masked_attention(q_BTHC, k_BSJC, v_BSJC, scale, keep_1TS)


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
    distance_TS = pair_distance(q_BTHC, k_BSJC, query_offset)
    causal_1TS = (distance_TS >= 0)[None]
    affinity_BTS = jnp.einsum("btk,bsk->bts", query_affinity_BTK, key_affinity_BSK, precision="highest")
    gate_BTS = affinity_BTS if gate == "log" else jax.nn.sigmoid(slope * affinity_BTS)
    gate_BTS = jnp.where(distance_TS > window, gate_BTS, 1.0)
    if gate == "log":
        return masked_attention(q_BTHC, k_BSJC, v_BSJC, scale, causal_1TS, weight_BTS=gate_BTS)
    return masked_attention(q_BTHC, k_BSJC, v_BSJC, scale, causal_1TS, factor_BTS=gate_BTS)


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
    distance_TS = pair_distance(q_BTHC, k_BSJC, query_offset)
    distant_TS = distance_TS > window
    key_member_BSK = membership(key_groups_BSN, num_groups)
    share_BTS = jnp.einsum("btk,bsk->bts", membership(query_groups_BTM, num_groups), key_member_BSK) > 0
    keep_BTS = (distance_TS >= 0) & (~distant_TS | share_BTS)
    bias_BTS = jnp.zeros(keep_BTS.shape, jnp.float32)
    if query_gate_BTM is not None:
        gate_BTK = gate_of_group(query_groups_BTM, query_gate_BTM, num_groups)
        bias_BTS += jnp.einsum("btk,bsk->bts", gate_BTK, key_member_BSK, precision="highest")
    if key_gate_BS is not None:
        bias_BTS += key_gate_BS[:, None, :]
    bias_BTS = jnp.where(keep_BTS & distant_TS, bias_BTS, 0.0)
    return masked_attention(q_BTHC, k_BSJC, v_BSJC, scale, keep_BTS, bias_BTS=bias_BTS)


def probe_attention(
    q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, positions_BP: jax.Array, *, scale: float
) -> tuple[jax.Array, jax.Array]:
    B, S = k_BSJC.shape[:2]
    keep_BPS = jnp.arange(S) <= positions_BP[..., None]
    q_BPHC = jnp.take_along_axis(q_BTHC, positions_BP[..., None, None], axis=1)
    o_BPHC = masked_attention(q_BPHC, k_BSJC, v_BSJC, scale, keep_BPS)
    # Attention to one-hot values is the attention itself.
    one_hot_BSJS = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, k_BSJC.shape[2], S))
    p_BPHS = masked_attention(q_BPHC.astype(jnp.float32), k_BSJC, one_hot_BSJS, scale, keep_BPS)
    return o_BPHC, jax.lax.stop_gradient(p_BPHS.mean(axis=2))


def pair_distance(q_BTHC: jax.Array, k_BSJC: jax.Array, query_offset: int) -> jax.Array:
    """i − j of every pair."""
    position_T = query_offset + jnp.arange(q_BTHC.shape[1])
    return position_T[:, None] - jnp.arange(k_BSJC.shape[1])[None, :]


def membership(groups_BTM: jax.Array, num_groups: int) -> jax.Array:
    """1.0 where a token belongs to a group."""
    return (groups_BTM[..., None] == jnp.arange(num_groups)).any(axis=-2).astype(jnp.float32)


def gate_of_group(groups_BTM: jax.Array, gate_BTM: jax.Array, num_groups: int) -> jax.Array:
    """The gate of the first entry that names each group, 0 where none does."""
    names_BTMK = groups_BTM[..., None] == jnp.arange(num_groups)
    first_BTMK = names_BTMK & (jnp.cumsum(names_BTMK, axis=-2) == 1)
    return jnp.where(first_BTMK, gate_BTM[..., None], 0.0).sum(axis=-2)


def masked_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    scale: float,
    keep_BTS: jax.Array,
    *,
    weight_BTS: jax.Array | None = None,
    factor_BTS: jax.Array | None = None,
    bias_BTS: jax.Array | None = None,
) -> jax.Array:
    """Σ_j p_ij v_j over kept pairs, p_ij ∝ weight · exp(factor · scale · q_i·k_j + bias).

    The gradient with respect to a weight of 0 is finite. A key that no query keeps may hold anything.
    """
    B, T, H, C = q_BTHC.shape
    J = k_BSJC.shape[2]
    read_BS11 = keep_BTS.any(axis=1)[:, :, None, None]
    k_BSJC = jnp.where(read_BS11, k_BSJC, 0).astype(jnp.float32)
    v32_BSJC = jnp.where(read_BS11, v_BSJC, 0).astype(jnp.float32)
    q_BTJGC = q_BTHC.astype(jnp.float32).reshape(B, T, J, H // J, C)
    logits_BJGTS = scale * jnp.einsum("btjgc,bsjc->bjgts", q_BTJGC, k_BSJC, precision="highest")
    if factor_BTS is not None:
        logits_BJGTS *= factor_BTS[:, None, None]
    if bias_BTS is not None:
        logits_BJGTS += bias_BTS[:, None, None]
    if weight_BTS is None:
        weight_BTS = jnp.ones((1, 1, 1))
    weight_BTS = jnp.where(keep_BTS, weight_BTS, 0.0)
    weight_B11TS = weight_BTS[:, None, None]
    peak_BJGT1 = jax.lax.stop_gradient((logits_BJGTS + jnp.log(weight_B11TS)).max(axis=-1, keepdims=True))
    peak_BJGT1 = jnp.where(jnp.isfinite(peak_BJGT1), peak_BJGT1, 0.0)
    mass_BJGTS = weight_B11TS * jnp.exp(jnp.minimum(logits_BJGTS - peak_BJGT1, LARGEST_EXPONENT))
    total_BJGT1 = mass_BJGTS.sum(axis=-1, keepdims=True)
    p_BJGTS = mass_BJGTS / jnp.where(total_BJGT1 > 0, total_BJGT1, 1.0)
    o_BTJGC = jnp.einsum("bjgts,bsjc->btjgc", p_BJGTS, v32_BSJC, precision="highest")
    return o_BTJGC.reshape(B, T, H, v_BSJC.shape[3]).astype(q_BTHC.dtype)
