"""Causal attention: dense, gated (soft Focus) and routed (hard Focus). Imports jax and numpy, nothing else."""

from focus_jax.ops.attention import dense_attention, gated_attention, resolve, routed_attention
from focus_jax.ops.merged import KEPT_OF_ATTENTION

__all__ = ["KEPT_OF_ATTENTION", "dense_attention", "gated_attention", "resolve", "routed_attention"]
