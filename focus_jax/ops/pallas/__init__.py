"""Attention by kernels for NVIDIA GPUs, written in Pallas for its Triton backend."""

import jax

from focus_jax.ops import merged
from focus_jax.ops.pallas import distant, local
from focus_jax.ops.pallas.target import check_target, interpreted

__all__ = ["dense_attention", "interpreted", "routed_attention"]

PASSES = merged.Passes(
    local=local.attend,
    local_backward=local.attend_backward,
    layout=distant.layout_for,
    distant=distant.attend,
    distant_backward=distant.attend_backward,
)


def dense_attention(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, **options) -> jax.Array:
    check_target()
    return merged.dense_attention(PASSES, q_BTHC, k_BSJC, v_BSJC, **options)


def routed_attention(q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, *groups, **options) -> jax.Array:
    check_target()
    return merged.routed_attention(PASSES, q_BTHC, k_BSJC, v_BSJC, *groups, **options)
