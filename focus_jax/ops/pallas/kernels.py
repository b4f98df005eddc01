"""The three attention kernels (Pallas, Triton backend): forward, dq query-major, dk and dv key-major; no atomics.

The pattern (pattern.py) says which tiles are visited and which of their pairs are kept; the rest is written once.

B batch · T query rows · S key rows · H query heads · J key/value heads · G = H/J · C channels of a head.
Logits and log-sum-exps are in units of log 2: softmax(s) = 2^(s·LOG2_E) / Σ.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from focus_jax.ops.pallas.pattern import Loop, Pattern
from focus_jax.ops.pallas.target import interpreting
from focus_jax.ops.pallas.tuning import Tile

LOG2_E = math.log2(math.e)


def forward(
    pattern: Pattern, tile: Tile, scale: float, q_BTHC: jax.Array, k_BSJC: jax.Array, v_BSJC: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Softmax over the kept pairs: o_BTHC in the type of q, zeros where a row keeps none, and lse_BHT, there −∞."""
    B, T, H, C = q_BTHC.shape
    heads = Heads(q_BTHC, k_BSJC, tile)
    return pl.pallas_call(
        functools.partial(_forward, pattern=pattern, scale=scale, tile=tile, T=T, C=C),
        grid=(pl.cdiv(T, tile.queries), H, B),
        in_specs=[heads.query_block(), heads.all_keys(), heads.all_keys(), whole(pattern.arrays)],
        out_specs=[heads.query_block(), heads.query_row()],
        out_shape=[jax.ShapeDtypeStruct(q_BTHC.shape, q_BTHC.dtype), jax.ShapeDtypeStruct((B, H, T), jnp.float32)],
        compiler_params=tile.compiler_params,
        interpret=interpreting(),
        name=f"{pattern.name}_forward",
    )(q_BTHC, k_BSJC, v_BSJC, pattern.arrays)


def backward_queries(
    pattern: Pattern,
    tile: Tile,
    scale: float,
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    do_BTHC: jax.Array,
    lse_BHT: jax.Array,
    delta_BHT: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """dq_BTHC in the type of q, and Σ_S ds_BHT where the pattern is gated: the gradient of a gate on the query.

    lse is that of the merged output, less what is added to all logits of a row, and +∞ where that is nothing at all;
    delta is Σ_C do·o.
    """
    B, T, H, C = q_BTHC.shape
    heads = Heads(q_BTHC, k_BSJC, tile)
    sums_shape, sums_spec = [], []
    if pattern.gated:
        sums_shape, sums_spec = [jax.ShapeDtypeStruct((B, H, T), jnp.float32)], [heads.query_row()]
    dq_BTHC, *sums_BHT = pl.pallas_call(
        functools.partial(_backward_queries, pattern=pattern, scale=scale, tile=tile, T=T, C=C),
        grid=(pl.cdiv(T, tile.queries), H, B),
        in_specs=[
            heads.query_block(),
            heads.all_keys(),
            heads.all_keys(),
            heads.query_block(),
            heads.query_row(),
            heads.query_row(),
            whole(pattern.arrays),
        ],
        out_specs=[heads.query_block(), *sums_spec],
        out_shape=[jax.ShapeDtypeStruct(q_BTHC.shape, q_BTHC.dtype), *sums_shape],
        compiler_params=tile.compiler_params,
        interpret=interpreting(),
        name=f"{pattern.name}_backward_queries",
    )(q_BTHC, k_BSJC, v_BSJC, do_BTHC, lse_BHT, delta_BHT, pattern.arrays)
    return dq_BTHC, sums_BHT[0] if pattern.gated else None


def backward_keys(
    pattern: Pattern,
    tile: Tile,
    scale: float,
    q_BTHC: jax.Array,
    k_BSJC: jax.Array,
    v_BSJC: jax.Array,
    do_BTHC: jax.Array,
    lse_BHT: jax.Array,
    delta_BHT: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """dk_BSJC and dv_BSJC in the type of k, and Σ_T ds_BJS where the pattern is gated: the gradient of a key's gate.

    Arguments as of backward_queries.
    """
    B, T, _, C = q_BTHC.shape
    S, J = k_BSJC.shape[1:3]
    heads = Heads(q_BTHC, k_BSJC, tile)
    key_shape = jax.ShapeDtypeStruct(k_BSJC.shape, k_BSJC.dtype)
    sums_shape, sums_spec = [], []
    if pattern.gated:
        sums_shape, sums_spec = [jax.ShapeDtypeStruct((B, J, S), jnp.float32)], [heads.key_row()]
    dk_BSJC, dv_BSJC, *sums_BJS = pl.pallas_call(
        functools.partial(_backward_keys, pattern=pattern, scale=scale, tile=tile, G=heads.G, T=T, S=S, C=C),
        grid=(pl.cdiv(S, tile.keys), J, B),
        in_specs=[
            heads.all_queries(),
            heads.key_block(),
            heads.key_block(),
            heads.all_queries(),
            heads.all_query_rows(),
            heads.all_query_rows(),
            whole(pattern.arrays),
        ],
        out_specs=[heads.key_block(), heads.key_block(), *sums_spec],
        out_shape=[key_shape, key_shape, *sums_shape],
        compiler_params=tile.compiler_params,
        interpret=interpreting(),
        name=f"{pattern.name}_backward_keys",
    )(q_BTHC, k_BSJC, v_BSJC, do_BTHC, lse_BHT, delta_BHT, pattern.arrays)
    return dk_BSJC, dv_BSJC, sums_BJS[0] if pattern.gated else None


class Heads:
    """Parts of the arrays that one program gets, on the grid (block, head, batch); C is padded to a power of two."""

    def __init__(self, q_BTHC: jax.Array, k_BSJC: jax.Array, tile: Tile) -> None:
        self.T, self.S = q_BTHC.shape[1], k_BSJC.shape[1]
        self.G = q_BTHC.shape[2] // k_BSJC.shape[2]
        self.C = pl.next_power_of_2(q_BTHC.shape[3])
        self.tile = tile

    def query_block(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.tile.queries, None, self.C), lambda i, h, b: (b, self.last_first(i), h, 0))

    def query_row(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, self.tile.queries), lambda i, h, b: (b, h, self.last_first(i)))

    def last_first(self, i: jax.Array) -> jax.Array:
        """Late queries have the most keys: begun first, they do not finish alone."""
        return pl.cdiv(self.T, self.tile.queries) - 1 - i

    def all_keys(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.S, None, self.C), lambda i, h, b: (b, 0, lax.div(h, self.G), 0))

    def key_block(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.tile.keys, None, self.C), lambda i, j, b: (b, i, j, 0))

    def key_row(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, None, self.tile.keys), lambda i, j, b: (b, j, i))

    def all_queries(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.T, self.G, self.C), lambda i, j, b: (b, 0, j, 0))

    def all_query_rows(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self.G, self.T), lambda i, j, b: (b, j, 0))


def whole(arrays: tuple) -> tuple:
    """All of a batch entry of each array."""
    return jax.tree.map(lambda array: pl.BlockSpec((None, array.shape[1]), lambda i, h, b: (b, 0)), arrays)


def _forward(q_ref, k_ref, v_ref, refs, o_ref, lse_ref, *, pattern, scale, tile, T, C):
    query_block = pl.num_programs(0) - 1 - pl.program_id(0)
    rows = pl.ds(query_block * tile.queries, tile.queries)
    exist = within(rows, T)
    query_marks = pattern.query_marks(refs, rows)
    q = load(q_ref, (slice(None),), C, exist)

    def visit(key_block, state, edge):
        peak, total, o = state
        cols = pl.ds(key_block * tile.keys, tile.keys)
        read = pattern.read_keys(cols) if edge else None
        keep = pattern.keep(down(query_marks), across(pattern.key_marks(refs, cols)), edge)
        product = dot(q, load(k_ref, (cols,), C, read).T)
        logits = logits_of(product, scale, across(pattern.key_gate(refs, cols)), keep)
        new_peak = jnp.maximum(peak, logits.max(axis=1))
        finite_peak = jnp.where(new_peak == -jnp.inf, 0.0, new_peak)
        p = jnp.exp2(logits - finite_peak[:, None])
        fade = jnp.exp2(peak - finite_peak)
        v = load(v_ref, (cols,), C, read)
        return new_peak, total * fade + p.sum(axis=1), o * fade[:, None] + dot(p.astype(v.dtype), v)

    nothing = jnp.full(lse_ref.shape, -jnp.inf, jnp.float32), zeros(lse_ref.shape), zeros(q.shape)
    peak, total, o = run(pattern.key_loops(refs, query_block, tile), visit, nothing)
    total = jnp.where(total > 0, total, 1.0)
    store(o_ref, o / total[:, None], C, exist)
    triton.store(lse_ref, peak + jnp.log2(total), mask=exist)


def _backward_queries(
    q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref, refs, dq_ref, *sums_refs, pattern, scale, tile, T, C
):
    query_block = pl.num_programs(0) - 1 - pl.program_id(0)
    rows = pl.ds(query_block * tile.queries, tile.queries)
    exist = within(rows, T)
    query_marks = pattern.query_marks(refs, rows)
    q, do = load(q_ref, (slice(None),), C, exist), load(do_ref, (slice(None),), C, exist)
    lse = load_row(lse_ref, (slice(None),), exist, jnp.inf)
    minus_delta = -load_row(delta_ref, (slice(None),), exist, 0.0)

    def visit(key_block, state, edge):
        dq, *sums = state
        cols = pl.ds(key_block * tile.keys, tile.keys)
        read = pattern.read_keys(cols) if edge else None
        k, v = load(k_ref, (cols,), C, read), load(v_ref, (cols,), C, read)
        keep = pattern.keep(down(query_marks), across(pattern.key_marks(refs, cols)), edge)
        logits = logits_of(dot(q, k.T), scale, across(pattern.key_gate(refs, cols)), keep)
        p = jnp.exp2(logits - lse[:, None])
        ds = p * (dot(do, v.T) + minus_delta[:, None])
        return dq + dot(ds.astype(k.dtype), k), *(total + ds.sum(axis=1) for total in sums)

    nothing = zeros(q.shape), *(zeros(ref.shape) for ref in sums_refs)
    dq, *sums = run(pattern.key_loops(refs, query_block, tile), visit, nothing)
    store(dq_ref, dq * scale, C, exist)
    for ref, total in zip(sums_refs, sums, strict=True):
        triton.store(ref, total, mask=exist)


def _backward_keys(
    q_ref, k_ref, v_ref, do_ref, lse_ref, delta_ref, refs, dk_ref, dv_ref, *sums_refs,
    pattern, scale, tile, G, T, S, C,
):  # fmt: skip
    key_block = pl.program_id(0)
    cols = pl.ds(key_block * tile.keys, tile.keys)
    exist, read = within(cols, S), pattern.read_keys(cols)
    key_marks = pattern.key_marks(refs, cols)
    k, v = load(k_ref, (slice(None),), C, read), load(v_ref, (slice(None),), C, read)
    gate = pattern.key_gate(refs, cols)

    def visit(query_block, head, state, edge):
        dk, dv, *sums = state
        rows = pl.ds(query_block * tile.queries, tile.queries)
        row_exists = within(rows, T) if edge else None
        q, do = load(q_ref, (rows, head), C, row_exists), load(do_ref, (rows, head), C, row_exists)
        lse = load_row(lse_ref, (head, rows), row_exists, jnp.inf)
        minus_delta = -load_row(delta_ref, (head, rows), row_exists, 0.0)
        keep = pattern.keep(across(pattern.query_marks(refs, rows)), down(key_marks), edge)
        logits = logits_of(dot(k, q.T), scale, down(gate), keep)
        p = jnp.exp2(logits - lse[None, :])
        dv += dot(p.astype(do.dtype), do)
        # As a sum it starts the accumulator of the product, which saves the registers that decide about spills.
        ds = p * (dot(v, do.T) + minus_delta[None, :])
        dk += dot(ds.astype(q.dtype), q)
        return dk, dv, *(total + ds.sum(axis=1) for total in sums)

    nothing = zeros(k.shape), zeros(k.shape), *(zeros(ref.shape) for ref in sums_refs)
    dk, dv, *sums = run_heads(pattern.query_loops(refs, key_block, tile), G, visit, nothing)
    store(dk_ref, dk * scale, C, exist)
    store(dv_ref, dv, C, exist)
    for ref, total in zip(sums_refs, sums, strict=True):
        triton.store(ref, total, mask=exist)


def run[State](loops: Sequence[Loop], visit: Callable[..., State], state: State) -> State:
    for loop in loops:
        state = lax.fori_loop(loop.start, loop.stop, functools.partial(visit, edge=loop.edge), state)
    return state


def run_heads[State](loops: Sequence[Loop], heads: int, visit: Callable[..., State], state: State) -> State:
    """All blocks for each head: one loop over both, so that loads run ahead from head to head."""
    for start, stop, edge in loops:
        blocks = jnp.maximum(stop - start, 1)

        def visit_next(n, state, start=start, blocks=blocks, edge=edge):
            return visit(start + lax.rem(n, blocks), lax.div(n, blocks), state, edge)

        state = lax.fori_loop(0, (stop - start) * heads, visit_next, state)
    return state


def within(rows: pl.Slice, size: int) -> jax.Array | None:
    """The rows that exist; None where whole blocks make up the size."""
    return None if size % rows.size == 0 else rows.start + jnp.arange(rows.size) < size


def load(ref, index: tuple, C: int, rows: jax.Array | None) -> jax.Array:
    """Channels of the rows at `index`, zeros outside of `rows`."""
    mask = matrix_mask(rows, C, ref.shape[-1])
    return triton.load(ref.at[(*index, slice(None))], mask=mask, other=None if mask is None else 0.0)


def load_row(ref, index: tuple, rows: jax.Array | None, other: float) -> jax.Array:
    return triton.load(ref.at[index], mask=rows, other=None if rows is None else other)


def store(ref, value: jax.Array, C: int, rows: jax.Array | None) -> None:
    triton.store(ref, value.astype(ref.dtype), mask=matrix_mask(rows, C, ref.shape[-1]))


def matrix_mask(rows: jax.Array | None, C: int, padded_C: int) -> jax.Array | None:
    channels = None if padded_C == C else (jnp.arange(padded_C) < C)[None, :]
    if rows is None or channels is None:
        return channels if rows is None else rows[:, None]
    return rows[:, None] & channels


def logits_of(product: jax.Array, scale: float, gate: jax.Array | None, keep: jax.Array | None) -> jax.Array:
    logits = product * (scale * LOG2_E)
    if gate is not None:
        logits += gate
    return logits if keep is None else jnp.where(keep, logits, -jnp.inf)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Accumulated in float32; float32 operands are multiplied as such (no TF32)."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def zeros(shape: tuple[int, ...]) -> jax.Array:
    return jnp.zeros(shape, jnp.float32)


def down[Tree](marks: Tree) -> Tree:
    """Vectors as columns of a tile."""
    return jax.tree.map(lambda mark: mark[:, None], marks)


def across[Tree](marks: Tree) -> Tree:
    """Vectors as rows of a tile."""
    return jax.tree.map(lambda mark: mark[None, :], marks)
