"""The attention layer: projections to heads, positions, mixing, projection back."""

import jax
from flax import nnx

from focus_jax import config
from focus_jax.model.layers import head_norm, linear, output_linear
from focus_jax.model.mixing import QKV, DenseMixing, FocusMixing
from focus_jax.model.reading import Reading
from focus_jax.model.rotary import Rotation, rotate
from focus_jax.model.router import Routed


class Attention(nnx.Module):
    """Dense, or Focus where `focus` is given."""

    def __init__(self, model: config.Model, focus: config.Focus | None, rngs: nnx.Rngs):
        head_width = model.width // model.heads
        self.heads, self.kv_heads = model.heads, model.kv_heads
        self.query = linear(model, model.width, model.heads * head_width, "heads", rngs)
        self.key = linear(model, model.width, model.kv_heads * head_width, "kv_heads", rngs)
        self.value = linear(model, model.width, model.kv_heads * head_width, "kv_heads", rngs)
        self.output = output_linear(model, model.heads * head_width, "heads", rngs)
        self.qk_norm = model.qk_norm
        if self.qk_norm:
            self.query_norm = head_norm(model, head_width, rngs)
            self.key_norm = head_norm(model, head_width, rngs)
        implementation = model.attention_implementation
        self.mixing = (
            DenseMixing(implementation) if focus is None else FocusMixing(focus, model.width, implementation, rngs)
        )

    def __call__(
        self, normed_BTD: jax.Array, by: Rotation | None, reading: Reading | None, probes_BP: jax.Array | None
    ) -> tuple[jax.Array, Routed | None]:
        """Returns the layer's output_BTD and, for Focus, what its router made of its tokens."""
        mixed_BTHC, routed = self.mixing(normed_BTD, self.qkv(normed_BTD, by), reading, probes_BP)
        return self.output(mixed_BTHC.reshape(*normed_BTD.shape[:2], -1)), routed

    def qkv(self, normed_BTD: jax.Array, by: Rotation | None) -> QKV:
        """What the heads ask, offer and hand over, with their positions."""
        q_BTHC = self._heads(self.query(normed_BTD), self.heads)
        k_BSJC = self._heads(self.key(normed_BTD), self.kv_heads)
        v_BSJC = self._heads(self.value(normed_BTD), self.kv_heads)
        if self.qk_norm:
            q_BTHC, k_BSJC = self.query_norm(q_BTHC), self.key_norm(k_BSJC)
        if by is not None:
            q_BTHC, k_BSJC = rotate(q_BTHC, by), rotate(k_BSJC, by)
        # Several passes read them: without it a compiler that fuses rotates queries and keys again for each.
        return jax.lax.optimization_barrier((q_BTHC, k_BSJC, v_BSJC))

    def _heads(self, projected: jax.Array, heads: int) -> jax.Array:
        return projected.reshape(*projected.shape[:2], heads, -1)
