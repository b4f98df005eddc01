"""Keys at distance 0…window of a query, in order of position: dense attention (no window) and the local pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from focus_jax.ops.layout import UNSEEING, UNSEEN
from focus_jax.ops.pallas.pattern import Loop, Marks
from focus_jax.ops.pallas.tuning import Tile


@dataclass(frozen=True)
class Band:
    """Query row t has position query_offset + t, key row j position j; kept: 0 ≤ i − j ≤ window."""

    query_rows: int
    key_rows: int
    query_offset: int
    window: int | None

    @property
    def name(self) -> str:
        return "dense" if self.window is None else "local"

    @property
    def arrays(self) -> tuple[()]:
        return ()

    @property
    def gated(self) -> bool:
        return False

    def key_loops(self, refs: tuple, query_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        first = self.query_offset + query_block * tile.queries
        last = first + tile.queries - 1
        end = jnp.minimum(jnp.minimum(last + 1, self.query_offset + self.query_rows), self.key_rows)
        inner_end = jnp.minimum(first + 1, self.key_rows)
        if self.window is None:
            return edged(0, 0, lax.div(inner_end, tile.keys), pl.cdiv(end, tile.keys))[1:]
        start = lax.div(jnp.clip(first - self.window, 0, end), tile.keys)
        inner_start = pl.cdiv(jnp.maximum(last - self.window, 0), tile.keys)
        parts = edged(start, inner_start, lax.div(inner_end, tile.keys), pl.cdiv(end, tile.keys))
        return narrow(self.window, tile, parts)

    def query_loops(self, refs: tuple, key_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        first = key_block * tile.keys - self.query_offset
        last = first + tile.keys - 1
        start = lax.div(jnp.clip(first, 0, self.query_rows), tile.queries)
        inner_start = pl.cdiv(jnp.maximum(last, 0), tile.queries)
        if self.window is None:
            whole_blocks = self.query_rows // tile.queries
            parts = edged(start, inner_start, whole_blocks, pl.cdiv(self.query_rows, tile.queries))
            return parts if self.query_rows % tile.queries else parts[:2]
        end = jnp.clip(last + self.window + 1, 0, self.query_rows)
        inner_end = jnp.clip(first + self.window + 1, 0, self.query_rows)
        parts = edged(start, inner_start, lax.div(inner_end, tile.queries), pl.cdiv(end, tile.queries))
        return narrow(self.window, tile, parts)

    def query_marks(self, refs: tuple, rows: pl.Slice) -> Marks:
        row = rows.start + jnp.arange(rows.size)
        position = self.query_offset + row
        return (position if self.query_rows % rows.size == 0 else jnp.where(row < self.query_rows, position, UNSEEING),)

    def key_marks(self, refs: tuple, cols: pl.Slice) -> Marks:
        position = cols.start + jnp.arange(cols.size)
        return (position if self.key_rows % cols.size == 0 else jnp.where(position < self.key_rows, position, UNSEEN),)

    def keep(self, query_marks: Marks, key_marks: Marks, edge: bool) -> jax.Array | None:
        if not edge:
            return None
        distance = query_marks[0] - key_marks[0]
        return distance >= 0 if self.window is None else (distance >= 0) & (distance <= self.window)

    def read_keys(self, cols: pl.Slice) -> jax.Array | None:
        first = 0 if self.window is None else max(0, self.query_offset - self.window)
        end = min(self.query_offset + self.query_rows, self.key_rows)
        position = cols.start + jnp.arange(cols.size)
        if first == 0 and end == self.key_rows:
            return None if self.key_rows % cols.size == 0 else position < end
        return (position >= first) & (position < end)

    def key_gate(self, refs: tuple, cols: pl.Slice) -> None:
        return None


def edged(
    start: jax.Array | int, inner_start: jax.Array | int, inner_stop: jax.Array | int, stop: jax.Array | int
) -> Sequence[Loop]:
    """Blocks start…stop−1, the inner ones without an edge."""
    stop = jnp.maximum(stop, start)
    inner_start = jnp.clip(inner_start, start, stop)
    inner_stop = jnp.clip(inner_stop, inner_start, stop)
    return (
        Loop(start, inner_start, edge=True),
        Loop(inner_start, inner_stop, edge=False),
        Loop(inner_stop, stop, edge=True),
    )


def narrow(window: int, tile: Tile, parts: Sequence[Loop]) -> Sequence[Loop]:
    """One loop where the window is too narrow to hold a whole tile."""
    if window >= tile.queries + tile.keys - 2:
        return parts
    return (Loop(parts[0].start, parts[-1].stop, edge=True),)
