"""How a layer's heads read the tokens before them: densely, or by Focus."""

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config, ops, routing
from focus_jax.errors import UserError
from focus_jax.model.reading import Reading
from focus_jax.model.router import Router
from focus_jax.parallel import attention


def attention_implementations(run: config.Config) -> dict[str, str]:
    """The implementation of each attention operation that the models of a run use, to be printed and recorded.

    Raises UserError where an operation does not have the one that the config names.
    """
    wanted = run.model.attention_implementation
    try:
        chosen = {"dense": ops.resolve("dense", wanted)}
        if "focus" in run.models:
            chosen |= {"gated": ops.resolve("gated", wanted), "routed": ops.resolve("routed", wanted)}
        return chosen
    except ValueError as error:
        raise UserError(f"model.attention_{error}") from None


class DenseMixing(nnx.Module):
    def __init__(self, implementation: str):
        self.implementation = implementation

    def __call__(
        self, normed_BTD: jax.Array, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, reading: Reading
    ) -> tuple[jax.Array, None]:
        return attention.dense_attention(q_BTHC, k_BSJC, v_BSJC, implementation=self.implementation), None


class FocusMixing(nnx.Module):
    def __init__(self, focus: config.Focus, width: int, implementation: str, rngs: nnx.Rngs):
        self.focus = focus
        self.implementation = implementation
        self.router = Router(focus, width, rngs)

    def __call__(
        self, normed_BTD: jax.Array, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, reading: Reading
    ) -> tuple[jax.Array, jax.Array]:
        """Returns what the heads read, (B, T, H, C), and log affinity_BTK of the layer's tokens."""
        log_affinity_BTK = self.router(normed_BTD)
        if reading.routing == "soft":
            return self._soft(q_BTHC, k_BSJC, v_BSJC, log_affinity_BTK), log_affinity_BTK
        return self._hard(q_BTHC, k_BSJC, v_BSJC, log_affinity_BTK, reading), log_affinity_BTK

    def _soft(self, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, log_affinity_BTK: jax.Array) -> jax.Array:
        """Every pair, distant ones gated by the affinities (arXiv 2604.03260, section 3; gate `log` is ours)."""
        affinity_BTK = jnp.exp(log_affinity_BTK)
        return attention.gated_attention(
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

    def _hard(
        self,
        q_BTHC: jax.Array,
        k_BSJC: jax.Array,
        v_BSJC: jax.Array,
        log_affinity_BTK: jax.Array,
        reading: Reading,
    ) -> jax.Array:
        """Window pairs, and distant pairs whose groups meet; nothing else is computed."""
        membership = routing.memberships(log_affinity_BTK, top_k=reading.top_k, kind=self.focus.membership)
        query_gate_BTM, key_gate_BS = routing.gates(log_affinity_BTK, membership) if reading.gated else (None, None)
        return attention.routed_attention(
            q_BTHC,
            k_BSJC,
            v_BSJC,
            membership.query_groups_BTM,
            membership.key_groups_BSN,
            num_groups=self.focus.groups,
            window=self.focus.window,
            query_gate_BTM=query_gate_BTM,
            key_gate_BS=key_gate_BS,
            implementation=self.implementation,
        )
