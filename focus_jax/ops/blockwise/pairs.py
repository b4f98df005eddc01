"""Which blocks of queries meet which blocks of keys, and which of their pairs count. For one batch row.

Q query blocks of X rows · P key slots, in blocks · Y key slots of one step · W words of 32 groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from focus_jax.ops.blockwise.numerics import pad_to
from focus_jax.ops.layout import UNSEEING, UNSEEN, Layout

STEP_LOGITS = 2**20
"""Logits of one step, all heads together: enough work to hide its overhead, little enough to stay in the cache."""
LARGEST_BLOCK = 256
SMALLEST_BLOCK = 16

static = partial(field, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Row:
    """A query block and the range of key blocks that it meets; with a leading Q, all of them."""

    begin: jax.Array
    """Differs from full_begin only where there is a farthest distance."""
    full_begin: jax.Array
    full_end: jax.Array
    """Key blocks [full_begin, full_end) need no test of the distance."""
    end: jax.Array
    position_X: jax.Array
    below_WX: jax.Array | None = None
    """As layout.Layout.query_below_BWP."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """A pair counts if its blocks meet, nearest ≤ distance ≤ farthest, and no group below the block's own is shared."""

    rows_Q: Row
    key_position_P: jax.Array
    key_groups_WP: jax.Array | None = None
    """As layout.Layout.key_groups_BWP."""
    nearest: int = static(default=0)
    farthest: int | None = static(default=None)
    key_block: int = static(default=1)

    def query_blocks(self, rows_T_: jax.Array) -> jax.Array:
        """(T, …) to (Q, X, …), padded with zeros."""
        Q, X = self.rows_Q.position_X.shape
        return pad_to(rows_T_, Q * X).reshape(Q, X, *rows_T_.shape[1:])

    def key_slots(self, x_S_: jax.Array) -> jax.Array:
        """(S, …) to (P, …), padded with zeros."""
        return pad_to(x_S_, self.key_position_P.size)

    def distance(self, row: Row, start: jax.Array, size: int) -> jax.Array:
        """i − j, by X and Y."""
        position_Y = lax.dynamic_slice_in_dim(self.key_position_P, start, size)
        return row.position_X[:, None] - position_Y[None, :]

    def test(self, row: Row, start: jax.Array, size: int, near_edge: bool) -> jax.Array | None:
        """Which pairs of a query block and `size` key slots count; None is all."""
        keep_XY = None
        if near_edge:
            distance_XY = self.distance(row, start, size)
            keep_XY = distance_XY >= self.nearest
            if self.farthest is not None:
                keep_XY &= distance_XY <= self.farthest
        if self.key_groups_WP is not None and row.below_WX is not None:
            groups_WY = lax.dynamic_slice_in_dim(self.key_groups_WP, start, size, axis=1)
            first_WXY = (row.below_WX[:, :, None] & groups_WY[:, None, :]) == 0
            keep_XY = first_WXY.all(axis=0) if keep_XY is None else keep_XY & first_WXY.all(axis=0)
        return keep_XY

    def fold(self, step: Callable, row: Row, rows: int, carry):
        """Folds `carry = step(start, size, near_edge, carry)` over the key slots that a query block meets.

        A step takes as many blocks as makes it worthwhile, given the rows that a block of queries has over all heads; a
        range is cut into powers of two, so that nothing beyond it is computed.
        """
        most = min(max(1, STEP_LOGITS // (rows * self.key_block)), self.key_position_P.size // self.key_block)
        regions = [(row.full_begin, row.full_end, False), (row.full_end, row.end, True)]
        if self.farthest is not None:
            regions.insert(0, (row.begin, row.full_begin, True))
        for begin, end, near_edge in regions:
            for blocks in (2**n for n in reversed(range(most.bit_length()))):
                size = blocks * self.key_block

                def one(n, carry, begin=begin, size=size, near_edge=near_edge):
                    return step(begin * self.key_block + n * size, size, near_edge, carry)

                count = (end - begin) // blocks
                carry = lax.fori_loop(0, count, one, carry)
                begin += count * blocks
        return carry


def unsorted_pairs(
    queries: int, keys: int, *, query_offset: int, nearest: int = 0, farthest: int | None = None
) -> Pairs:
    """The pairs within a distance, both sides in their own order and padded to whole blocks."""
    query_block, key_block = block_of(queries), block_of(keys)
    position_QX = query_offset + padded_range(queries, query_block).reshape(-1, query_block)
    first_Q, last_Q = position_QX[:, 0], np.minimum(position_QX[:, -1], query_offset + queries - 1)
    far = query_offset + queries if farthest is None else farthest
    seen = partial(np.clip, a_min=0, a_max=keys)
    begin_Q = seen(first_Q - far) // key_block
    end_Q = np.maximum(begin_Q, blocks_of(seen(last_Q - nearest + 1), key_block))
    full_begin_Q = np.minimum(blocks_of(seen(last_Q - far), key_block), end_Q)
    full_end_Q = np.maximum(full_begin_Q, seen(first_Q - nearest + 1) // key_block)
    slots_P = padded_range(keys, key_block)
    int32 = partial(jnp.asarray, dtype=jnp.int32)
    rows_Q = Row(
        begin=int32(begin_Q),
        full_begin=int32(full_begin_Q),
        full_end=int32(full_end_Q),
        end=int32(end_Q),
        position_X=int32(np.where(position_QX < query_offset + queries, position_QX, UNSEEING)),
    )
    position_P = int32(np.where(slots_P < keys, slots_P, UNSEEN))
    return Pairs(rows_Q, position_P, nearest=nearest, farthest=farthest, key_block=key_block)


def sorted_pairs(layout: Layout, window: int) -> Pairs:
    """The distant pairs of one batch row (a layout without its leading B)."""
    block = layout.query.block
    below_WQX = None
    if layout.query_below_BWP is not None:
        below_WQX = layout.query_below_BWP.reshape(layout.query_below_BWP.shape[0], -1, block)
    rows_Q = Row(
        begin=layout.key_begin_BQ,
        full_begin=layout.key_begin_BQ,
        full_end=layout.key_full_BQ,
        end=layout.key_end_BQ,
        position_X=layout.query.position_BP.reshape(-1, block),
        below_WX=None if below_WQX is None else below_WQX.swapaxes(0, 1),
    )
    return Pairs(rows_Q, layout.key.position_BP, layout.key_groups_BWP, nearest=window + 1, key_block=layout.key.block)


def tokens_of_blocks(rows_QX_: jax.Array, count: int) -> jax.Array:
    """(Q, X, …) to (T, …), the inverse of Pairs.query_blocks."""
    return rows_QX_.reshape(-1, *rows_QX_.shape[2:])[:count]


def block_of(length: int) -> int:
    return min(LARGEST_BLOCK, blocks_of(length, SMALLEST_BLOCK) * SMALLEST_BLOCK)


def padded_range(count: int, block: int) -> np.ndarray:
    return np.arange(blocks_of(count, block) * block)


def blocks_of(count, block: int):
    return -(-count // block)
