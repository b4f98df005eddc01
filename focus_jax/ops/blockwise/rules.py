"""What becomes of the products q · k in a pass: which pairs count, and the gates that act on their logits.

J key/value heads · K groups · Q query blocks of X rows · R rows of one key/value head in a query block, the X rows of
its first query head, then of the next · P key slots · Y key slots of one step. Logits are in units of log 2.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from focus_jax.ops.blockwise.numerics import LN_2, LOG2_E, add_at, exp2
from focus_jax.ops.blockwise.pairs import Pairs, Row, static

LARGEST_EXPONENT = 127.0


class Tile(NamedTuple):
    """Where a step is: a query block and the key slots from `start`."""

    row: Row
    queries: Any
    """The block's part of Rule.queries_Q."""
    start: jax.Array
    size: int
    near_edge: bool
    """As in Pairs.fold."""


class Rule(ABC):
    """Which pairs count, and arrays of the queries (by block) and of the key slots that act on their logits."""

    pairs: Pairs
    queries_Q: Any
    keys: Any

    @abstractmethod
    def logits(self, s_JRY: jax.Array, tile: Tile) -> jax.Array:
        """−∞ where a pair does not count."""

    @abstractmethod
    def backward(
        self, s_JRY: jax.Array, dp_JRY: jax.Array, lse_JR1: jax.Array, tile: Tile, dqueries: Any, dkeys: Any
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        """Probabilities, the gradient of the products, and the gradients of `queries_Q` (of this block) and `keys`
        with the step's part added. dp comes less do · o."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kept(Rule):
    """Pairs that count keep their logits."""

    pairs: Pairs
    queries_Q: None = None
    keys: None = None

    def logits(self, s_JRY: jax.Array, tile: Tile) -> jax.Array:
        return _keep(s_JRY, self.pairs.test(tile.row, tile.start, tile.size, tile.near_edge))

    def backward(
        self, s_JRY: jax.Array, dp_JRY: jax.Array, lse_JR1: jax.Array, tile: Tile, dqueries: None, dkeys: None
    ) -> tuple[jax.Array, jax.Array, None, None]:
        p_JRY = exp2(self.logits(s_JRY, tile) - lse_JR1)
        return p_JRY, p_JRY * dp_JRY, dqueries, dkeys


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GatedByToken(Rule):
    """A gate of the query and one of the key are added to the logits of pairs that count."""

    pairs: Pairs
    queries_Q: jax.Array
    """Gates of the queries, by X."""
    keys: jax.Array
    """Gates of the key slots, by P."""

    def logits(self, s_JRY: jax.Array, tile: Tile) -> jax.Array:
        key_gate_Y = lax.dynamic_slice_in_dim(self.keys, tile.start, tile.size)
        s_JGXY = by_query(s_JRY, tile) + (tile.queries[:, None] + key_gate_Y) * LOG2_E
        return _keep(s_JGXY.reshape(s_JRY.shape), self.pairs.test(tile.row, tile.start, tile.size, tile.near_edge))

    def backward(
        self, s_JRY: jax.Array, dp_JRY: jax.Array, lse_JR1: jax.Array, tile: Tile, dqueries: jax.Array, dkeys: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        p_JRY = exp2(self.logits(s_JRY, tile) - lse_JR1)
        ds_JRY = p_JRY * dp_JRY
        dgate_XY = by_query(ds_JRY, tile).sum(axis=(0, 1))
        return p_JRY, ds_JRY, dqueries + dgate_XY.sum(axis=1), add_at(dkeys, dgate_XY.sum(axis=0), tile.start, axis=0)


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

    def logits(self, s_JRY: jax.Array, tile: Tile) -> jax.Array:
        gate_XY, _ = self._gate(tile)
        s_JGXY = by_query(s_JRY, tile)
        s_JGXY = s_JGXY + jnp.log2(gate_XY) if self.slope is None else s_JGXY * gate_XY
        return _keep(s_JGXY.reshape(s_JRY.shape), self.pairs.test(tile.row, tile.start, tile.size, tile.near_edge))

    def backward(
        self, s_JRY: jax.Array, dp_JRY: jax.Array, lse_JR1: jax.Array, tile: Tile, dqueries: jax.Array, dkeys: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        gate_XY, distant_XY = self._gate(tile)
        keep_XY = self.pairs.test(tile.row, tile.start, tile.size, tile.near_edge)
        s_JGXY, dp_JGXY = by_query(s_JRY, tile), by_query(dp_JRY, tile)
        lse_JGX1 = by_query(lse_JR1, tile)
        if self.slope is None:
            ungated_JRY = _keep((s_JGXY - lse_JGX1).reshape(s_JRY.shape), keep_XY)
            ungated_p_JGXY = by_query(exp2(jnp.minimum(ungated_JRY, LARGEST_EXPONENT)), tile)
            p_JGXY = ungated_p_JGXY * gate_XY
            ds_JGXY = p_JGXY * dp_JGXY
            dx_XY = (ungated_p_JGXY * dp_JGXY).sum(axis=(0, 1))
        else:
            p_JGXY = by_query(exp2(_keep((s_JGXY * gate_XY - lse_JGX1).reshape(s_JRY.shape), keep_XY)), tile)
            dlogits_JGXY = p_JGXY * dp_JGXY
            ds_JGXY = dlogits_JGXY * gate_XY
            dgate_XY = (dlogits_JGXY * s_JGXY).sum(axis=(0, 1)) * LN_2
            dx_XY = dgate_XY * gate_XY * (1.0 - gate_XY) * self.slope
        dx_XY = jnp.where(distant_XY, dx_XY, 0.0)
        key_affinity_YK = lax.dynamic_slice_in_dim(self.keys, tile.start, tile.size)
        dqueries += _matmul(dx_XY, key_affinity_YK)
        dkeys = add_at(dkeys, _matmul(dx_XY.T, tile.queries), tile.start, axis=0)
        return p_JGXY.reshape(s_JRY.shape), ds_JGXY.reshape(s_JRY.shape), dqueries, dkeys

    def _gate(self, tile: Tile) -> tuple[jax.Array, jax.Array]:
        """The gate of each pair, 1 where it is near; and which pairs are distant."""
        key_affinity_YK = lax.dynamic_slice_in_dim(self.keys, tile.start, tile.size)
        x_XY = _matmul(tile.queries, key_affinity_YK.T)
        distant_XY = self.pairs.distance(tile.row, tile.start, tile.size) > self.window
        gate_XY = x_XY if self.slope is None else jax.nn.sigmoid(self.slope * x_XY)
        return jnp.where(distant_XY, gate_XY, 1.0), distant_XY


def by_query(s_JRY: jax.Array, tile: Tile) -> jax.Array:
    """R split into the G query heads of a key/value head and the X rows of the block."""
    J, _, Y = s_JRY.shape
    return s_JRY.reshape(J, -1, *tile.row.position_X.shape, Y)


def _keep(s_JRY: jax.Array, keep_XY: jax.Array | None) -> jax.Array:
    """−∞ where a pair does not count; None is all."""
    if keep_XY is None:
        return s_JRY
    s_JGXY = s_JRY.reshape(len(s_JRY), -1, *keep_XY.shape)
    return jnp.where(keep_XY, s_JGXY, -jnp.inf).reshape(s_JRY.shape)


def _matmul(a_XY: jax.Array, b_YZ: jax.Array) -> jax.Array:
    return jnp.matmul(a_XY, b_YZ, precision=lax.Precision.HIGHEST)
