"""The attention layer: projections, positions, and one of the three attention operations."""

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config, ops, routing
from focus_jax.model.layers import linear, output_linear
from focus_jax.model.reading import Reading
from focus_jax.model.rotary import Rotation, rotate
from focus_jax.model.router import Router


class Attention(nnx.Module):
    """Dense, or Focus where `focus` is given."""

    def __init__(self, model: config.Model, focus: config.Focus | None, rngs: nnx.Rngs):
        head_width = model.width // model.heads
        self.heads, self.kv_heads = model.heads, model.kv_heads
        self.implementation = model.attention_implementation
        self.query = linear(model, model.width, model.heads * head_width, rngs)
        self.key = linear(model, model.width, model.kv_heads * head_width, rngs)
        self.value = linear(model, model.width, model.kv_heads * head_width, rngs)
        self.output = output_linear(model, model.heads * head_width, rngs)
        if model.qk_norm:
            dtype = jnp.dtype(model.compute_dtype)
            self.query_norm = nnx.RMSNorm(head_width, epsilon=model.norm_epsilon, dtype=dtype, rngs=rngs)
            self.key_norm = nnx.RMSNorm(head_width, epsilon=model.norm_epsilon, dtype=dtype, rngs=rngs)
        self.qk_norm = model.qk_norm
        self.focus = focus
        self.router = None if focus is None else Router(focus, model.width, rngs)

    def __call__(
        self, normed_BTD: jax.Array, by: Rotation | None, reading: Reading
    ) -> tuple[jax.Array, jax.Array | None]:
        """Returns the layer's output_BTD and, for Focus, log affinity_BTK of its tokens."""
        q_BTHC, k_BSJC, v_BSJC = self._heads(normed_BTD, by)
        if self.router is None:
            log_affinity_BTK = None
            mixed_BTHC = ops.dense_attention(q_BTHC, k_BSJC, v_BSJC, implementation=self.implementation)
        else:
            log_affinity_BTK = self.router(normed_BTD)
            attend = self._soft if reading.routing == "soft" else self._hard
            mixed_BTHC = attend(q_BTHC, k_BSJC, v_BSJC, log_affinity_BTK, reading)
        return self.output(mixed_BTHC.reshape(*mixed_BTHC.shape[:2], -1)), log_affinity_BTK

    def _heads(self, normed_BTD: jax.Array, by: Rotation | None) -> tuple[jax.Array, jax.Array, jax.Array]:
        batch, tokens, _ = normed_BTD.shape
        q_BTHC = self.query(normed_BTD).reshape(batch, tokens, self.heads, -1)
        k_BSJC = self.key(normed_BTD).reshape(batch, tokens, self.kv_heads, -1)
        v_BSJC = self.value(normed_BTD).reshape(batch, tokens, self.kv_heads, -1)
        if self.qk_norm:
            q_BTHC, k_BSJC = self.query_norm(q_BTHC), self.key_norm(k_BSJC)
        if by is not None:
            q_BTHC, k_BSJC = rotate(q_BTHC, by), rotate(k_BSJC, by)
        return q_BTHC, k_BSJC, v_BSJC

    def _soft(self, q_BTHC, k_BSJC, v_BSJC, log_affinity_BTK, reading: Reading) -> jax.Array:
        """Every pair, distant ones gated by the affinities (arXiv 2604.03260, section 3; gate `log` is ours)."""
        affinity_BTK = jnp.exp(log_affinity_BTK)
        return ops.gated_attention(
            q_BTHC,
            k_BSJC,
            v_BSJC,
            affinity_BTK,
            affinity_BTK,
            window=self.focus.window,
            gate=self.focus.gate,
            slope=self.focus.gate_slope,
            implementation=self.implementation,
        )

    def _hard(self, q_BTHC, k_BSJC, v_BSJC, log_affinity_BTK, reading: Reading) -> jax.Array:
        """Window pairs, and distant pairs whose groups meet."""
        membership = routing.memberships(log_affinity_BTK, top_k=reading.top_k, kind=self.focus.membership)
        query_gate_BTM, key_gate_BS = (
            routing.gates(log_affinity_BTK, membership) if reading.gated else (None, None)
        )
        return ops.routed_attention(
            q_BTHC,
            k_BSJC,
            v_BSJC,
            *membership,
            num_groups=self.focus.groups,
            window=self.focus.window,
            query_gate_BTM=query_gate_BTM,
            key_gate_BS=key_gate_BS,
            implementation=self.implementation,
        )
