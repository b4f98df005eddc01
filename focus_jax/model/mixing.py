"""How a layer's heads read the tokens before them: densely, or by Focus."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from focus_jax import config, ops, routing
from focus_jax.accounting.pairs import dense_pairs
from focus_jax.errors import UserError
from focus_jax.model.reading import Reading
from focus_jax.model.router import Routed, Router
from focus_jax.parallel import attention


def attention_implementations(run: config.Config) -> dict[str, str]:
    """The implementation of each attention operation that the models of a run use, to be printed and recorded.

    Raises UserError where an operation does not have the one that the config names.
    """
    wanted = run.model.attention_implementation
    try:
        chosen = {"dense": ops.resolve("dense", wanted)}
        if isinstance(run.attention, config.Focus) and "focus" in run.models:
            chosen |= {operation: ops.resolve(operation, wanted) for operation in _operations(run.attention)}
        return chosen
    except ValueError as error:
        raise UserError(f"model.attention_{error}") from None


def _operations(focus: config.Focus) -> list[ops.Operation]:
    """What Focus layers use from the first step of a run to its last evaluation."""
    operations: list[ops.Operation] = ["routed"]
    if focus.training == "soft" or focus.hard_from_step > 0:
        operations.append("gated")
    if focus.training == "hard" and focus.router == "distill":
        operations.append("probe")
    return operations


QKV = tuple[jax.Array, jax.Array, jax.Array]
"""q_BTHC, k_BSJC and v_BSJC of a layer."""


class DenseMixing(nnx.Module):
    def __init__(self, implementation: str):
        self.implementation = implementation

    def __call__(
        self, normed_BTD: jax.Array, qkv: QKV, reading: Reading | None, probes_BP: jax.Array | None
    ) -> tuple[jax.Array, None]:
        return attention.dense_attention(*qkv, implementation=self.implementation), None


class FocusMixing(nnx.Module):
    def __init__(self, focus: config.Focus, width: int, implementation: str, rngs: nnx.Rngs):
        self.focus = focus
        self.implementation = implementation
        self.router = Router(focus, width, rngs)

    def __call__(
        self, normed_BTD: jax.Array, qkv: QKV, reading: Reading | None, probes_BP: jax.Array | None
    ) -> tuple[jax.Array, Routed]:
        """Returns what the heads read, (B, T, H, C), and what the router made of the layer's tokens."""
        assert reading is not None, "only a dense model takes None"
        if probes_BP is not None:
            return self._probed(normed_BTD, qkv, reading, probes_BP)
        routed = self.router(normed_BTD)
        read = self._soft if reading.routing == "soft" else partial(self._hard, reading)
        return read(qkv, routed.log_affinity_BTK), routed

    def _probed(
        self, normed_BTD: jax.Array, qkv: QKV, reading: Reading, probes_BP: jax.Array
    ) -> tuple[jax.Array, Routed]:
        """The hard pattern, but for the probe rows, which read everything and teach the router. The router learns from
        them alone and the model does not learn from the router: each sees the other as a constant."""
        routed = self.router(jax.lax.stop_gradient(normed_BTD))
        mixed_BTHC = self._hard(reading, qkv, routed.log_affinity_BTK)
        rows_BPHC, attention_BPS = attention.probe_attention(*qkv, probes_BP, implementation=self.implementation)
        mixed_BTHC = jax.vmap(lambda mixed_THC, at_P, rows_PHC: mixed_THC.at[at_P].set(rows_PHC))(
            mixed_BTHC, probes_BP, rows_BPHC
        )
        nats_B = routing.router_nats(routed.log_affinity_BTK, attention_BPS, probes_BP, window=self.focus.window)
        return mixed_BTHC, routed._replace(probe_nats_B=nats_B)

    def _soft(self, qkv: QKV, log_affinity_BTK: jax.Array) -> jax.Array:
        """Every pair, distant ones gated by the affinities (arXiv 2604.03260, section 3; gate `log` is ours)."""
        affinity_BTK = jnp.exp(log_affinity_BTK)
        return attention.gated_attention(
            *qkv,
            affinity_BTK,
            affinity_BTK,
            window=self.focus.window,
            gate=self.focus.gate,
            slope=self.focus.gate_slope,
            implementation=self.implementation,
        )

    def _hard(self, reading: Reading, qkv: QKV, log_affinity_BTK: jax.Array) -> jax.Array:
        """Window pairs, and distant pairs whose groups meet; nothing else is computed."""
        membership = routing.memberships(log_affinity_BTK, top_k=reading.top_k, kind=self.focus.membership)
        query_gate_BTM, key_gate_BS = routing.gates(log_affinity_BTK, membership) if reading.gated else (None, None)
        return attention.routed_attention(
            *qkv,
            membership.query_groups_BTM,
            membership.key_groups_BSN,
            num_groups=self.focus.groups,
            window=self.focus.window,
            query_gate_BTM=query_gate_BTM,
            key_gate_BS=key_gate_BS,
            implementation=self.implementation,
        )


def computed_pairs(
    focus: config.Focus, reading: Reading, log_affinity_BTK: jax.Array, probes_BP: jax.Array | None = None
) -> jax.Array:
    """Query–key pairs that a layer computes for each sequence, float32 (B,); those of probe rows come on top."""
    batch, tokens, _ = log_affinity_BTK.shape
    if reading.routing == "soft":
        return jnp.full(batch, float(dense_pairs(tokens)))
    membership = routing.memberships(log_affinity_BTK, top_k=reading.top_k, kind=focus.membership)
    kept_B = routing.kept_pairs(membership, num_groups=focus.groups, window=focus.window)
    return kept_B if probes_BP is None else kept_B + jnp.sum(probes_BP + 1.0, axis=1)
