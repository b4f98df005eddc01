"""The attention functions: arguments are checked here, then handed to one implementation.

B batch · T query positions · S key positions · H query heads · J key/value heads · C channels of a head ·
K groups · M groups that a query reads · N groups that a key belongs to · P probe rows.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from focus_jax.ops import arguments, blockwise, cudnn, pallas, reference
from focus_jax.ops.platform import target_platform

Operation = Literal["dense", "gated", "routed", "probe"]

IMPLEMENTATIONS: Mapping[str, Mapping[str, Callable]] = {
    "dense": {
        "reference": reference.dense_attention,
        "blockwise": blockwise.dense_attention,
        "pallas": pallas.dense_attention,
        "cudnn": cudnn.dense_attention,
    },
    "gated": {
        "reference": reference.gated_attention,
        "blockwise": blockwise.gated_attention,
    },
    "routed": {
        "reference": reference.routed_attention,
        "blockwise": blockwise.routed_attention,
        "pallas": pallas.routed_attention,
    },
    "probe": {
        "reference": reference.probe_attention,
        "blockwise": blockwise.probe_attention,
    },
}
"""What exists. Every entry takes its function's arguments with scale filled in and without `implementation`."""


def resolve(operation: Operation, implementation: str = "auto", *, platform: str | None = None) -> str:
    """The name of the implementation that a call with these choices runs, for callers to print and record.

    Args:
      operation: "dense", "gated", "routed" or "probe".
      implementation: "auto" takes the GPU kernels on a GPU where the operation has them and "blockwise" everywhere
        else; a name is returned as it is.
      platform: "cpu", "gpu" or "tpu"; None is what is traced for, see `target_platform`.

    Raises:
      ValueError: the operation has no implementation of that name.
    """
    available = IMPLEMENTATIONS[operation]
    if implementation == "auto":
        on_gpu = (platform or target_platform()) == "gpu"
        return "pallas" if on_gpu and "pallas" in available else "blockwise"
    if implementation not in available:
        names = ", ".join(("auto", *available))
        raise ValueError(f"implementation: {operation}_attention has no {implementation!r}; it has {names}")
    return implementation


def dense_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    *,
    query_offset: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Causal softmax attention over every key j ≤ i.

    Args:
      q_BTHC: queries; row t has position i = query_offset + t.
      k_BSJC: keys, at positions 0…S−1. J divides H: key/value head n serves the query heads n·H/J … (n+1)·H/J − 1.
      v_BSJC: values.
      query_offset: position of the first query.
      scale: factor of the logits q·k; None is 1/√C.
      implementation: "auto", "reference", "blockwise", "pallas" or "cudnn"; see `resolve`.

    Returns:
      The attended values, shaped and typed like q_BTHC; softmax and its sums are float32. A query that sees no key
      gets zeros.

    Raises:
      ValueError: an argument has the wrong shape, type or value (named), or the implementation does not exist.
      NotImplementedError: the implementation that was asked for by name cannot serve this call.
    """
    arguments.check_heads(q_BTHC, k_BSJC, v_BSJC, query_offset)
    run = IMPLEMENTATIONS["dense"][resolve("dense", implementation)]
    return run(q_BTHC, k_BSJC, v_BSJC, query_offset=query_offset, scale=arguments.scale_or_default(scale, q_BTHC))


def gated_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_affinity_BTK: jax.Array,
    key_affinity_BSK: jax.Array,
    *,
    window: int,
    gate: Literal["log", "sigmoid"] = "log",
    slope: float = 4.0,
    query_offset: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Causal attention whose distant logits are gated by the affinities of the two tokens (soft Focus).

    A pair is local when i − j ≤ window, and then never gated. A distant pair's logit s becomes s + log(x) with
    gate="log" or s · sigmoid(slope · x) with gate="sigmoid" (arXiv 2604.03260, training),
    x = Σ_K affinity_i · affinity_j.

    Args:
      q_BTHC, k_BSJC, v_BSJC, query_offset, scale, implementation: as in `dense_attention`.
      query_affinity_BTK: float32, at least 0.
      key_affinity_BSK: float32, at least 0.
      window: largest distance of a local pair.
      gate: "log" agrees with the hard pattern where affinities are one-hot, and its gradient is finite at x = 0.
      slope: of gate="sigmoid".

    Returns, raises: as `dense_attention`.
    """
    arguments.check_heads(q_BTHC, k_BSJC, v_BSJC, query_offset)
    arguments.check_window(window)
    arguments.check_affinities(q_BTHC, k_BSJC, query_affinity_BTK, key_affinity_BSK)
    arguments.check_gate(gate, slope)
    run = IMPLEMENTATIONS["gated"][resolve("gated", implementation)]
    return run(
        q_BTHC,
        k_BSJC,
        v_BSJC,
        query_affinity_BTK,
        key_affinity_BSK,
        window=window,
        gate=gate,
        slope=slope,
        query_offset=query_offset,
        scale=arguments.scale_or_default(scale, q_BTHC),
    )


def routed_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    *,
    num_groups: int,
    window: int,
    query_gate_BTM: jax.Array | None = None,
    key_gate_BS: jax.Array | None = None,
    query_offset: int = 0,
    scale: float | None = None,
    implementation: str = "auto",
) -> jax.Array:
    """Causal attention to near keys and to distant keys of shared groups (hard Focus), at the cost of those pairs.

    A pair is local when i − j ≤ window: always kept, never gated. A distant pair is kept when the two sets of groups
    intersect, and counts once however many groups they share. With M = 0 or N = 0 only local pairs are kept. "query"
    membership is N = 1; "shared" (arXiv 2604.03260) is N = M with the same array twice.

    Args:
      q_BTHC, k_BSJC, v_BSJC, query_offset, scale, implementation: as in `dense_attention`.
      query_groups_BTM: int32, the groups a query reads; −1 is no group, repetitions count once.
      key_groups_BSN: int32, the groups a key belongs to; likewise.
      num_groups: K, from 1 to 64. Groups are 0…K−1.
      window: largest distance of a local pair.
      query_gate_BTM: float32, added to the logits of the distant pairs that entry m joins; needs N = 1.
      key_gate_BS: float32, added to the logits of the key's distant pairs; needs N = 1.

    Returns, raises: as `dense_attention`.
    """
    arguments.check_heads(q_BTHC, k_BSJC, v_BSJC, query_offset)
    arguments.check_window(window)
    arguments.check_groups(q_BTHC, k_BSJC, query_groups_BTM, key_groups_BSN, num_groups)
    arguments.check_group_gates(query_groups_BTM, key_groups_BSN, query_gate_BTM, key_gate_BS)
    run = IMPLEMENTATIONS["routed"][resolve("routed", implementation)]
    return run(
        q_BTHC,
        k_BSJC,
        v_BSJC,
        query_groups_BTM,
        key_groups_BSN,
        num_groups=num_groups,
        window=window,
        query_gate_BTM=query_gate_BTM,
        key_gate_BS=key_gate_BS,
        query_offset=query_offset,
        scale=arguments.scale_or_default(scale, q_BTHC),
    )


def probe_attention(
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    positions_BP: jax.Array,
    *,
    scale: float | None = None,
    implementation: str = "auto",
) -> tuple[jax.Array, jax.Array]:
    """Dense causal attention of the queries at a few positions alone, at the cost of P·S pairs.

    Args:
      q_BTHC, k_BSJC, v_BSJC, scale, implementation: as in `dense_attention`; row t has position t.
      positions_BP: int32, from 0 to T−1.

    Returns:
      o_BPHC, the rows of `dense_attention` at these positions, typed like q_BTHC; and attention_BPS, the mean over
      heads of what each row attends to, float32, a constant for differentiation.

    Raises: as `dense_attention`.
    """
    arguments.check_heads(q_BTHC, k_BSJC, v_BSJC, query_offset=0)
    arguments.check_array("positions_BP", positions_BP, (q_BTHC.shape[0], None), jnp.int32)
    run = IMPLEMENTATIONS["probe"][resolve("probe", implementation)]
    return run(q_BTHC, k_BSJC, v_BSJC, positions_BP, scale=arguments.scale_or_default(scale, q_BTHC))
