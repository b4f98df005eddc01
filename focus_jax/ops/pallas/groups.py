"""Distant pairs of a layout: queries and keys sorted by group into whole blocks. P slots of one side."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from focus_jax.ops.layout import Layout
from focus_jax.ops.pallas.pattern import Loop, Marks
from focus_jax.ops.pallas.tuning import Tile


class Arrays(NamedTuple):
    """Of the layout, all int32 (what Triton compares best); a field holds one array per word of 32 groups."""

    query_position: jax.Array
    key_position: jax.Array
    key_begin: jax.Array
    key_full: jax.Array
    key_end: jax.Array
    query_begin: jax.Array
    query_full: jax.Array
    query_end: jax.Array
    query_below: Sequence[jax.Array]
    key_groups: Sequence[jax.Array]
    key_gate: jax.Array | None


@dataclass(frozen=True)
class Groups:
    """Kept: pairs of slots whose blocks meet in the layout, further apart than the window, of no lower shared group."""

    layout: Layout
    window: int
    key_gate_BP: jax.Array | None
    """In units of log 2."""

    @property
    def name(self) -> str:
        return "distant" if self.layout.key_groups_BWP is None else "distant_shared"

    @property
    def arrays(self) -> Arrays:
        layout = self.layout
        return Arrays(
            query_position=layout.query.position_BP,
            key_position=layout.key.position_BP,
            key_begin=layout.key_begin_BQ,
            key_full=layout.key_full_BQ,
            key_end=layout.key_end_BQ,
            query_begin=layout.query_begin_BU,
            query_full=layout.query_full_BU,
            query_end=layout.query_end_BU,
            query_below=_words(layout.query_below_BWP),
            key_groups=_words(layout.key_groups_BWP),
            key_gate=self.key_gate_BP,
        )

    @property
    def gated(self) -> bool:
        return self.key_gate_BP is not None

    def key_loops(self, refs: Arrays, query_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        block = lax.div(query_block, self.layout.query.block // tile.queries)
        tiles = self.layout.key.block // tile.keys
        begin, full, end = (bound[block] * tiles for bound in (refs.key_begin, refs.key_full, refs.key_end))
        return Loop(begin, full, edge=False), Loop(full, end, edge=True)

    def query_loops(self, refs: Arrays, key_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        block = lax.div(key_block, self.layout.key.block // tile.keys)
        tiles = self.layout.query.block // tile.queries
        begin, full, end = (bound[block] * tiles for bound in (refs.query_begin, refs.query_full, refs.query_end))
        return Loop(begin, full, edge=True), Loop(full, end, edge=False)

    def query_marks(self, refs: Arrays, rows: pl.Slice) -> Marks:
        return [ref[rows] for ref in (refs.query_position, *refs.query_below)]

    def key_marks(self, refs: Arrays, cols: pl.Slice) -> Marks:
        return [ref[cols] for ref in (refs.key_position, *refs.key_groups)]

    def keep(self, query_marks: Marks, key_marks: Marks, edge: bool) -> jax.Array | None:
        query_position, *query_below = query_marks
        key_position, *key_groups = key_marks
        tests = [query_position - key_position > self.window] if edge else []
        if query_below:
            lower = (below & groups for below, groups in zip(query_below, key_groups, strict=True))
            tests.append(reduce(operator.or_, lower) == 0)
        return reduce(operator.and_, tests) if tests else None

    def read_keys(self, cols: pl.Slice) -> jax.Array | None:
        """All: keys that no query reads have no slot."""
        return None

    def key_gate(self, refs: Arrays, cols: pl.Slice) -> jax.Array | None:
        return None if refs.key_gate is None else refs.key_gate[cols]


def _words(bits_BWP: jax.Array | None) -> Sequence[jax.Array]:
    if bits_BWP is None:
        return ()
    return tuple(lax.bitcast_convert_type(bits_BWP, jnp.int32).swapaxes(0, 1))
