"""The distant pass on tokens: sorted into slots, attended to by the kernels, gathered back.

B, T, S, H, J, C, M, N as in attention.py · P query slots · U key slots. Log-sum-exps and gates are in units of log 2.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from focus_jax.ops.layout import Layout, Side, build_layout, entries_to_slots, rows_to_slots, slots_to_entries
from focus_jax.ops.pallas import passes, tuning
from focus_jax.ops.pallas.groups import Groups
from focus_jax.ops.pallas.kernels import LOG2_E
from focus_jax.ops.pallas.passes import Gradients, OutputGradient


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Distant:
    """A layout, and the gates in its slots."""

    layout: Layout
    query_gate_BP: jax.Array | None
    key_gate_BU: jax.Array | None
    """There if the query's gate is."""
    window: int = dataclasses.field(metadata={"static": True})
    scale: float = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(
        cls,
        q_BTHC: jax.Array,
        query_groups_BTM: jax.Array,
        key_groups_BSN: jax.Array,
        query_gate_BTM: jax.Array | None,
        key_gate_BS: jax.Array | None,
        *,
        num_groups: int,
        window: int,
        query_offset: int,
        scale: float,
        kernels: Sequence[tuning.Kernel],
    ) -> "Distant":
        query_block, key_block = tuning.layout_blocks(kernels, q_BTHC.shape[-1], q_BTHC.dtype)
        layout = build_layout(
            query_groups_BTM,
            key_groups_BSN,
            num_groups=num_groups,
            window=window,
            query_offset=query_offset,
            query_block=query_block,
            key_block=key_block,
        )
        query_gate_BP, key_gate_BU = None, None
        if query_gate_BTM is not None:
            query_gate_BP = entries_to_slots(query_gate_BTM * LOG2_E, layout.query)
            key_gate_BU = jnp.zeros(layout.key.position_BP.shape, jnp.float32)
        if key_gate_BS is not None:
            key_gate_BU = entries_to_slots(key_gate_BS[..., None] * LOG2_E, layout.key)
        return cls(layout, query_gate_BP, key_gate_BU, window, scale)

    def forward(self, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> tuple[jax.Array, jax.Array]:
        """o_BTMHC and lse_BTMH of every entry of a query: zeros and −∞ where it keeps no pair."""
        query = self.layout.query
        o_BPHC, lse_BHP = passes.forward(self._pattern(), self.scale, *self._slots(q_BTHC, k_BSJC, v_BSJC))
        if self.query_gate_BP is not None:
            lse_BHP += self.query_gate_BP[:, None]
        lse_BTMH = slots_to_entries(lse_BHP.swapaxes(1, 2), query)
        has_slot_BTM1 = (query.slot_BE < query.entry_BP.shape[1]).reshape(*lse_BTMH.shape[:3], 1)
        return slots_to_entries(o_BPHC, query), jnp.where(has_slot_BTM1, lse_BTMH, -jnp.inf)

    def backward(self, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array, output: OutputGradient) -> Gradients:
        """Of the tokens, in float32; the sums over heads, of every query entry (B, T, M) and of every key (B, S)."""
        query, key = self.layout.query, self.layout.key
        lse_BHP = rows_to_slots(output.lse_BHT.swapaxes(1, 2), query).swapaxes(1, 2)
        delta_BHP = rows_to_slots(output.delta_BHT.swapaxes(1, 2), query).swapaxes(1, 2)
        if self.query_gate_BP is not None:
            lse_BHP -= self.query_gate_BP[:, None]
        in_slots = OutputGradient(rows_to_slots(output.do_BTHC, query), lse_BHP, delta_BHP)
        part = passes.backward(self._pattern(), self.scale, *self._slots(q_BTHC, k_BSJC, v_BSJC), in_slots)
        row_sums_BTM, key_sums_BS = None, None
        if part.row_sums is not None and part.key_sums is not None:
            row_sums_BTM = slots_to_entries(part.row_sums.sum(axis=1), query)
            key_sums_BS = _tokens(part.key_sums.sum(axis=1), key)
        return Gradients(
            _tokens(part.dq, query), _tokens(part.dk, key), _tokens(part.dv, key), row_sums_BTM, key_sums_BS
        )

    def _pattern(self) -> Groups:
        return Groups(self.layout, self.window, self.key_gate_BU)

    def _slots(self, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """In empty slots zeros, which add nothing to any sum."""
        key = self.layout.key
        return rows_to_slots(q_BTHC, self.layout.query), rows_to_slots(k_BSJC, key), rows_to_slots(v_BSJC, key)


def _tokens(gradient_BP_: jax.Array, side: Side) -> jax.Array:
    """Sums over the slots of each token, in float32."""
    return slots_to_entries(gradient_BP_, side).sum(axis=2, dtype=jnp.float32)
