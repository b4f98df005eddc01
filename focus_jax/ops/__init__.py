"""Causal attention: dense, gated (soft Focus), routed (hard Focus), probe rows. Imports nothing but jax and numpy."""

from focus_jax.ops.attention import (
    Operation,
    dense_attention,
    gated_attention,
    probe_attention,
    resolve,
    routed_attention,
)
from focus_jax.ops.merged import KEPT_OF_ATTENTION

__all__ = [
    "KEPT_OF_ATTENTION",
    "Operation",
    "dense_attention",
    "gated_attention",
    "probe_attention",
    "resolve",
    "routed_attention",
]
