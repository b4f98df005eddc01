"""Attention kernels for NVIDIA GPUs, written in Pallas for its Triton backend."""

from focus_jax.ops.pallas.dense import dense_attention
from focus_jax.ops.pallas.routed import routed_attention
from focus_jax.ops.pallas.target import interpreted

__all__ = ["dense_attention", "interpreted", "routed_attention"]
