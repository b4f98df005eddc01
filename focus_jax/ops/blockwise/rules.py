"""What becomes of the products q · k in a pass: which pairs count, and the gates that act on their logits.

J key/value heads · K groups · Q query blocks of X rows, Z of them taken together · R rows of one key/value head in a
query block: the X rows of its first query head, then of the next · P key slots · Y key slots of one step. Logits are in
units of log 2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import LN_2, LOG2_E, add_slices, exp2, slices
from focus_jax.ops.blockwise.pairs import Columns, Pairs, Ranges, static

LARGEST_EXPONENT = 127.0


class Tile(NamedTuple):
    """Where a step is."""

    ranges: Ranges
    queries: Any
    """What Rule.queries_Q has of these query blocks."""
    columns: Columns


class Rule(ABC):
    """Which pairs count, and arrays of the queries (by block) and of the key slots that act on their logits."""

    pairs: Pairs
    queries_Q: Any
    keys: Any

    @abstractmethod
    def logits(self, s_ZJRY: jax.Array, tile: Tile) -> jax.Array:
        """−∞ where a pair does not count."""

    @abstractmethod
    def backward(
        self, s_ZJRY: jax.Array, dp_ZJRY: jax.Array, lse_ZJR1: jax.Array, tile: Tile, dqueries: Any, dkeys: Any
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Probabilities, the gradient of the products, and the gradients of `queries_Q` (of these blocks) and `keys`
        with the step's part added. dp comes less do · o."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kept(Rule):
    """Pairs that count keep their logits."""

    pairs: Pairs
    queries_Q: None = None
    keys: None = None

    def logits(self, s_ZJRY: jax.Array, tile: Tile) -> jax.Array:
        return _keep(s_ZJRY, self.pairs.test(tile.ranges, tile.columns))

    def backward(
        self, s_ZJRY: jax.Array, dp_ZJRY: jax.Array, lse_ZJR1: jax.Array, tile: Tile, dqueries: None, dkeys: None
    ) -> tuple[jax.Array, jax.Array, None, None]:
        p_ZJRY = exp2(self.logits(s_ZJRY, tile) - lse_ZJR1)
        return p_ZJRY, p_ZJRY * dp_ZJRY, dqueries, dkeys


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GatedByToken(Rule):
    """A gate of the query and one of the key are added to the logits of pairs that count."""

    pairs: Pairs
    queries_Q: jax.Array
    """Gates of the queries, by X."""
    keys: jax.Array
    """Gates of the key slots, by P."""

    def logits(self, s_ZJRY: jax.Array, tile: Tile) -> jax.Array:
        key_gate_ZY = slices(self.keys, *tile.columns[1:3])
        s_ZJGXY = by_query(s_ZJRY, tile) + over_heads(tile.queries[:, :, None] + key_gate_ZY[:, None, :]) * LOG2_E
        return _keep(s_ZJGXY.reshape(s_ZJRY.shape), self.pairs.test(tile.ranges, tile.columns))

    def backward(
        self,
        s_ZJRY: jax.Array,
        dp_ZJRY: jax.Array,
        lse_ZJR1: jax.Array,
        tile: Tile,
        dqueries: jax.Array,
        dkeys: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        p_ZJRY = exp2(self.logits(s_ZJRY, tile) - lse_ZJR1)
        ds_ZJRY = p_ZJRY * dp_ZJRY
        dgate_ZXY = by_query(ds_ZJRY, tile).sum(axis=(1, 2))
        return (
            p_ZJRY,
            ds_ZJRY,
            dqueries + dgate_ZXY.sum(axis=2),
            add_slices(dkeys, dgate_ZXY.sum(axis=1), tile.columns.start_Z),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GatedByAffinity(Rule):
    """Pairs further apart than the window pass a gate on x = Σ_K affinity_i · affinity_j; near ones keep their logits.

    With slope None the gate is x, a factor of 2^s; its gradient is finite at x = 0. Otherwise it is sigmoid(slope · x),
    a factor of s.
    """

    pairs: Pairs
    queries_Q: jax.Array
    """Affinities of the queries, by X and K."""
    keys: jax.Array
    """Affinities of the key slots, by P and K."""
    window: int = static()
    slope: float | None = static()

    def logits(self, s_ZJRY: jax.Array, tile: Tile) -> jax.Array:
        gate_ZXY, _ = self._gate(tile)
        s_ZJGXY = by_query(s_ZJRY, tile)
        s_ZJGXY = s_ZJGXY + jnp.log2(over_heads(gate_ZXY)) if self.slope is None else s_ZJGXY * over_heads(gate_ZXY)
        return _keep(s_ZJGXY.reshape(s_ZJRY.shape), self.pairs.test(tile.ranges, tile.columns))

    def backward(
        self,
        s_ZJRY: jax.Array,
        dp_ZJRY: jax.Array,
        lse_ZJR1: jax.Array,
        tile: Tile,
        dqueries: jax.Array,
        dkeys: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        gate_ZXY, distant_ZXY = self._gate(tile)
        keep_ZXY = self.pairs.test(tile.ranges, tile.columns)
        s_ZJGXY, dp_ZJGXY = by_query(s_ZJRY, tile), by_query(dp_ZJRY, tile)
        lse_ZJGX1 = by_query(lse_ZJR1, tile)
        if self.slope is None:
            ungated_ZJRY = _keep((s_ZJGXY - lse_ZJGX1).reshape(s_ZJRY.shape), keep_ZXY)
            ungated_p_ZJGXY = by_query(exp2(jnp.minimum(ungated_ZJRY, LARGEST_EXPONENT)), tile)
            p_ZJGXY = ungated_p_ZJGXY * over_heads(gate_ZXY)
            ds_ZJGXY = p_ZJGXY * dp_ZJGXY
            dx_ZXY = (ungated_p_ZJGXY * dp_ZJGXY).sum(axis=(1, 2))
        else:
            p_ZJGXY = by_query(
                exp2(_keep((s_ZJGXY * over_heads(gate_ZXY) - lse_ZJGX1).reshape(s_ZJRY.shape), keep_ZXY)), tile
            )
            dlogits_ZJGXY = p_ZJGXY * dp_ZJGXY
            ds_ZJGXY = dlogits_ZJGXY * over_heads(gate_ZXY)
            dgate_ZXY = (dlogits_ZJGXY * s_ZJGXY).sum(axis=(1, 2)) * LN_2
            dx_ZXY = dgate_ZXY * gate_ZXY * (1.0 - gate_ZXY) * self.slope
        dx_ZXY = jnp.where(distant_ZXY, dx_ZXY, 0.0)
        key_affinity_ZYK = slices(self.keys, *tile.columns[1:3])
        dqueries += _matmul("zxy,zyk->zxk", dx_ZXY, key_affinity_ZYK)
        dkeys = add_slices(dkeys, _matmul("zxy,zxk->zyk", dx_ZXY, tile.queries), tile.columns.start_Z)
        return p_ZJGXY.reshape(s_ZJRY.shape), ds_ZJGXY.reshape(s_ZJRY.shape), dqueries, dkeys

    def _gate(self, tile: Tile) -> tuple[jax.Array, jax.Array]:
        """The gate of each pair, 1 where it is near; and which pairs are distant."""
        key_affinity_ZYK = slices(self.keys, *tile.columns[1:3])
        x_ZXY = _matmul("zxk,zyk->zxy", tile.queries, key_affinity_ZYK)
        distant_ZXY = self.pairs.distance(tile.ranges, tile.columns) > self.window
        gate_ZXY = x_ZXY if self.slope is None else jax.nn.sigmoid(self.slope * x_ZXY)
        return jnp.where(distant_ZXY, gate_ZXY, 1.0), distant_ZXY


def by_query(s_ZJRY: jax.Array, tile: Tile) -> jax.Array:
    """R split into the G query heads of a key/value head and the X rows of the block."""
    Z, J, _, Y = s_ZJRY.shape
    return s_ZJRY.reshape(Z, J, -1, tile.ranges.position_ZX.shape[1], Y)


def over_heads(x_ZXY: jax.Array) -> jax.Array:
    """To be used with Z J G X Y."""
    return x_ZXY[:, None, None]


def _keep(s_ZJRY: jax.Array, keep_ZXY: jax.Array | None) -> jax.Array:
    """−∞ where a pair does not count; None is all."""
    if keep_ZXY is None:
        return s_ZJRY
    s_ZJGXY = s_ZJRY.reshape(*s_ZJRY.shape[:2], -1, *keep_ZXY.shape[1:])
    return jnp.where(over_heads(keep_ZXY), s_ZJGXY, -jnp.inf).reshape(s_ZJRY.shape)


def _matmul(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, precision=lax.Precision.HIGHEST)
