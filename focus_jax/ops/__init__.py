"""Causal attention: dense, gated (soft Focus) and routed (hard Focus). Imports jax and numpy, nothing else."""

from focus_jax.ops.attention import dense_attention, gated_attention, resolve, routed_attention

__all__ = ["dense_attention", "gated_attention", "resolve", "routed_attention"]
