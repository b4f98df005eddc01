"""Powers of two, and merging of partial softmaxes. Logits are kept in units of log 2: softmax(s) = 2^(s·LOG2_E) / Σ.

Letters as in attention.py; X stands for any shape.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
FLOOR = -1e30
"""Stands for −∞ in running maxima, so that differences of maxima stay numbers."""

# 2^f for |f| ≤ ½ to one unit in the last place of float32: Taylor series of exp(f·ln 2).
COEFFICIENTS = tuple(LN_2**n / math.factorial(n) for n in range(7))
EXPONENT_BITS = 23


def exp2(x_X: jax.Array) -> jax.Array:
    """2^x in float32 for x below 128, exactly 0 for x ≤ −127. Half the time of the compiler's own on a CPU."""
    x_X = jnp.maximum(x_X, -127.0)
    whole_X = jnp.round(x_X)
    fraction_X = x_X - whole_X
    mantissa_X = jnp.full_like(x_X, COEFFICIENTS[-1])
    for coefficient in COEFFICIENTS[-2::-1]:
        mantissa_X = mantissa_X * fraction_X + coefficient
    bits_X = lax.bitcast_convert_type(mantissa_X, jnp.int32) + (whole_X.astype(jnp.int32) << EXPONENT_BITS)
    return lax.bitcast_convert_type(bits_X, jnp.float32)


def matmul(equation: str, a_X: jax.Array, b_X: jax.Array) -> jax.Array:
    """In the type of the caller's arrays (a float32 intermediate is rounded to it), summed in float32."""
    dtype = min(a_X.dtype, b_X.dtype, key=lambda dtype: dtype.itemsize)
    return jnp.einsum(equation, a_X.astype(dtype), b_X.astype(dtype), preferred_element_type=jnp.float32)


def scaled(q_X: jax.Array, scale: float) -> jax.Array:
    """So that q · k is the logit in units of log 2; the gradient of k is then in units of LN_2."""
    return (q_X.astype(jnp.float32) * (scale * LOG2_E)).astype(q_X.dtype)


def slices(x_X: jax.Array, start_Z: jax.Array, size: int, *, axis: int = 0) -> jax.Array:
    """Z slices of an array, stacked."""
    return jnp.stack([lax.dynamic_slice_in_dim(x_X, start, size, axis=axis) for start in start_Z])


def add_slices(sums_X: jax.Array, parts_ZX: jax.Array, start_Z: jax.Array, *, axis: int = 0) -> jax.Array:
    """The transpose of `slices`, one after the other."""
    for part_X, start in zip(parts_ZX, start_Z, strict=True):
        old_X = lax.dynamic_slice_in_dim(sums_X, start, part_X.shape[axis], axis=axis)
        sums_X = lax.dynamic_update_slice_in_dim(sums_X, old_X + part_X, start, axis=axis)
    return sums_X


def rows_at(rows_Q_: Any, index_Z: jax.Array) -> Any:
    """Some entries of the first dimension, in every array."""
    return jax.tree.map(lambda rows: slices(rows, index_Z, 1)[:, 0], rows_Q_)


def with_rows(rows_Q_: Any, some_Z_: Any, index_Z: jax.Array) -> Any:
    """Those entries set."""

    def update(rows: jax.Array, some: jax.Array) -> jax.Array:
        for row, index in zip(some, index_Z, strict=True):
            rows = lax.dynamic_update_index_in_dim(rows, row, index, axis=0)
        return rows

    return jax.tree.map(update, rows_Q_, some_Z_)


def fold_heads(rows_ZXHC: jax.Array, J: int) -> jax.Array:
    """(Z, X, H, C) to (Z, J, R, C): the X rows of one query head of a key/value head after the other, R = H/J · X."""
    Z, X, H, C = rows_ZXHC.shape
    return rows_ZXHC.transpose(0, 2, 1, 3).reshape(Z, J, H // J * X, C)


def unfold_heads(rows_ZJRC: jax.Array, X: int) -> jax.Array:
    """The inverse of fold_heads."""
    Z, J, R, C = rows_ZJRC.shape
    return rows_ZJRC.reshape(Z, J * (R // X), X, C).transpose(0, 2, 1, 3)


def pad_to(rows_T_: jax.Array, length: int) -> jax.Array:
    """Zeros after the last row."""
    return jnp.pad(rows_T_, ((0, length - len(rows_T_)), *[(0, 0)] * (rows_T_.ndim - 1)))


def map_rows(function: Callable[[Any], Any], rows_B: Any) -> Any:
    """`function` of every batch row, one after the other."""
    if jax.tree.leaves(rows_B)[0].shape[0] > 1:
        return lax.map(function, rows_B)
    return jax.tree.map(lambda x: x[None], function(jax.tree.map(lambda x: x[0], rows_B)))
