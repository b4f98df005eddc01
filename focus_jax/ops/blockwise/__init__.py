"""Attention in plain JAX that never holds T×S: the default where there is no NVIDIA GPU.

The work is cut into steps of about a million logits. A step is a few large matrix products and one pass of
exponentials; what no query block keeps is never touched, forward or backward.
"""

from functools import partial

from focus_jax.ops import merged
from focus_jax.ops.blockwise import distant, local
from focus_jax.ops.blockwise.gated import gated_attention
from focus_jax.ops.blockwise.probes import probe_attention

__all__ = ["dense_attention", "gated_attention", "probe_attention", "routed_attention"]

PASSES = merged.Passes(
    local=local.attend,
    local_backward=local.attend_backward,
    layout=distant.layout_for,
    distant=distant.attend,
    distant_backward=distant.attend_backward,
)

dense_attention = partial(merged.dense_attention, PASSES)
routed_attention = partial(merged.routed_attention, PASSES)
