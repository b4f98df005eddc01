"""What the kernels ask of a pattern: which tiles are visited, and which pairs of a visited tile are kept.

Letters as in kernels.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
from jax.experimental import pallas as pl

from focus_jax.ops.pallas.tuning import Tile

Marks = Sequence[jax.Array]
"""What decides about a pair, one value for each row (or column) of a tile; the position comes first."""


class Loop(NamedTuple):
    """Blocks start…stop−1; at an edge a tile may hold pairs that are too near or too far, or rows that do not exist."""

    start: jax.Array | int
    stop: jax.Array | int
    edge: bool


class Pattern(Protocol):
    """`refs` are the pattern's own arrays for one batch entry; rows and columns are ranges of queries and of keys."""

    @property
    def name(self) -> str:
        """In the names of the kernels, and decides about their tiles."""

    @property
    def arrays(self) -> Any:
        """A tree of arrays (B, …) that come back as `refs`."""

    @property
    def gated(self) -> bool:
        """Whether there is a `key_gate`."""

    def key_loops(self, refs: Any, query_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        """The blocks of keys that a block of queries visits."""

    def query_loops(self, refs: Any, key_block: jax.Array, tile: Tile) -> Sequence[Loop]:
        """The blocks of queries that visit a block of keys."""

    def query_marks(self, refs: Any, rows: pl.Slice) -> Marks: ...

    def key_marks(self, refs: Any, cols: pl.Slice) -> Marks: ...

    def keep(self, query_marks: Marks, key_marks: Marks, edge: bool) -> jax.Array | None:
        """The kept pairs, from marks that broadcast against each other; None keeps all."""

    def read_keys(self, cols: pl.Slice) -> jax.Array | None:
        """The keys that some query reads; the others may hold anything, even NaN. None where all are read."""

    def key_gate(self, refs: Any, cols: pl.Slice) -> jax.Array | None:
        """Added to the logits of each key, in units of log 2; None adds nothing."""
