"""Attention in plain JAX that never holds T×S: the default where there is no NVIDIA GPU.

The work is cut into steps of about a million logits. A step is a few large matrix products and one pass of
exponentials; what no query block keeps is never touched, forward or backward.
"""

from focus_jax.ops.blockwise.dense import dense_attention
from focus_jax.ops.blockwise.gated import gated_attention
from focus_jax.ops.blockwise.routed import routed_attention

__all__ = ["dense_attention", "gated_attention", "routed_attention"]
