"""Which blocks of queries meet which blocks of keys, and which of their pairs count. For one batch row.

Q query blocks of X rows, Z of them taken together · P key slots, in blocks · Y key slots of one step · W words of 32
groups.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from focus_jax.ops.blockwise.numerics import pad_to, slices
from focus_jax.ops.layout import UNSEEING, UNSEEN, Layout

STEP_LOGITS = 2**20
"""Logits of one step, all heads together: enough work to hide its overhead, little enough to stay in the cache."""
MOST_TOGETHER = 4
LARGEST_BLOCK = 256
SMALLEST_BLOCK = 16

static = partial(field, metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ranges:
    """Query blocks and the key blocks that each meets; Z stands for Q where it is all of them."""

    begin_Z: jax.Array
    full_begin_Z: jax.Array
    full_end_Z: jax.Array
    """Key blocks [full_begin, full_end) need no test of the distance; with no farthest distance full_begin is begin."""
    end_Z: jax.Array
    position_ZX: jax.Array
    below_ZWX: jax.Array | None = None
    """As layout.Layout.query_below_BWP."""

    def chosen(self, index_Z: jax.Array, is_new_Z: jax.Array) -> "Ranges":
        """Some of the blocks; those that are not new meet nothing."""
        some = jax.tree.map(lambda x: x[index_Z], self)
        ends = ("full_begin_Z", "full_end_Z", "end_Z")
        return dataclasses.replace(
            some, **{name: jnp.where(is_new_Z, getattr(some, name), some.begin_Z) for name in ends}
        )


class Columns(NamedTuple):
    """The key slots of one step, for each of Z query blocks."""

    wanted_Z: jax.Array
    """First slot that the step is about."""
    start_Z: jax.Array
    """First slot that it reads: earlier than wanted at the end of all slots."""
    size: int
    near_edge: bool
    """Pairs have to be tested."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pairs:
    """A pair counts if its blocks meet, nearest ≤ distance ≤ farthest, and no group below the block's own is shared."""

    ranges_Q: Ranges
    key_position_P: jax.Array
    key_groups_WP: jax.Array | None = None
    """As layout.Layout.key_groups_BWP."""
    nearest: int = static(default=0)
    farthest: int | None = static(default=None)
    key_block: int = static(default=1)
    together: int = static(default=1)
    """Z, query blocks that a step takes together: short ranges, each a step of its own, would be all overhead."""
    token_QX: jax.Array | None = None
    """Token of each query row, T where there is none; None where block n is the tokens n·X … n·X + X − 1."""

    def query_blocks(self, rows_T_: jax.Array) -> jax.Array:
        """(T, …) to (Q, X, …), padded with zeros."""
        Q, X = self.ranges_Q.position_ZX.shape
        return pad_to(rows_T_, Q * X).reshape(Q, X, *rows_T_.shape[1:])

    def query_rows(self, rows_T_: jax.Array) -> jax.Array:
        """Padded with zeros for rows_at, if it needs that."""
        return rows_T_ if self.token_QX is not None else pad_to(rows_T_, self.ranges_Q.position_ZX.size)

    def rows_at(self, rows_T_: jax.Array, index_Z: jax.Array) -> jax.Array:
        """The rows of some query blocks, zeros where there is no token: (T, …) to (Z, X, …)."""
        if self.token_QX is not None:
            return rows_T_.at[self.token_QX[index_Z]].get(mode="fill", fill_value=0)
        X = self.ranges_Q.position_ZX.shape[1]
        return slices(rows_T_, index_Z * X, X)

    def key_slots(self, x_S_: jax.Array) -> jax.Array:
        """(S, …) to (P, …), padded with zeros."""
        return pad_to(x_S_, self.key_position_P.size)

    def distance(self, ranges: Ranges, columns: Columns) -> jax.Array:
        """i − j, by Z, X and Y."""
        position_ZY = slices(self.key_position_P, columns.start_Z, columns.size)
        return ranges.position_ZX[:, :, None] - position_ZY[:, None, :]

    def test(self, ranges: Ranges, columns: Columns) -> jax.Array | None:
        """Which pairs of a step count, by Z, X and Y; None is all."""
        tests = []
        if columns.near_edge:
            distance_ZXY = self.distance(ranges, columns)
            tests.append(distance_ZXY >= self.nearest)
            if self.farthest is not None:
                tests.append(distance_ZXY <= self.farthest)
        if columns.near_edge and self.together > 1:
            slot_ZY = columns.start_Z[:, None] + jnp.arange(columns.size)
            end_Z = ranges.end_Z * self.key_block
            tests.append(((slot_ZY >= columns.wanted_Z[:, None]) & (slot_ZY < end_Z[:, None]))[:, None, :])
        if self.key_groups_WP is not None and ranges.below_ZWX is not None:
            groups_ZWY = slices(self.key_groups_WP, columns.start_Z, columns.size, axis=1)
            shared_ZWXY = ranges.below_ZWX[:, :, :, None] & groups_ZWY[:, :, None, :]
            tests.append((shared_ZWXY == 0).all(axis=1))
        return functools.reduce(operator.and_, tests) if tests else None

    def fold_blocks(self, iteration: Callable, carry):
        """Folds `carry = iteration(index_Z, is_new_Z, carry)` over all query blocks that meet any key block.

        Blocks whose ranges are about as long go together, the shortest first. Where Q is no multiple of Z, some of the
        first come twice: not new at first, and again.
        """
        Q, Z = len(self.ranges_Q.end_Z), min(self.together, len(self.ranges_Q.end_Z))
        lengths_Q = self.ranges_Q.end_Z - self.ranges_Q.begin_Z
        order_Q = jnp.argsort(lengths_Q) if Z > 1 else jnp.arange(Q)
        first = Q % Z or Z
        empty = jnp.sum(lengths_Q == 0) if Z > 1 else 0

        def one(n, carry):
            start = jnp.where(n == 0, 0, first + (n - 1) * Z)
            index_Z = lax.dynamic_slice_in_dim(order_Q, start, Z)
            return iteration(index_Z, (n > 0) | (jnp.arange(Z) < first), carry)

        return lax.fori_loop(jnp.maximum(0, (empty - first) // Z + 1), blocks_of(Q, Z), one, carry)

    def fold_steps(self, step: Callable, ranges: Ranges, rows: int, carry):
        """Folds `carry = step(columns, carry)` over the key slots that Z query blocks meet.

        A step takes as many blocks as makes it worthwhile, given the rows that the query blocks have over all heads; a
        range is cut into powers of two, so that nothing beyond it is computed.
        """
        slots = self.key_position_P.size
        # Never all slots at once: a slice of everything is none to the compiler, which then undoes the caller's
        # transposition of the keys and multiplies in a slow order.
        most = min(max(1, STEP_LOGITS // (rows * self.key_block)), max(1, slots // self.key_block - 1))
        near = jnp.max(ranges.full_begin_Z - ranges.begin_Z)
        full = jnp.maximum(near, jnp.min(ranges.full_end_Z - ranges.begin_Z))
        end = jnp.max(ranges.end_Z - ranges.begin_Z)
        regions = [(near, full, False), (full, end, True)]
        if self.farthest is not None:
            regions.insert(0, (jnp.zeros_like(near), near, True))
        for done, until, near_edge in regions:
            for blocks in (2**n for n in reversed(range(most.bit_length()))):
                size = blocks * self.key_block

                def one(n, carry, done=done, size=size, near_edge=near_edge):
                    wanted_Z = (ranges.begin_Z + done) * self.key_block + n * size
                    columns = Columns(wanted_Z, jnp.minimum(wanted_Z, slots - size), size, near_edge)
                    return step(columns, carry)

                count = (until - done) // blocks
                carry = lax.fori_loop(0, count, one, carry)
                done += count * blocks
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
    ranges_Q = Ranges(
        begin_Z=int32(begin_Q),
        full_begin_Z=int32(full_begin_Q),
        full_end_Z=int32(full_end_Q),
        end_Z=int32(end_Q),
        position_ZX=int32(np.where(position_QX < query_offset + queries, position_QX, UNSEEING)),
    )
    position_P = int32(np.where(slots_P < keys, slots_P, UNSEEN))
    return Pairs(ranges_Q, position_P, nearest=nearest, farthest=farthest, key_block=key_block)


def sorted_pairs(layout: Layout, window: int, heads: int) -> Pairs:
    """The distant pairs of one batch row (a layout without its leading B)."""
    block = layout.query.block
    below_QWX = None
    if layout.query_below_BWP is not None:
        below_QWX = layout.query_below_BWP.reshape(len(layout.query_below_BWP), -1, block).swapaxes(0, 1)
    ranges_Q = Ranges(
        begin_Z=layout.key_begin_BQ,
        full_begin_Z=layout.key_begin_BQ,
        full_end_Z=layout.key_full_BQ,
        end_Z=layout.key_end_BQ,
        position_ZX=layout.query.position_BP.reshape(-1, block),
        below_ZWX=below_QWX,
    )
    return Pairs(
        ranges_Q,
        layout.key.position_BP,
        layout.key_groups_BWP,
        nearest=window + 1,
        key_block=layout.key.block,
        together=min(MOST_TOGETHER, max(1, STEP_LOGITS // (heads * block * layout.key.block))),
        token_QX=(layout.query.entry_BP // layout.query.copies).reshape(-1, block),
    )


def tokens_of_blocks(rows_QX_: jax.Array, count: int) -> jax.Array:
    """(Q, X, …) to (T, …), the inverse of Pairs.query_blocks."""
    return rows_QX_.reshape(-1, *rows_QX_.shape[2:])[:count]


def block_of(length: int) -> int:
    return min(LARGEST_BLOCK, blocks_of(length, SMALLEST_BLOCK) * SMALLEST_BLOCK)


def padded_range(count: int, block: int) -> np.ndarray:
    return np.arange(blocks_of(count, block) * block)


def blocks_of(count, block: int):
    return -(-count // block)
