"""Checks of the arguments of the attention functions. Every error is a ValueError that begins with the argument's name.

Letters as in attention.py.
"""

import math
import operator

import jax
import jax.numpy as jnp

MAX_GROUPS = 64
"""A token's set of groups is kept as the bits of two uint32."""


def check_heads(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, query_offset: int) -> None:
    for name, array in (("q_BTHC", q_BTHC), ("k_BSJC", k_BSJC), ("v_BSJC", v_BSJC)):
        if array.ndim != 4:
            raise ValueError(f"{name}: needs 4 dimensions, has shape {array.shape}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name}: needs a floating type, has {array.dtype}")
        if 0 in array.shape:
            raise ValueError(f"{name}: has an empty dimension, shape {array.shape}")
        if array.dtype != q_BTHC.dtype:
            raise ValueError(f"{name}: is {array.dtype} where q_BTHC is {q_BTHC.dtype}")
    B, _, H, C = q_BTHC.shape
    J = k_BSJC.shape[2]
    if (k_BSJC.shape[0], k_BSJC.shape[3]) != (B, C):
        raise ValueError(f"k_BSJC: shape {k_BSJC.shape} does not fit q_BTHC {q_BTHC.shape} in batch or channels")
    if v_BSJC.shape != k_BSJC.shape:
        raise ValueError(f"v_BSJC: shape {v_BSJC.shape} differs from k_BSJC {k_BSJC.shape}")
    if H % J:
        raise ValueError(f"k_BSJC: {J} key/value heads do not divide {H} query heads")
    check_count("query_offset", query_offset)


def check_window(window: int) -> None:
    check_count("window", window)


def check_count(name: str, value: int) -> None:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: needs a Python integer, is {type(value).__name__}") from None
    if count < 0:
        raise ValueError(f"{name}: needs at least 0, is {count}")


def check_affinities(q_BTHC: jax.Array, k_BSJC: jax.Array, query_BTK: jax.Array, key_BSK: jax.Array) -> None:
    check_array("query_affinity_BTK", query_BTK, (*q_BTHC.shape[:2], None), jnp.float32)
    check_array("key_affinity_BSK", key_BSK, (*k_BSJC.shape[:2], query_BTK.shape[-1]), jnp.float32)
    if query_BTK.shape[-1] == 0:
        raise ValueError("query_affinity_BTK: needs at least one group")


def check_gate(gate: str, slope: float) -> None:
    if gate not in ("log", "sigmoid"):
        raise ValueError(f'gate: needs "log" or "sigmoid", is {gate!r}')
    if not (math.isfinite(slope) and slope > 0):
        raise ValueError(f"slope: needs a positive finite number, is {slope}")


def check_groups(
    q_BTHC: jax.Array, k_BSJC: jax.Array, query_BTM: jax.Array, key_BSN: jax.Array, num_groups: int
) -> None:
    check_count("num_groups", num_groups)
    if not 1 <= num_groups <= MAX_GROUPS:
        raise ValueError(f"num_groups: needs 1 to {MAX_GROUPS}, is {num_groups}")
    check_array("query_groups_BTM", query_BTM, (*q_BTHC.shape[:2], None), jnp.int32)
    check_array("key_groups_BSN", key_BSN, (*k_BSJC.shape[:2], None), jnp.int32)
    for name, entries in (("query_groups_BTM", query_BTM.shape[-1]), ("key_groups_BSN", key_BSN.shape[-1])):
        if entries > num_groups:
            raise ValueError(f"{name}: {entries} entries per token exceed {num_groups} groups")


def check_group_gates(
    query_groups_BTM: jax.Array,
    key_groups_BSN: jax.Array,
    query_gate_BTM: jax.Array | None,
    key_gate_BS: jax.Array | None,
) -> None:
    gates = (
        ("query_gate_BTM", query_gate_BTM, query_groups_BTM.shape),
        ("key_gate_BS", key_gate_BS, key_groups_BSN.shape[:2]),
    )
    for name, gate, shape in gates:
        if gate is None:
            continue
        check_array(name, gate, shape, jnp.float32)
        if key_groups_BSN.shape[-1] != 1:
            entries = key_groups_BSN.shape[-1]
            raise ValueError(f"{name}: gates need keys of one group each, key_groups_BSN has {entries} entries")


def check_array(name: str, array: jax.Array, shape: tuple[int | None, ...], dtype: jnp.dtype) -> None:
    """None in `shape` stands for any size."""
    fits = array.ndim == len(shape) and all(want in (None, have) for have, want in zip(array.shape, shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name}: needs shape ({wanted}), has {array.shape}")
    if array.dtype != dtype:
        raise ValueError(f"{name}: needs {jnp.dtype(dtype).name}, has {array.dtype}")


def scale_or_default(scale: float | None, q_BTHC: jax.Array) -> float:
    """The contract's default, 1/√C."""
    if scale is None:
        return q_BTHC.shape[-1] ** -0.5
    if not math.isfinite(scale):
        raise ValueError(f"scale: needs a finite number, is {scale}")
    return float(scale)
